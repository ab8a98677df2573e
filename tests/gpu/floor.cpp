// SPDX-License-Identifier: MIT OR Apache-2.0

// Minimal fenced hand-off between processes: the baseline of frameshare's cost.
//
//   nvcc -O2 -x cu floor.cpp -lcuda -o floor
//   floor READERS PACE_US FRAMES [spin]
//
// One exporter copies a 1080p frame on the device into one of eight slots, records an IPC event and stores the frame's
// number in shared memory; each reader wakes (futex, or spinning), lets its stream wait on that event, copies a few
// bytes and records an event back. Slots and events are imported once. No reader can be slow, die or join late: the
// additional cost of a real hand-off is the cost of handling those. Prints JSON lines for tests/gpu/table.
#include "bare.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>
#include <vector>

constexpr int SLOTS = 8;
constexpr int MAX_READERS = 32;
constexpr size_t FRAME = 1920 * 1080 * 3 / 2;
constexpr size_t BLOCK = size_t(2) << 20; // legacy handles share whole blocks

struct Shared {
  std::atomic<unsigned> published;          // frames so far
  std::atomic<unsigned> arrived;            // 1 for the exporter, 1 for each ready reader, 1 for each completed reader
  std::atomic<unsigned> taken[MAX_READERS]; // frames completed by each reader
  double published_at[SLOTS];
  CUipcMemHandle memory[SLOTS];
  CUipcEventHandle ready[SLOTS];
  CUipcEventHandle released[MAX_READERS][SLOTS];
};

static double cpu_us()
{
  rusage r;
  getrusage(RUSAGE_SELF, &r);
  auto us = [](timeval t) { return t.tv_sec * 1e6 + t.tv_usec; };
  return us(r.ru_utime) + us(r.ru_stime);
}

static CUstream open_device()
{
  CUdevice device;
  CUcontext context;
  CUstream stream;
  CHECK(cuInit(0));
  CHECK(cuDeviceGet(&device, 0));
  CHECK(cuDevicePrimaryCtxRetain(&context, device));
  CHECK(cuCtxSetCurrent(context));
  CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  return stream;
}

static void read_frames(Shared *shared, int reader, const char *name, unsigned frames, bool spin)
{
  while (!shared->arrived.load())
    usleep(1000);
  CUstream stream = open_device();
  CUdeviceptr slot[SLOTS], scratch;
  CUevent ready[SLOTS], released[SLOTS];
  CHECK(cuMemAlloc(&scratch, 4096));
  for (int i = 0; i < SLOTS; i++) {
    CHECK(cuIpcOpenMemHandle(&slot[i], shared->memory[i], CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    CHECK(cuIpcOpenEventHandle(&ready[i], shared->ready[i]));
    CHECK(cuIpcOpenEventHandle(&released[i], shared->released[reader][i]));
  }
  shared->arrived.fetch_add(1);

  std::vector<double> latency;
  double cpu = cpu_us();
  for (unsigned frame = 0; frame < frames; frame++) {
    unsigned seen;
    while ((seen = shared->published.load(std::memory_order_acquire)) <= frame)
      if (!spin)
        sleep_on(&shared->published, seen);
    int i = frame % SLOTS;
    latency.push_back(now_us() - shared->published_at[i]);
    CHECK(cuStreamWaitEvent(stream, ready[i], 0));
    CHECK(cuMemcpyDtoDAsync(scratch, slot[i], 64, stream));
    CHECK(cuEventRecord(released[i], stream));
    shared->taken[reader].store(frame + 1, std::memory_order_release);
    wake(&shared->taken[reader]);
  }
  CHECK(cuStreamSynchronize(stream));
  cpu = cpu_us() - cpu;
  std::sort(latency.begin(), latency.end());
  if (reader == 0)
    printf("{\"suite\": \"floor\", \"case\": \"%s\", \"p50_us\": %.1f, \"p99_us\": %.1f, \"reader_cpu_us\": %.1f}\n", name,
           latency[latency.size() / 2], latency[latency.size() * 99 / 100], cpu / frames);
  fflush(stdout);
  shared->arrived.fetch_add(1);
}

static void export_frames(Shared *shared, int readers, const char *name, double pace, unsigned frames, bool spin)
{
  CUstream stream = open_device();
  CUdeviceptr slot[SLOTS], source;
  CUevent ready[SLOTS], released[MAX_READERS][SLOTS];
  const unsigned flags = CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
  CHECK(cuMemAlloc(&source, FRAME));
  for (int i = 0; i < SLOTS; i++) {
    CHECK(cuMemAlloc(&slot[i], (FRAME + BLOCK - 1) / BLOCK * BLOCK));
    CHECK(cuIpcGetMemHandle(&shared->memory[i], slot[i]));
    CHECK(cuEventCreate(&ready[i], flags));
    CHECK(cuIpcGetEventHandle(&shared->ready[i], ready[i]));
    for (int k = 0; k < readers; k++) {
      CHECK(cuEventCreate(&released[k][i], flags));
      CHECK(cuIpcGetEventHandle(&shared->released[k][i], released[k][i]));
    }
  }
  shared->arrived = 1;
  while (shared->arrived.load() < 1u + readers)
    usleep(1000);
  usleep(50000);

  double cpu = cpu_us(), begin = now_us();
  for (unsigned frame = 0; frame < frames; frame++) {
    int i = frame % SLOTS;
    if (frame >= SLOTS) {
      for (int k = 0; k < readers; k++) {
        unsigned taken;
        while ((taken = shared->taken[k].load(std::memory_order_acquire)) + SLOTS <= frame)
          if (!spin)
            sleep_on(&shared->taken[k], taken);
        CHECK(cuStreamWaitEvent(stream, released[k][i], 0));
      }
    }
    CHECK(cuMemcpyDtoDAsync(slot[i], source, FRAME, stream));
    CHECK(cuEventRecord(ready[i], stream));
    shared->published_at[i] = now_us();
    shared->published.store(frame + 1, std::memory_order_release);
    wake(&shared->published);
    for (double next = begin + (frame + 1) * pace; pace > 0 && now_us() < next;)
      if (next - now_us() > 200)
        usleep(100);
  }
  while (shared->arrived.load() < 1u + 2 * readers)
    usleep(100);
  double elapsed = now_us() - begin;
  cpu = cpu_us() - cpu;
  printf("{\"suite\": \"floor\", \"case\": \"%s\", \"frames_per_s\": %.0f, \"exporter_cpu_us\": %.1f}\n", name,
         frames / elapsed * 1e6, cpu / frames);
}

int main(int argc, char **argv)
{
  int readers = argc > 3 ? atoi(argv[1]) : 0;
  if (readers < 1 || readers > MAX_READERS) {
    fprintf(stderr, "usage: floor READERS PACE_US FRAMES [spin]   (1 to %d readers)\n", MAX_READERS);
    return 2;
  }
  double pace = atof(argv[2]);
  unsigned frames = atoi(argv[3]);
  bool spin = argc > 4 && !strcmp(argv[4], "spin");
  char name[80];
  snprintf(name, sizeof name, "%d reader(s), %.0f us a frame, %s", readers, pace, spin ? "spin" : "futex");

  void *page = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  Shared *shared = static_cast<Shared *>(page);
  // Fork before CUDA is initialized: a context does not survive a fork.
  for (int k = 0; k < readers; k++) {
    if (!fork()) {
      read_frames(shared, k, name, frames, spin);
      _exit(0);
    }
  }
  export_frames(shared, readers, name, pace, frames, spin);
  int failed = 0, status;
  while (wait(&status) > 0)
    failed |= status != 0;
  return failed;
}
