// SPDX-License-Identifier: MIT OR Apache-2.0

// Frames in CUDA memory and streams of the caller: cuda STREAM
//
// Exporter and readers are in this process; it needs a GPU or the simulated driver.

#include "../../../../examples/c/cuda-driver.hpp"
#include "check.h"

#include <frameshare.hpp>
#include <thread>
#include <vector>

using namespace std::chrono_literals;

enum { WIDTH = 64, HEIGHT = 48 };

static void
fill (Cuda &cuda, const frameshare_plane &plane, unsigned char value)
{
  CHECK (plane.device_pointer != 0 && plane.data == nullptr && plane.writable == nullptr);
  cuda.call ("cuMemsetD2D8Async", plane.device_pointer, static_cast<size_t> (plane.stride), value, plane.row_bytes,
             static_cast<size_t> (plane.height), cuda.stream);
}

static unsigned
corner (Cuda &cuda, const frameshare_plane &plane)
{
  unsigned char byte = 0;
  uint64_t from = plane.device_pointer + static_cast<uint64_t> (plane.stride) * (plane.height - 1) + plane.width - 1;
  cuda.call ("cuMemcpyDtoHAsync_v2", static_cast<void *> (&byte), from, sizeof byte, cuda.stream);
  cuda.call ("cuStreamSynchronize", cuda.stream);
  return byte;
}

// Frames come back without their reader's help.
static void
wait_for_release (const frameshare::Reader &reader)
{
  for (unsigned waited_ms = 0; reader.stats ().held > 0; waited_ms++) {
    CHECK (waited_ms < 60000);
    std::this_thread::sleep_for (1ms);
  }
}

// Frames that work of another context writes, on a stream of it and on its NULL stream, late.
static void
publish_from_another_context (Cuda &cuda, frameshare::Exporter &exporter, frameshare::Reader &reader,
                              frameshare::Reader &host_reader)
{
  static auto pause = [] (void *) { std::this_thread::sleep_for (200ms); };
  void *own = nullptr, *other = nullptr, *stream = nullptr;
  cuda.call ("cuCtxGetCurrent", &own);
  cuda.call ("cuCtxCreate_v2", &other, 0U, 0);
  cuda.call ("cuStreamCreate", &stream, 1U);
  unsigned char number = 100;
  auto fill_late = [&] (const frameshare_plane &plane, void *writer) {
    cuda.call ("cuLaunchHostFunc", writer, static_cast<void (*) (void *)> (pause), static_cast<void *> (nullptr));
    cuda.call ("cuMemsetD2D8Async", plane.device_pointer, static_cast<size_t> (plane.stride), number, plane.row_bytes,
               static_cast<size_t> (plane.height), writer);
  };
  // CU_STREAM_LEGACY is the NULL stream.
  for (void *writer : { stream, static_cast<void *> (nullptr), reinterpret_cast<void *> (1) }) {
    for (bool is_retried : { false, true }) {
      number++;
      frameshare::NewFrame made = exporter.acquire ();
      frameshare_plane plane = made.plane (0);
      cuda.call ("cuCtxSetCurrent", other);
      fill_late (plane, writer);
      if (is_retried) {
        // A full reader: the frame stays the caller's.
        std::vector<frameshare::Frame> held;
        cuda.call ("cuCtxSetCurrent", own);
        for (unsigned credit = reader.stats ().credit; held.size () < credit;) {
          exporter.publish (exporter.acquire ());
          held.push_back (reader.next (60s));
          host_reader.next (60s);
        }
        cuda.call ("cuCtxSetCurrent", other);
        frameshare_publish_options options = FRAMESHARE_PUBLISH_OPTIONS_INIT;
        options.timeout_ns = 0;
        RETURNS (FRAMESHARE_TIMEOUT,
                 frameshare_exporter_publish_on (exporter.get (), made.get (), writer, &options, nullptr));
      }
      exporter.publish_on (std::move (made), writer);
      cuda.call ("cuCtxSetCurrent", own);
      frameshare::Frame copy = host_reader.next (60s);
      CHECK (copy.plane (0).data[0] == number);
      frameshare::Frame frame = reader.next (60s);
      CHECK (corner (cuda, frame.plane_on (0, cuda.stream)) == number);
    }
    wait_for_release (reader);
  }
  // One of a former format, whose memory is freed when the work is done.
  frameshare::Format former ("GRAY8", WIDTH, HEIGHT), larger ("GRAY8", 2 * WIDTH, HEIGHT);
  frameshare::NewFrame late = exporter.acquire ();
  frameshare_plane plane = late.plane (0);
  cuda.call ("cuCtxSetCurrent", other);
  fill_late (plane, stream);
  cuda.call ("cuCtxSetCurrent", own);
  exporter.set_format (larger);
  REFUSED ("format", frameshare_exporter_publish_on (exporter.get (), late.release (), stream, nullptr, nullptr));
  for (int i = 0; i < 3; i++) {
    exporter.publish (exporter.acquire ());
    host_reader.next (60s);
    reader.next (60s);
  }
  // A frame whose use in the other context has ended.
  exporter.publish (exporter.acquire ());
  host_reader.next (60s);
  frameshare::Frame read = reader.next (60s);
  read.used_on_stream (stream);
  read.done_on (stream);
  // Nothing of a context is used after it was destroyed, behind its work.
  cuda.call ("cuCtxSetCurrent", other);
  cuda.call ("cuStreamSynchronize", stream);
  cuda.call ("cuCtxDestroy_v2", other);
  cuda.call ("cuCtxSetCurrent", own);
  read.release ();
  wait_for_release (reader);
  exporter.set_format (former);
}

int
main (int argc, char **argv)
try {
  CHECK (argc == 2);
  const char *stream = argv[1];
  Cuda cuda;
  frameshare::Format format ("GRAY8", WIDTH, HEIGHT);
  frameshare::ExporterConfig memory;
  memory.memory = FRAMESHARE_MEMORY_CUDA;
  frameshare::ReaderConfig config;
  config.policy = FRAMESHARE_POLICY_LOSSLESS;
  config.reconnect = false;
  config.memory = FRAMESHARE_MEMORY_CUDA;

  // GPUs and contexts that do not exist.
  config.cuda_device_id = 99;
  frameshare_reader *none;
  REFUSED ("cuda_device_id", frameshare_reader_open (stream, &config, &none));
  config.cuda_device_id = -1;
  REFUSED ("cuda_device_id is -1", frameshare_reader_open (stream, &config, &none));
  config.cuda_uuid = "GPU-no";
  REFUSED ("cuda_uuid", frameshare_reader_open (stream, &config, &none));
  config.cuda_device_id = 0;
  unsigned char uuid[16];
  char text[41] = "GPU-";
  cuda.call ("cuDeviceGetUuid", static_cast<void *> (uuid), 0);
  for (int i = 0, at = 4; i < 16; i++)
    at += snprintf (text + at, sizeof text - static_cast<size_t> (at), "%s%02x",
                    i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
  config.cuda_uuid = text;

  {
    frameshare::Exporter exporter (stream, format, memory);
    frameshare::Reader reader (stream, config);
    frameshare::ReaderConfig host = config;
    host.memory = FRAMESHARE_MEMORY_HOST;
    frameshare::Reader host_reader (stream, host);

    for (unsigned number = 1; number <= 8; number++) {
      frameshare::NewFrame made = exporter.acquire ();
      fill (cuda, made.plane (0), static_cast<unsigned char> (number));
      if (number % 2 == 0)
        exporter.publish (std::move (made));
      else
        exporter.publish_on (std::move (made), cuda.stream);

      frameshare::Frame copy = host_reader.next (60s);
      CHECK (copy.info ().memory == FRAMESHARE_MEMORY_HOST && copy.plane (0).data[0] == number);

      frameshare::Frame frame = reader.next (60s);
      CHECK (frame.info ().memory == FRAMESHARE_MEMORY_CUDA);
      unsigned char rows[WIDTH * HEIGHT];
      const void *data;
      size_t byte_count;
      RETURNS (FRAMESHARE_UNSUPPORTED, frameshare_frame_copy_plane (frame.get (), 0, rows, sizeof rows, WIDTH));
      RETURNS (FRAMESHARE_UNSUPPORTED, frameshare_frame_get_data (frame.get (), &data, &byte_count));

      // Without a stream, with one, and with several.
      if (number % 3 == 0) {
        frame.wait_on (cuda.stream);
        CHECK (corner (cuda, frame.plane (0)) == number);
      } else {
        CHECK (corner (cuda, frame.plane_on (0, cuda.stream)) == number);
        frame.used_on_stream (nullptr);
      }

      // CU_STREAM_PER_THREAD is a different stream on each thread.
      void *per_thread = reinterpret_cast<void *> (2);
      frameshare_plane plane = FRAMESHARE_PLANE_INIT;
      REFUSED ("per-thread", frameshare_frame_get_plane_on (frame.get (), 0, per_thread, &plane));
      CHECK (plane.device_pointer == 0);
      REFUSED ("per-thread", frameshare_frame_wait_on (frame.get (), per_thread));
      REFUSED ("per-thread", frameshare_frame_used_on_stream (frame.get (), per_thread));
      REFUSED ("per-thread", frameshare_frame_done_on (frame.get (), per_thread));
      if (number % 4 == 2) {
        void *temporary;
        cuda.call ("cuStreamCreate", &temporary, 1U);
        CHECK (frame.plane_on (0, temporary).device_pointer != 0);
        frame.done_on (temporary);
        cuda.call ("cuStreamDestroy_v2", temporary);
      }
      if (number % 4 == 0) {
        frame.release_on (cuda.stream);
      } else if (number % 4 == 1) {
        bool is_refused = false;
        try {
          frame.release_on (per_thread);
        } catch (const frameshare::Error &error) {
          is_refused = error.status () == FRAMESHARE_INVALID_ARGUMENT;
        }
        CHECK (is_refused && !frame); // It is released all the same.
      }
      frame.release ();
      wait_for_release (reader);
    }
    publish_from_another_context (cuda, exporter, reader, host_reader);
    frameshare::NewFrame unpublished = exporter.acquire ();
    REFUSED ("per-thread", frameshare_exporter_publish_on (exporter.get (), unpublished.release (),
                                                           reinterpret_cast<void *> (2), nullptr, nullptr));
    frameshare_exporter_end_stream (exporter.get ());
    CHECK (exporter.drain (60s));
  }
  OK (frameshare_wait_for_gpu (INT64_C (60000000000)));
  puts ("contract kept");
  return 0;
} catch (const std::exception &error) {
  fprintf (stderr, "cuda: %s\n", error.what ());
  return 1;
}
