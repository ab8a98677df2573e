# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the cases of the suite share: array libraries behind one interface, exporters, figures of this process."""

import contextlib
import ctypes
import gc
import hashlib
import os
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
#: The runtime of GStreamer that enter-runtime.sh has unpacked; none without a GPU.
RUNTIME = os.environ.get("RUNTIME", "")


#: The library of C.
LIBC = ctypes.CDLL(None)
#: A function of C that takes the time of its argument, in microseconds.
USLEEP = ctypes.cast(LIBC.usleep, ctypes.c_void_p)


class Skip(Exception):
    """The case cannot run on this machine, for the reason that is the text."""


def needs(module):
    """Import a module, or skip the case."""
    try:
        return __import__(module, fromlist=["*"])
    except ImportError as error:
        raise Skip(f"{module}: {error}") from error


class Driver:
    """CUDA's driver by ctypes, as an array library: the only one that also runs on the simulated driver."""

    name = "driver"

    def __init__(self, ordinal=0):
        try:
            self.cuda = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise Skip(str(error)) from error
        self.call("cuInit", 0)
        self.context, self.device, devices = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(devices))
        if ordinal >= devices.value:
            raise Skip(f"this machine has no GPU {ordinal}")
        self.call("cuDeviceGet", ctypes.byref(self.device), ordinal)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), self.device)
        self.call("cuCtxSetCurrent", self.context)
        self.stream = self.new_stream()

    def call(self, name, *arguments):
        code = getattr(self.cuda, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name} returned {code}")

    def new_stream(self):
        stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(stream), 1)
        return stream

    def green_stream(self):
        """Return a stream of a green context, which has a part of the GPU."""
        if not hasattr(self.cuda, "cuGreenCtxStreamCreate"):
            raise Skip("the driver has no streams of green contexts")
        # With room for the CUdevResource of later versions.
        whole, part = (ctypes.create_string_buffer(512) for _ in range(2))
        description, green, stream = (ctypes.c_void_p() for _ in range(3))
        self.call("cuDeviceGetDevResource", self.device, whole, 1)
        self.call("cuDevSmResourceSplitByCount", part, ctypes.byref(ctypes.c_uint(1)), whole, None, 0, 16)
        self.call("cuDevResourceGenerateDesc", ctypes.byref(description), part, 1)
        self.call("cuGreenCtxCreate", ctypes.byref(green), description, self.device, 1)
        self.call("cuGreenCtxStreamCreate", ctypes.byref(stream), green, 1, 0)
        return stream

    def synchronize(self):
        self.call("cuStreamSynchronize", self.stream)

    def allocate(self, size):
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer.value

    def fill(self, pointer, value, size, stream=None):
        self.call(
            "cuMemsetD8Async",
            ctypes.c_uint64(pointer),
            ctypes.c_ubyte(value),
            ctypes.c_size_t(size),
            stream or self.stream,
        )

    def copy(self, target, pointer, size, stream):
        sides = ctypes.c_uint64(target), ctypes.c_uint64(pointer)
        self.call("cuMemcpyDtoDAsync_v2", *sides, ctypes.c_size_t(size), stream)

    def stall(self, stream, ms):
        """Keep a stream busy, by a host function that needs neither the GPU nor the GIL."""
        for _ in range(-(-ms // 500)):
            self.call("cuLaunchHostFunc", stream, USLEEP, ctypes.c_void_p(1000 * min(ms, 500)))

    def bytes_at(self, pointer, size):
        """Read memory on the stream, behind the work that is queued there."""
        target = (ctypes.c_ubyte * size)()
        self.call(
            "cuMemcpyDtoHAsync_v2", target, ctypes.c_uint64(pointer), ctypes.c_size_t(size), self.stream
        )
        self.synchronize()
        return bytes(target)

    def free_memory(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def import_of(self, plane, stream=None):
        """Import a plane by DLPack on a stream, by default this object's; return pointer, shape, strides and the capsule."""
        capsule = plane.__dlpack__(stream=(stream or self.stream).value, max_version=(1, 1))
        return *parse_capsule(capsule), capsule

    def host(self, plane):
        """Return the rows of a plane without padding."""
        pointer, shape, strides, _capsule = self.import_of(plane)
        row = 1
        for length in shape[1:]:
            row *= length
        data = self.bytes_at(pointer, strides[0] * (shape[0] - 1) + row)
        return b"".join(data[start : start + row] for start in range(0, strides[0] * shape[0], strides[0]))


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


def parse_capsule(capsule):
    """Return pointer, shape and strides of a versioned capsule, which keeps what it has."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = _Versioned.from_address(get(capsule, b"dltensor_versioned")).tensor
    dimensions = range(tensor.ndim)
    return (
        (tensor.data or 0) + tensor.byte_offset,
        tuple(tensor.shape[index] for index in dimensions),
        tuple(tensor.strides[index] for index in dimensions),
    )


class Compact:
    """A plane as a private copy without padding, made in GPU memory."""

    def __init__(self, plane):
        self.plane = plane

    def __dlpack_device__(self):
        return self.plane.__dlpack_device__()

    def __dlpack__(self, **options):
        return self.plane.__dlpack__(**{**options, "copy": True})


class Torch:
    name = "torch"
    needs_copies = False

    def __init__(self):
        self.torch = needs("torch")
        if not self.torch.cuda.is_available():
            raise Skip("torch finds no GPU")
        self.torch.cuda.init()

    def of(self, plane):
        return self.torch.from_dlpack(plane)

    def bytes(self, array):
        return array.contiguous().cpu().numpy().tobytes()

    def pointer(self, array):
        return array.data_ptr()

    def allocated(self):
        return self.torch.cuda.memory_allocated()


class Cupy:
    name = "cupy"
    needs_copies = False

    def __init__(self):
        self.cupy = needs("cupy")

    def of(self, plane):
        return self.cupy.from_dlpack(plane)

    def bytes(self, array):
        return self.cupy.asnumpy(self.cupy.ascontiguousarray(array)).tobytes()

    def pointer(self, array):
        return array.data.ptr

    def allocated(self):
        return self.cupy.get_default_memory_pool().used_bytes()


class Jax:
    name = "jax"
    #: JAX refuses rows with padding, as the decoder's are.
    needs_copies = True

    def __init__(self):
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        self.jax = needs("jax")
        if self.jax.default_backend() != "gpu":
            raise Skip("JAX finds no GPU")

    def of(self, plane):
        return self.jax.dlpack.from_dlpack(Compact(plane))

    def bytes(self, array):
        import numpy

        return numpy.asarray(array).tobytes()

    def pointer(self, array):
        return array.unsafe_buffer_pointer()

    def allocated(self):
        return self.jax.local_devices()[0].memory_stats()["bytes_in_use"]


class Numba:
    name = "numba"
    needs_copies = False

    def __init__(self):
        self.cuda = needs("numba.cuda")
        if not self.cuda.is_available():
            raise Skip("numba.cuda finds no GPU")

    def of(self, plane):
        return self.cuda.as_cuda_array(plane)

    def bytes(self, array):
        import numpy

        return numpy.ascontiguousarray(array.copy_to_host()).tobytes()

    def pointer(self, array):
        return array.device_ctypes_pointer.value

    def allocated(self):
        return 0


LIBRARIES = {"torch": Torch, "cupy": Cupy, "jax": Jax, "numba": Numba}


# Figures of this process.


def figures(driver):
    """Return resident memory in KiB, open descriptors, and the GPU's used memory in KiB (of all processes)."""
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
    return {
        "resident_kib": resident,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "gpu_free_kib": driver.free_memory() // 1024,
    }


# Exporters in processes of their own.


class Process:
    """A process that ends with the block."""

    def __init__(self, command, **options):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, **options)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def kill(self):
        os.kill(self.process.pid, signal.SIGKILL)
        return time.monotonic()


def publisher(name, **options):
    """Start peers.py as an exporter of frames on the GPU: a frame is filled with its number modulo 251."""
    arguments = [f"{key}={value}" for key, value in options.items()]
    return Process([sys.executable, os.path.join(HERE, "peers.py"), name, *arguments])


def in_gst(*command):
    """Return a command inside the runtime, as enter-runtime.sh does it."""
    if not RUNTIME:
        raise Skip("there is no runtime with GStreamer")
    variables = [
        "LD_LIBRARY_PATH=/usr/local/nvidia/lib64:/cuda",
        "GST_REGISTRY=/tmp/registry.bin",
        "GST_CUDA_NVRTC_LIBNAME=/usr/lib/libnvrtc-shim.so",
        "GST_PLUGIN_PATH=/work",
        "HOME=/tmp",
        "XDG_RUNTIME_DIR=/tmp",
    ]
    return ["chroot", RUNTIME, "/usr/bin/env", *variables, *command]


def decoded(clip, socket, sink="", decoder=""):
    """Start NVIDIA's decoder with a clip; the frames of /tmp/SOCKET wait for the first reader."""
    pipeline = (
        f"filesrc location=/work/{clip} ! h264parse ! nvh264dec {decoder} "
        f"! framesharesink socket-path=/tmp/{socket} wait-for-connection=true sync=false {sink}"
    )
    path = os.path.join(RUNTIME, "tmp", socket)
    with contextlib.suppress(FileNotFoundError):
        os.remove(path)
    return path, Process(in_gst("gst-launch-1.0", "-q", "--no-fault", *pipeline.split()))


def sums_of(clip):
    """Return the checksums of a clip's decoded frames as I420, by GStreamer alone."""
    plain = "videoconvert ! video/x-raw,format=I420 ! checksumsink sync=false"
    pipeline = f"filesrc location=/work/{clip} ! h264parse ! nvh264dec ! cudadownload ! {plain}"
    output = subprocess.run(
        in_gst("gst-launch-1.0", "-q", *pipeline.split()), stdout=subprocess.PIPE, timeout=60, check=True
    )
    sums = [line.split()[1] for line in output.stdout.decode().splitlines() if len(line.split()) == 2]
    if not sums:
        raise RuntimeError(f"no frame of {clip} was decoded")
    return sums


def sum_of(library, frame):
    """Return the checksum of an NV12 frame as I420."""
    luma, chroma = (library.of(plane) for plane in frame.planes)
    hasher = hashlib.sha1(library.bytes(luma))
    # The chroma is split on the host: it is the bytes that are compared.
    import numpy

    pairs = numpy.frombuffer(library.bytes(chroma), dtype=numpy.uint8).reshape(-1, 2)
    hasher.update(pairs[:, 0].tobytes())
    hasher.update(pairs[:, 1].tobytes())
    return hasher.hexdigest()
