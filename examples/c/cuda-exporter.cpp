// SPDX-License-Identifier: MIT OR Apache-2.0

// Exports frames in GPU memory, written on a stream of its own:
//
//   cuda-exporter STREAM [FRAMES]
//
// Waits for the first reader. Prints the sum of the bytes of each frame.

#include "cuda-driver.hpp"

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <frameshare.hpp>

int main (int argc, char **argv)
try {
  if (argc < 2 || argc > 3) {
    std::fprintf (stderr, "usage: cuda-exporter STREAM [FRAMES]\n");
    return 2;
  }
  unsigned long frames = argc > 2 ? std::strtoul (argv[2], nullptr, 10) : 90;
  Cuda cuda;
  frameshare::Format format ("GRAY8", 640, 360);
  format.rate_numerator = 30;
  frameshare::ExporterConfig config;
  config.memory = FRAMESHARE_MEMORY_CUDA;
  frameshare::Exporter exporter (argv[1], format, config);
  exporter.wait_for_reader ();
  for (unsigned long number = 1; number <= frames; number++) {
    frameshare::NewFrame frame = exporter.acquire ();
    frameshare_plane plane = frame.plane (0);
    unsigned char value = static_cast<unsigned char> (7 * number);
    cuda.call ("cuMemsetD2D8Async", plane.device_pointer, static_cast<size_t> (plane.stride), value, plane.row_bytes,
               static_cast<size_t> (plane.height), cuda.stream);
    // Readers wait for the work that was queued on the stream.
    uint64_t sequence = exporter.publish_on (std::move (frame), cuda.stream);
    std::printf ("frame %" PRIu64 " sum %" PRIu64 "\n", sequence, uint64_t { value } * plane.row_bytes * plane.height);
  }
  exporter.end_stream ();
  return exporter.drain (std::chrono::seconds (30)) ? EXIT_SUCCESS : EXIT_FAILURE;
} catch (const std::exception &error) {
  std::fprintf (stderr, "cuda-exporter: %s\n", error.what ());
  return EXIT_FAILURE;
}
