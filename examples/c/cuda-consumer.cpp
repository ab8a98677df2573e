// SPDX-License-Identifier: MIT OR Apache-2.0

// Reads frames in GPU memory with a kernel on a stream of its own:
//
//   cuda-consumer STREAM
//
// Prints the sum of the bytes of each frame's first plane. The driver compiles the kernel. The simulated
// driver of this project has none: the program then copies the plane on the same stream, and says so.

#include "cuda-driver.hpp"

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <frameshare.hpp>
#include <vector>

// sum<<<rows, 1>>>: each thread adds the bytes of one row.
static const char KERNEL[] = R"(
.version 6.0
.target sm_50
.address_size 64
.visible .entry sum (.param .u64 image, .param .s64 stride, .param .u32 columns, .param .u64 total)
{
  .reg .pred %end;
  .reg .u32 %row, %columns, %x;
  .reg .u64 %at, %stride, %wide, %byte, %sum, %total, %old;
  ld.param.u64 %at, [image];
  ld.param.s64 %stride, [stride];
  ld.param.u32 %columns, [columns];
  ld.param.u64 %total, [total];
  cvta.to.global.u64 %at, %at;
  cvta.to.global.u64 %total, %total;
  mov.u32 %row, %ctaid.x;
  cvt.u64.u32 %wide, %row;
  mad.lo.s64 %at, %wide, %stride, %at;
  mov.u64 %sum, 0;
  mov.u32 %x, 0;
next:
  setp.ge.u32 %end, %x, %columns;
  @%end bra done;
  ld.global.u8 %byte, [%at];
  add.u64 %sum, %sum, %byte;
  add.u64 %at, %at, 1;
  add.u32 %x, %x, 1;
  bra next;
done:
  atom.global.add.u64 %old, [%total], %sum;
  ret;
}
)";

class Summer {
public:
  explicit Summer (Cuda &cuda) : cuda (cuda)
  {
    int result = cuda.result_of ("cuModuleLoadData", &module, static_cast<const void *> (KERNEL));
    if (result == 801) { // CUDA_ERROR_NOT_SUPPORTED
      std::printf ("no kernels in this driver: copies instead\n");
      return;
    }
    if (result != 0)
      throw std::runtime_error ("cuModuleLoadData failed: " + std::to_string (result));
    cuda.call ("cuModuleGetFunction", &kernel, module, "sum");
    cuda.call ("cuMemAlloc_v2", &total, sizeof (uint64_t));
    std::printf ("kernel on a stream of its own\n");
  }

  // Queues the work on the stream, and waits for its result only.
  uint64_t sum (const frameshare_plane &plane)
  {
    return kernel == nullptr ? by_copy (plane) : by_kernel (plane);
  }

private:
  uint64_t by_kernel (const frameshare_plane &plane)
  {
    uint64_t image = plane.device_pointer, result = 0;
    int64_t stride = plane.stride;
    uint32_t columns = static_cast<uint32_t> (plane.row_bytes);
    void *arguments[] = { &image, &stride, &columns, &total };
    cuda.call ("cuMemsetD8Async", total, static_cast<unsigned char> (0), sizeof result, cuda.stream);
    cuda.call ("cuLaunchKernel", kernel, plane.height, 1u, 1u, 1u, 1u, 1u, 0u, cuda.stream,
               static_cast<void **> (arguments), static_cast<void **> (nullptr));
    cuda.call ("cuMemcpyDtoHAsync_v2", static_cast<void *> (&result), total, sizeof result, cuda.stream);
    cuda.call ("cuStreamSynchronize", cuda.stream);
    return result;
  }

  uint64_t by_copy (const frameshare_plane &plane)
  {
    std::vector<uint8_t> row (plane.row_bytes);
    uint64_t result = 0;
    for (uint32_t y = 0; y < plane.height; y++) {
      uint64_t from = plane.device_pointer + static_cast<uint64_t> (plane.stride * static_cast<ptrdiff_t> (y));
      cuda.call ("cuMemcpyDtoHAsync_v2", static_cast<void *> (row.data ()), from, row.size (), cuda.stream);
      cuda.call ("cuStreamSynchronize", cuda.stream);
      for (uint8_t byte : row)
        result += byte;
    }
    return result;
  }

  Cuda &cuda;
  void *module = nullptr, *kernel = nullptr;
  uint64_t total = 0;
};

int main (int argc, char **argv)
try {
  if (argc != 2) {
    std::fprintf (stderr, "usage: cuda-consumer STREAM\n");
    return 2;
  }
  Cuda cuda;
  Summer summer (cuda);
  frameshare::ReaderConfig config;
  config.policy = FRAMESHARE_POLICY_LOSSLESS;
  config.memory = FRAMESHARE_MEMORY_CUDA;
  config.reconnect = false;
  frameshare::Reader reader (argv[1], config);
  // An empty frame is the end of the stream: there is no timeout.
  while (frameshare::Frame frame = reader.next ()) {
    frameshare_frame_info info = frame.info ();
    if (info.memory != FRAMESHARE_MEMORY_CUDA) {
      std::fprintf (stderr, "cuda-consumer: the exporter has its frames in host memory\n");
      return EXIT_FAILURE;
    }
    // The stream waits for the frame, and the frame's slot for the stream.
    uint64_t sum = summer.sum (frame.plane_on (0, cuda.stream));
    std::printf ("frame %" PRIu64 " sum %" PRIu64 "\n", info.sequence, sum);
    frame.release_on (cuda.stream);
  }
  return EXIT_SUCCESS;
} catch (const std::exception &error) {
  std::fprintf (stderr, "cuda-consumer: %s\n", error.what ());
  return EXIT_FAILURE;
}
