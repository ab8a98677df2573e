// SPDX-License-Identifier: MIT OR Apache-2.0

// Common parts of the baseline programs in this folder: checked calls, the clock, waiting on a shared word.
#pragma once

#include <cuda.h>
#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdio>
#include <cstdlib>

#define CHECK(call)                                                                    \
  do {                                                                                 \
    CUresult result_ = (call);                                                         \
    if (result_ != CUDA_SUCCESS) {                                                     \
      fprintf(stderr, "%s: %s: %d\n", program_invocation_short_name, #call, result_); \
      exit(1);                                                                         \
    }                                                                                  \
  } while (0)

inline double now_us()
{
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

inline void sleep_on(std::atomic<unsigned> *word, unsigned value)
{
  syscall(SYS_futex, word, FUTEX_WAIT, value, nullptr, nullptr, 0);
}

inline void wake(std::atomic<unsigned> *word)
{
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}
