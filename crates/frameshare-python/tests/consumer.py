# SPDX-License-Identifier: MIT OR Apache-2.0

"""A consumer of DLPack and of CUDA streams in ctypes: it checks what libraries take for granted."""

import ctypes
from ctypes import POINTER, byref, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p

import frameshare

CPU, CUDA = 1, 2
READ_ONLY, IS_COPIED = 1, 2


class Device(ctypes.Structure):
    _fields_ = [("kind", c_int32), ("number", c_int32)]


class DataType(ctypes.Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device", Device),
        ("ndim", c_int32),
        ("dtype", DataType),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class Managed(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", c_void_p), ("deleter", c_void_p)]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("context", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", Tensor),
    ]


Deleter = ctypes.CFUNCTYPE(None, c_void_p)

_python = ctypes.pythonapi
_python.PyCapsule_GetName.restype = c_char_p
_python.PyCapsule_GetName.argtypes = [ctypes.py_object]
_python.PyCapsule_GetPointer.restype = c_void_p
_python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, c_char_p]
_python.PyCapsule_SetName.argtypes = [ctypes.py_object, c_char_p]

# Python keeps the pointer of a name.
USED = {b"dltensor": b"used_dltensor", b"dltensor_versioned": b"used_dltensor_versioned"}


class Imported:
    """A tensor that was taken out of a capsule, until `free`."""

    def __init__(self, capsule):
        name = _python.PyCapsule_GetName(capsule)
        self.is_versioned = name == b"dltensor_versioned"
        self.address = _python.PyCapsule_GetPointer(capsule, name)
        kind = Versioned if self.is_versioned else Managed
        self.managed = kind.from_address(self.address)
        assert _python.PyCapsule_SetName(capsule, USED[name]) == 0
        tensor = self.managed.tensor
        self.data = tensor.data
        self.device = (tensor.device.kind, tensor.device.number)
        self.dtype = (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes)
        self.shape = tuple(tensor.shape[: tensor.ndim])
        self.strides = tuple(tensor.strides[: tensor.ndim])
        self.byte_offset = tensor.byte_offset
        self.version = (self.managed.major, self.managed.minor) if self.is_versioned else None
        self.flags = self.managed.flags if self.is_versioned else None
        self.deleter = self.managed.deleter

    def free(self):
        """Calls the deleter. ctypes releases the GIL meanwhile."""
        Deleter(self.deleter)(self.address)


class OnHost:
    """An array that is asked for as a copy in host memory."""

    def __init__(self, owner):
        self.owner = owner

    def __dlpack__(self, **arguments):
        return self.owner.__dlpack__(**{**arguments, "dl_device": (CPU, 0), "copy": True})

    def __dlpack_device__(self):
        return (CPU, 0)


def copy_on_host(owner):
    """Returns a NumPy array: `numpy.from_dlpack(owner, device="cpu", copy=True)`, which NumPy has since 2.1."""
    import numpy

    version = numpy.lib.NumpyVersion(numpy.__version__)
    if version < "2.1.0":
        return numpy.from_dlpack(OnHost(owner))
    copy = numpy.from_dlpack(owner, device="cpu", copy=True)
    # NumPy 2.2 marks all arrays of DLPack as read-only.
    assert copy.flags.writeable or version < "2.4.0"
    return copy


class Cuda:
    """The driver, simulated or not, in the primary context of GPU 0."""

    def __init__(self):
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        context = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", byref(context), 0)
        self.call("cuCtxPushCurrent_v2", context)

    def call(self, name, *arguments):
        status = getattr(self.driver, name)(*arguments)
        assert status == 0, f"{name} returned {status}"

    def stream(self):
        """A stream that does not wait for the default stream."""
        stream = c_void_p()
        self.call("cuStreamCreate", byref(stream), 1)
        return stream.value

    def memory(self, size):
        start = c_uint64()
        self.call("cuMemAlloc_v2", byref(start), ctypes.c_size_t(size))
        return start.value

    def copy(self, to, start, size, stream):
        self.call("cuMemcpyDtoDAsync_v2", c_uint64(to), c_uint64(start), ctypes.c_size_t(size), c_void_p(stream))

    def wait(self, stream):
        self.call("cuStreamSynchronize", c_void_p(stream))

    def read(self, start, size):
        data = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoHAsync_v2", data, c_uint64(start), ctypes.c_size_t(size), None)
        self.call("cuStreamSynchronize", None)
        return data.raw


def take(stream):
    """The next frame; it has to come."""
    frame = stream.next(60)
    assert isinstance(frame, frameshare.Frame)
    return frame
