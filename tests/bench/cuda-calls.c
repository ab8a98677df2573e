// SPDX-License-Identifier: MIT OR Apache-2.0
// Counts CUDA driver calls of a program that looks them up with dlsym(3), and the time in them.
//
//   cc -shared -fPIC -O2 -o libcuda-calls.so tests/bench/cuda-calls.c -ldl
//   LD_PRELOAD=libcuda-calls.so CUDA_CALLS=FILE program
//
// SIGUSR2 starts counting, and the next one ends it and writes FILE.PID: lines of a caller, a function,
// the number of its calls and the nanoseconds in them. Calls from a module whose path contains
// "frameshare" are ours; all others are those of GStreamer's libraries, the decoder's among them.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { OURS, OTHERS, CALLERS };

typedef unsigned long word;
// Integers and pointers only, as in all functions below, and IPC handles, which are passed by value: eight
// words on the stack. Words there are copied whether or not the function has so many.
typedef word function(word, word, word, word, word, word, word, word, word, word, word, word, word, word);

struct counted {
    const char *name;
    _Atomic(void *) real;
    atomic_ulong calls[CALLERS], ns[CALLERS];
};

static atomic_int counting;

static int caller(void *address) {
    static _Thread_local void *last;
    static _Thread_local int is;
    if (address != last) {
        Dl_info module = {0};
        // The main program of the benchmark contains the plugin.
        is = dladdr(address, &module) && module.dli_fname && strstr(module.dli_fname, "frameshare") ? OURS : OTHERS;
        last = address;
    }
    return is;
}

static unsigned long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ul + time.tv_nsec;
}

static void count(struct counted *one, void *from, unsigned long begin) {
    if (atomic_load_explicit(&counting, memory_order_relaxed)) {
        int who = caller(from);
        atomic_fetch_add(&one->calls[who], 1);
        atomic_fetch_add(&one->ns[who], now() - begin);
    }
}

#define FUNCTIONS(X) \
    X(cuInit) X(cuDriverGetVersion) X(cuCtxPushCurrent_v2) X(cuCtxPopCurrent_v2) X(cuCtxGetCurrent) \
    X(cuCtxSetCurrent) X(cuCtxSynchronize) X(cuCtxRecordEvent) X(cuCtxGetDevice) \
    X(cuThreadExchangeStreamCaptureMode) X(cuStreamIsCapturing) X(cuStreamQuery) X(cuStreamSynchronize) \
    X(cuStreamWaitEvent) X(cuStreamWriteValue64_v2) X(cuStreamWaitValue64_v2) X(cuStreamBatchMemOp_v2) \
    X(cuStreamGetCtx) X(cuStreamCreate) X(cuStreamDestroy_v2) X(cuEventCreate) X(cuEventRecord) \
    X(cuEventQuery) X(cuEventSynchronize) X(cuEventDestroy_v2) X(cuIpcGetEventHandle) X(cuIpcOpenEventHandle) \
    X(cuIpcGetMemHandle) X(cuIpcOpenMemHandle_v2) X(cuIpcCloseMemHandle) X(cuPointerGetAttribute) \
    X(cuMemGetAddressRange_v2) X(cuMemGetInfo_v2) X(cuMemAlloc_v2) X(cuMemAllocPitch_v2) X(cuMemFree_v2) \
    X(cuMemFreeAsync) X(cuMemAllocFromPoolAsync) X(cuMemCreate) X(cuMemMap) X(cuMemUnmap) X(cuMemRelease) \
    X(cuMemSetAccess) X(cuMemAddressReserve) X(cuMemAddressFree) X(cuMemcpy2DAsync_v2) X(cuMemcpy2D_v2) \
    X(cuMemcpyDtoDAsync_v2) X(cuMemcpyDtoHAsync_v2) X(cuMemcpyHtoDAsync_v2) X(cuMemsetD8Async) \
    X(cuMemHostRegister_v2) X(cuMemHostUnregister) X(cuLaunchHostFunc) X(cuLaunchKernel)

#define WRAPPER(NAME) \
    static struct counted counted_##NAME = {.name = #NAME}; \
    static word NAME(word a, word b, word c, word d, word e, word f, word g, word h, word i, word j, word k, word l, \
                     word m, word n) { \
        function *real = (function *)atomic_load(&counted_##NAME.real); \
        unsigned long begin = now(); \
        word result = real(a, b, c, d, e, f, g, h, i, j, k, l, m, n); \
        count(&counted_##NAME, __builtin_return_address(0), begin); \
        return result; \
    }
FUNCTIONS(WRAPPER)

static const struct {
    struct counted *counted;
    function *wrapper;
} functions[] = {
#define ENTRY(NAME) {&counted_##NAME, NAME},
    FUNCTIONS(ENTRY)
};
enum { COUNT = sizeof functions / sizeof *functions };

void *dlsym(void *handle, const char *name) {
    static _Atomic(void *) real;
    if (!atomic_load(&real)) {
        void *found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
        atomic_store(&real, found ? found : dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5"));
    }
    void *(*find)(void *, const char *) = (void *(*)(void *, const char *))atomic_load(&real);
    if (strncmp(name, "cu", 2)) {
        return find(handle, name);
    }
    void *found = find(handle, name);
    for (int at = 0; found && at < COUNT; at++) {
        if (!strcmp(name, functions[at].counted->name)) {
            atomic_store(&functions[at].counted->real, found);
            return (void *)functions[at].wrapper;
        }
    }
    return found;
}

static void report(void) {
    static const char *const who[] = {[OURS] = "frameshare", [OTHERS] = "others"};
    const char *prefix = getenv("CUDA_CALLS");
    char path[4096];
    snprintf(path, sizeof path, "%s.%d", prefix ? prefix : "cuda-calls", getpid());
    // No stdio: the signal may have interrupted malloc(3).
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    for (int at = 0; file >= 0 && at < COUNT; at++) {
        struct counted *one = functions[at].counted;
        for (int caller = 0; caller < CALLERS; caller++) {
            if (one->calls[caller]) {
                dprintf(file, "%s %s %lu %lu\n", who[caller], one->name, one->calls[caller], one->ns[caller]);
            }
        }
    }
    if (file >= 0) {
        close(file);
    }
}

static void begin_or_end(int signal) {
    (void)signal;
    if (atomic_exchange(&counting, 0)) {
        report();
        return;
    }
    for (int at = 0; at < COUNT; at++) {
        memset(functions[at].counted->calls, 0, sizeof functions[at].counted->calls);
        memset(functions[at].counted->ns, 0, sizeof functions[at].counted->ns);
    }
    atomic_store(&counting, 1);
}

__attribute__((constructor)) static void install(void) {
    signal(SIGUSR2, begin_or_end);
}
