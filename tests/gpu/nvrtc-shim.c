// SPDX-License-Identifier: MIT OR Apache-2.0

/* Replacement for libnvrtc (GST_CUDA_NVRTC_LIBNAME): GStreamer 1.26 compiles for compute_52 or compute_30, which CUDA 13
 * no longer supports, so cudaconvert, cudascale and cudacompositor do not register. This library compiles for compute_75
 * instead, and forwards all other calls to libnvrtc.so.13. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *Program;

static void *real(const char *name)
{
  static void *lib;
  if (!lib && !(lib = dlopen("libnvrtc.so.13", RTLD_NOW))) {
    fprintf(stderr, "nvrtc-shim: %s\n", dlerror());
    exit(1);
  }
  return dlsym(lib, name);
}

int nvrtcCompileProgram(Program p, int n, const char *const *options)
{
  int (*compile)(Program, int, const char *const *) = real("nvrtcCompileProgram");
  const char **ours = calloc(n + 1, sizeof *ours);
  if (!ours)
    return 1; /* NVRTC_ERROR_OUT_OF_MEMORY */
  for (int i = 0; i < n; i++) {
    int old = strstr(options[i], "=compute_52") || strstr(options[i], "=compute_30");
    ours[i] = old ? "--gpu-architecture=compute_75" : options[i];
  }
  int result = compile(p, n, ours);
  free(ours);
  return result;
}

int nvrtcCreateProgram(Program *p, const char *source, const char *name, int n, const char *const *headers,
                       const char *const *names)
{
  int (*create)(Program *, const char *, const char *, int, const char *const *, const char *const *) =
      real("nvrtcCreateProgram");
  return create(p, source, name, n, headers, names);
}

int nvrtcDestroyProgram(Program *p)
{
  int (*destroy)(Program *) = real("nvrtcDestroyProgram");
  return destroy(p);
}

/* The calls that read from a program have the same signature. */
#define READ(call)                                \
  int call(Program p, void *out)                  \
  {                                               \
    int (*read)(Program, void *) = real(#call);   \
    return read(p, out);                          \
  }
READ(nvrtcGetPTX)
READ(nvrtcGetPTXSize)
READ(nvrtcGetCUBIN)
READ(nvrtcGetCUBINSize)
READ(nvrtcGetProgramLog)
READ(nvrtcGetProgramLogSize)
