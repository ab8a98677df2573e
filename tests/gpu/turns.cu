// SPDX-License-Identifier: MIT OR Apache-2.0

// Scheduling latency of a GPU for several processes, to separate it from the latency of frameshare.
//
//   nvcc -O2 turns.cu -lcuda -o turns
//   turns PROCESSES PACE_US FRAMES
//
// All processes are woken at the same moment, and each runs a kernel that reads its own 1080p frame: no frame is handed
// on, and no stream waits for another. Measures the time from that moment until the kernel of the slowest process is
// complete. Prints JSON lines for tests/gpu/table.
#include "bare.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <vector>

constexpr int MAX_PROCESSES = 32;
constexpr unsigned LATE = 64; // number of frames that a process may lag behind
constexpr size_t FRAME = 1920 * 1080 * 3 / 2;

struct Shared {
  std::atomic<unsigned> told;    // frames so far
  std::atomic<unsigned> arrived; // 1 for each ready process, 1 for each completed process
  double told_at[LATE];
  double p50[MAX_PROCESSES], p99[MAX_PROCESSES];
};

// The same work as in the readers of `frameshare-bench --kernel`.
__global__ void read_frame(const unsigned *frame, size_t count, unsigned *sum)
{
  unsigned part = 0;
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    part ^= frame[i];
  atomicXor(sum, part);
}

static void CUDA_CB note(void *latency)
{
  *static_cast<double *>(latency) += now_us();
}

static void read_frames(Shared *shared, int process, unsigned frames)
{
  unsigned *frame, *sum;
  cudaStream_t stream;
  if (cudaMalloc(&frame, FRAME) || cudaMalloc(&sum, sizeof *sum) ||
      cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)) {
    fprintf(stderr, "turns: cannot allocate memory or create a stream\n");
    exit(1);
  }
  read_frame<<<1024, 256, 0, stream>>>(frame, FRAME / sizeof *frame, sum);
  CHECK(cuStreamSynchronize(stream));
  shared->arrived.fetch_add(1);

  std::vector<double> latency(frames);
  for (unsigned i = 0; i < frames; i++) {
    unsigned told;
    while ((told = shared->told.load()) <= i)
      sleep_on(&shared->told, told);
    latency[i] = -shared->told_at[i % LATE];
    read_frame<<<1024, 256, 0, stream>>>(frame, FRAME / sizeof *frame, sum);
    CHECK(cuLaunchHostFunc(stream, note, &latency[i]));
  }
  CHECK(cuStreamSynchronize(stream));
  std::sort(latency.begin(), latency.end());
  shared->p50[process] = latency[frames / 2];
  shared->p99[process] = latency[frames * 99 / 100];
  shared->arrived.fetch_add(1);
}

int main(int argc, char **argv)
{
  int processes = argc == 4 ? atoi(argv[1]) : 0;
  double pace = argc == 4 ? atof(argv[2]) : 0;
  unsigned frames = argc == 4 ? atoi(argv[3]) : 0;
  if (processes < 1 || processes > MAX_PROCESSES || pace <= 0 || frames < 1) {
    fprintf(stderr, "usage: turns PROCESSES PACE_US FRAMES   (1 to %d processes)\n", MAX_PROCESSES);
    return 2;
  }
  void *page = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  Shared *shared = static_cast<Shared *>(page);
  for (int k = 0; k < processes; k++) {
    if (!fork()) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      read_frames(shared, k, frames);
      _exit(0);
    }
  }
  auto all_arrived = [&](unsigned times) {
    int status;
    while (shared->arrived.load() < times * processes) {
      if (waitpid(-1, &status, WNOHANG) > 0 && status != 0)
        exit(1);
      usleep(1000);
    }
  };
  all_arrived(1);
  usleep(50000);
  double begin = now_us();
  for (unsigned i = 0; i < frames; i++) {
    shared->told_at[i % LATE] = now_us();
    shared->told.store(i + 1);
    wake(&shared->told);
    for (double next = begin + (i + 1) * pace; now_us() < next;)
      if (next - now_us() > 200)
        usleep(100);
  }
  all_arrived(2);
  printf("{\"suite\": \"turns\", \"case\": \"%d process(es), %.0f us a frame\", \"p50_us\": %.1f, \"p99_us\": %.1f}\n", processes,
         pace, *std::max_element(shared->p50, shared->p50 + processes),
         *std::max_element(shared->p99, shared->p99 + processes));
}
