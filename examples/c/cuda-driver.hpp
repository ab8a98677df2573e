// SPDX-License-Identifier: MIT OR Apache-2.0

// The CUDA driver, loaded at run time, so that the examples build without NVIDIA's toolkit. A program
// that has it includes cuda.h or cuda_runtime.h instead.

#ifndef CUDA_DRIVER_HPP
#define CUDA_DRIVER_HPP

#include <cstddef>
#include <cstdint>
#include <dlfcn.h>
#include <stdexcept>
#include <string>

class Cuda {
public:
  Cuda ()
  {
    library = dlopen ("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr)
      throw std::runtime_error (std::string ("no CUDA driver: ") + dlerror ());
    call ("cuInit", 0u);
    int device = 0;
    call ("cuDeviceGet", &device, 0);
    // The primary context, which the runtime API and libframeshare use, too.
    call ("cuDevicePrimaryCtxRetain", &context, device);
    call ("cuCtxSetCurrent", context);
    call ("cuStreamCreate", &stream, 1u); // CU_STREAM_NON_BLOCKING
  }

  Cuda (const Cuda &) = delete;
  Cuda &operator= (const Cuda &) = delete;

  // Calls a function of the driver, and throws its error.
  template <typename... Arguments> void call (const char *name, Arguments... arguments)
  {
    int result = result_of (name, arguments...);
    if (result != 0)
      throw std::runtime_error (std::string (name) + " failed: " + std::to_string (result));
  }

  // Calls a function of the driver, and returns its CUresult.
  template <typename... Arguments> int result_of (const char *name, Arguments... arguments)
  {
    auto function = reinterpret_cast<int (*) (Arguments...)> (dlsym (library, name));
    if (function == nullptr)
      throw std::runtime_error (std::string (name) + " is not in this driver");
    return function (arguments...);
  }

  void *stream = nullptr;

private:
  void *library = nullptr;
  void *context = nullptr;
};

#endif
