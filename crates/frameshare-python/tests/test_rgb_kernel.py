# SPDX-License-Identifier: MIT OR Apache-2.0
"""The CUDA kernel, compiled for the host by a C++ compiler, against the reference."""

import contextlib
import ctypes
import shutil
import subprocess
import sys
import types

import numpy as np
import pytest
from rgb_reference import FORMATS, difference, make_frame

import frameshare._rgb
from frameshare._rgb import _kernel, rgb
from frameshare._rgb._formats import FORMATS as PIXELS
from frameshare._rgb._request import Request

COMPILER = shutil.which("c++") or shutil.which("g++")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")

HOST = """
#include <cmath>
#include <cstring>
using std::fmaxf;
using std::fminf;
struct Index { int x, y; };
static Index blockIdx, blockDim = {32, 8}, threadIdx;
#define __device__ static
#define __global__
static unsigned short to_half_on_host(float value)
{
    _Float16 half = (_Float16)value;
    unsigned short bits;
    std::memcpy(&bits, &half, 2);
    return bits;
}
#define TO_HALF to_half_on_host
"""
RUN = """
template <typename... Arguments>
static void run(void (*kernel)(Arguments...), int across, int down, Arguments... arguments)
{
    for (blockIdx.y = 0; blockIdx.y < down; ++blockIdx.y)
        for (blockIdx.x = 0; blockIdx.x < across; ++blockIdx.x)
            for (threadIdx.y = 0; threadIdx.y < blockDim.y; ++threadIdx.y)
                for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x)
                    kernel(arguments...);
}
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """Returns a function that returns the compiled kernel of a variant."""
    folder = tmp_path_factory.mktemp("kernels")
    compiled = {}

    def kernel(source):
        if source not in compiled:
            path = folder / f"{len(compiled)}.cpp"
            path.write_text(HOST + source + _wrapper())
            library = path.with_suffix(".so")
            command = [
                COMPILER,
                "-std=c++17",
                "-O1",
                "-Wall",
                "-Wno-unused",
                "-Werror",
                "-ffp-contract=off",
                "-shared",
                "-fPIC",
            ]
            subprocess.run([*command, path, "-o", library], check=True)
            compiled[source] = ctypes.CDLL(str(library)).on_host
        return compiled[source]

    return kernel


@pytest.fixture
def cupy(kernels, monkeypatch):
    """A stand-in for CuPy: arrays on the host, and the kernel compiled for it."""

    class ndarray(np.ndarray):
        data = property(lambda array: types.SimpleNamespace(ptr=array.ctypes.data))
        device = types.SimpleNamespace(id=0)

    class Device(contextlib.nullcontext):
        id = 0

    @contextlib.contextmanager
    def external_stream(address, device):
        streams.append((address, device))
        yield
        streams.pop()

    def raw_kernel(source, name):
        assert name == _kernel.NAME
        kernel = kernels(source)

        def launch(grid, block, arguments):
            assert block == _kernel.BLOCK
            launches.append(streams[-1])
            kernel(*grid, *split(arguments))

        return launch

    streams, launches = ["current"], []
    cuda = types.SimpleNamespace(
        Device=Device, ExternalStream=external_stream, get_current_stream=lambda: streams[-1]
    )
    module = types.SimpleNamespace(
        ndarray=ndarray,
        cuda=cuda,
        RawKernel=raw_kernel,
        launches=launches,
        empty=lambda shape, dtype: np.full(shape, 77, dtype).view(ndarray),
        from_dlpack=lambda plane: np.from_dlpack(plane).view(ndarray),
        asarray=lambda array: array.view(ndarray),
    )
    monkeypatch.setitem(sys.modules, "cupy", module)
    yield module
    sys.modules.pop("frameshare._rgb._cupy", None)
    vars(frameshare._rgb).pop("_cupy", None)


def _wrapper():
    """Returns a C function with the numbers of blocks, integers and doubles as arrays."""
    kinds = "l" * 6 + ("ddl" * 2) * 3 + "d" * 12 + "l" * 6
    at = {"l": 0, "d": 0}
    values = []
    for place, kind in enumerate(kinds):
        value = f"{'integers' if kind == 'l' else 'numbers'}[{at[kind]}]"
        at[kind] += 1
        if place < 3:
            value = f"(const SAMPLE *){value}"
        elif place == len(kinds) - 6:
            value = f"(OUT *){value}"
        values.append(value)
    return f"""{RUN}
extern "C" void on_host(int across, int down, const long long *integers, const double *numbers)
{{
    run(frameshare_rgb, across, down, {", ".join(values)});
}}
"""


def convert(kernels, frame, dtype="uint8", size=None, layout="chw"):
    pixels = PIXELS[frame.format]
    request = Request(frame, pixels, layout, dtype, size or (frame.width, frame.height))
    out = np.full(request.shape, 77, dtype)
    view = out.transpose(request.order)
    planes = [(plane.ctypes.data, plane.strides[0] // plane.itemsize) for plane in frame.planes]
    strides = [stride // view.itemsize for stride in view.strides]
    arguments = _kernel.arguments(request, planes, (view.ctypes.data, *strides))
    kernel = kernels(_kernel.source(pixels, dtype, request.size == request.source_size))
    across, down = (-(-length // block) for length, block in zip(request.size, _kernel.BLOCK))
    kernel(across, down, *split(arguments))
    return out


def split(arguments):
    """Returns the integers and the doubles of the kernel's arguments as arrays of C."""
    integers = [value for value in arguments if isinstance(value, int)]
    numbers = [value for value in arguments if isinstance(value, float)]
    assert len(integers) + len(numbers) == len(arguments)
    return (ctypes.c_longlong * len(integers))(*integers), (ctypes.c_double * len(numbers))(*numbers)


@pytest.mark.parametrize("name", FORMATS)
def test_kernel_converts_format_as_reference(kernels, name):
    for size in [(64, 48), (33, 17), (1, 1)]:
        frame = make_frame(name, *size, padding=6)
        assert difference(convert(kernels, frame), frame) <= 0.51


@pytest.mark.parametrize("name", ["NV12", "I420", "YUY2", "BGR", "GRAY8", "P010_10LE"])
def test_kernel_resizes_as_reference(kernels, name):
    frame = make_frame(name, 37, 21, padding=6)
    for size in [(64, 48), (13, 7), (200, 11), (1, 1)]:
        assert difference(convert(kernels, frame, size=size), frame, size) <= 0.51


@pytest.mark.parametrize("layout", ["chw", "hwc"])
@pytest.mark.parametrize("dtype, limit", [("float16", 0.13), ("float32", 0.01)])
def test_kernel_writes_dtype_and_layout(kernels, dtype, limit, layout):
    frame = make_frame("NV12", 40, 20)
    assert difference(convert(kernels, frame, dtype, layout=layout), frame, layout=layout) <= limit


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize("name", ["NV12", "I420", "RGBA"])
def test_cupy_converts_frame_on_current_stream(cupy, name, device):
    frame = make_frame(name, 40, 20, padding=6, device=device)
    found = rgb(frame, like="cupy")
    assert isinstance(found, cupy.ndarray) and cupy.launches == ["current"]
    assert difference(found, frame) <= 0.51
    # The release of a frame in GPU memory waits for the kernel.
    assert frame.used == (["current"] if device != "cpu" else [])
    out = cupy.empty((3, 10, 20, 2), "float32")[..., 0]
    assert rgb(frame, out) is out
    assert difference(out, frame, (20, 10)) <= 0.01


def test_bottom_up_rows_are_refused_for_cupy(cupy):
    frame = make_frame("NV12", 40, 20, device="cuda:0")
    frame.planes = [plane[::-1] for plane in frame.planes]
    with pytest.raises(frameshare.UnsupportedError, match="plane 0 has its last row first"):
        rgb(frame, like="cupy")


def test_cupy_array_on_other_gpu_is_refused(cupy):
    frame = make_frame("NV12", 8, 8, device="cuda:1")
    with pytest.raises(ValueError, match="out is on cuda:0, but the frame is on cuda:1"):
        rgb(frame, cupy.empty((3, 8, 8), "uint8"))


def test_kernel_on_stream_of_other_library(cupy):
    from frameshare._rgb import _cupy

    frame = make_frame("NV12", 40, 20)
    request = Request(frame, PIXELS["NV12"], "chw", "uint8", (40, 20))
    out = np.empty((3, 20, 40), np.uint8)
    planes = [(plane.ctypes.data, len(plane[0].ravel())) for plane in frame.planes]
    _cupy.launch_on(2, 0x1234, request, planes, (out.ctypes.data, *out.strides))
    assert cupy.launches == [(0x1234, 2)]
    assert difference(out, frame) <= 0.51
