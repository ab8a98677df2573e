# SPDX-License-Identifier: MIT OR Apache-2.0
"""Conversion to RGB on the host, against the reference."""

import importlib.util
import subprocess
import sys
import types

import numpy as np
import pytest
import rgb_reference
from rgb_reference import FORMATS, SUB, difference, make_frame

import frameshare
from frameshare._rgb import rgb

if importlib.util.find_spec("torch"):
    import torch  # noqa: F401

# In code values of 8 bits: rounding, and the error of float32 or float16.
LIMITS = {"uint8": 0.51, "float16": 0.13, "float32": 0.01}


def libraries():
    """NumPy, and PyTorch on the CPU where the tests run with it, with NumPy and without."""
    return ["numpy", *(["torch", "torch-alone"] if "torch" in sys.modules else [])]


@pytest.fixture(params=libraries())
def like(request, monkeypatch):
    if request.param == "torch-alone":
        monkeypatch.setattr("frameshare._rgb._torch._numpy_view", lambda out: None)
    return request.param.partition("-")[0]


def unsupported(like, frame):
    """PyTorch has no arithmetic of 16-bit samples before 2.3."""
    return (
        like == "torch" and frame.planes[0].dtype == np.uint16 and not hasattr(sys.modules["torch"], "uint16")
    )


@pytest.mark.parametrize("size", [(64, 48), (33, 17), (1, 1), (2, 3), (3, 2)], ids=str)
@pytest.mark.parametrize("name", FORMATS)
def test_format_is_converted_as_reference(name, size, like):
    frame = make_frame(name, *size, padding=0)
    if unsupported(like, frame):
        pytest.skip("this PyTorch has no uint16")
    found = rgb(frame, like=like)
    assert type(found).__module__.partition(".")[0] == like
    assert tuple(found.shape) == (3, size[1], size[0])
    assert difference(found, frame) <= LIMITS["uint8"]


@pytest.mark.parametrize("name", ["NV12", "I420", "YUY2", "RGB", "BGRx", "GRAY8", "P010_10LE"])
def test_stride_larger_than_width_is_skipped(name, like):
    frame = make_frame(name, 30, 14, padding=48)
    if unsupported(like, frame):
        pytest.skip("this PyTorch has no uint16")
    assert difference(rgb(frame, like=like), frame) <= LIMITS["uint8"]


@pytest.mark.parametrize("range_", ["full", "limited"])
@pytest.mark.parametrize("matrix", rgb_reference.RED_BLUE)
@pytest.mark.parametrize("name", ["NV12", "I420_10LE", "YUY2"])
def test_matrix_and_range_follow_colorimetry(name, matrix, range_):
    frame = make_frame(name, 40, 20, matrix=matrix, range_=range_)
    assert difference(rgb(frame, like="numpy"), frame) <= LIMITS["uint8"]


@pytest.mark.parametrize("name", ["RGB", "GRAY8"])
def test_limited_range_of_rgb_is_expanded(name, like):
    frame = make_frame(name, 40, 20, range_="limited")
    assert difference(rgb(frame, like=like), frame) <= LIMITS["uint8"]


@pytest.mark.parametrize("height, matrix", [(576, "bt601"), (578, "bt709")])
def test_unknown_colorimetry_follows_height(height, matrix):
    frame = make_frame("NV12", 8, height, matrix="unknown", range_="unknown")
    found = rgb(frame, like="numpy")
    frame.colorimetry = types.SimpleNamespace(matrix=matrix, range="limited")
    assert difference(found, frame) <= LIMITS["uint8"]
    # The other matrix is farther away than rounding, so that the test tells them apart.
    frame.colorimetry.matrix = "bt709" if matrix == "bt601" else "bt601"
    assert difference(found, frame) > 2


@pytest.mark.parametrize("to", [(64, 48), (13, 7), (31, 97), (200, 11), (1, 1), (37, 21)], ids=str)
@pytest.mark.parametrize("name", ["NV12", "I420", "YUY2", "Y444", "BGRA", "GRAY8", "NV16"])
def test_resized_frame_is_bilinear(name, to, like):
    frame = make_frame(name, 37, 21, padding=5)
    found = rgb(frame, like=like, size=to)
    assert difference(found, frame, to) <= LIMITS["uint8"]


@pytest.mark.parametrize("layout", ["chw", "hwc"])
@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("name", ["NV12", "RGBA", "YUY2"])
def test_dtype_and_layout_of_result(name, dtype, layout, like):
    frame = make_frame(name, 50, 20)
    found = rgb(frame, like=like, dtype=dtype, layout=layout)
    assert str(found.dtype).removeprefix("torch.") == dtype
    assert difference(found, frame, layout=layout) <= LIMITS[dtype]


@pytest.mark.parametrize("content, expected", [(0, 0.0), (255, 1.0)])
def test_values_outside_range_are_clipped(content, expected, like):
    frame = make_frame("GRAY8", 4, 4, range_="limited", content=content)
    assert set(np.asarray(rgb(frame, like=like, dtype="float32")).ravel()) == {expected}


def test_dtype_is_name_type_or_object():
    frame = make_frame("NV12", 4, 4)
    for dtype in (
        "float16",
        np.float16,
        np.dtype("float16"),
        *([sys.modules["torch"].float16] if "torch" in sys.modules else []),
    ):
        assert rgb(frame, like="numpy", dtype=dtype).dtype == np.float16


@pytest.mark.parametrize("shape, layout", [((3, 10, 20), "chw"), ((10, 20, 3), "hwc")])
def test_out_says_library_shape_and_dtype(shape, layout):
    frame = make_frame("NV12", 40, 20)
    out = np.zeros(shape, np.float32)
    assert rgb(frame, out) is out
    assert difference(out, frame, (20, 10), layout) <= LIMITS["float32"]


def test_out_of_other_strides_is_written_in_place():
    frame = make_frame("NV12", 40, 20)
    bgr = np.full((20, 44, 3), 7, np.uint8)
    rgb(frame, bgr[:, 2:42, ::-1])
    assert difference(bgr[:, 2:42, ::-1], frame, layout="hwc") <= LIMITS["uint8"]
    assert (bgr[:, :2] == 7).all() and (bgr[:, 42:] == 7).all()


def test_out_with_three_rows_or_columns_needs_no_layout():
    frame = make_frame("NV12", 3, 3)
    assert difference(rgb(frame, np.empty((3, 3, 3), np.uint8)), frame) <= LIMITS["uint8"]
    found = rgb(frame, np.empty((3, 3, 3), np.uint8), layout="hwc")
    assert difference(found, frame, layout="hwc") <= LIMITS["uint8"]


def test_result_is_independent_of_frame():
    frame = make_frame("RGB", 8, 8)
    found = rgb(frame, like="numpy", layout="hwc")
    assert not np.shares_memory(found, frame.planes[0]) and found.flags.writeable


def test_frame_in_gpu_memory_is_downloaded_for_numpy():
    frame = make_frame("NV12", 40, 20, padding=4)

    class Plane:
        def __init__(self, array):
            self.array = array

        def __dlpack_device__(self):
            return (2, 0)

        def __dlpack__(self, *, dl_device=None, **options):
            assert dl_device == (1, 0) and options.get("stream") is None
            return self.array.__dlpack__()

    host = types.SimpleNamespace(**vars(frame))
    frame.device, frame.planes = "cuda:0", [Plane(plane) for plane in frame.planes]
    assert difference(rgb(frame, like="numpy"), host) <= LIMITS["uint8"]


@pytest.mark.parametrize(
    "arguments, error, text",
    [
        ({"like": "jax"}, ValueError, "invalid library 'jax'"),
        ({"layout": "bchw"}, ValueError, "invalid layout 'bchw'"),
        ({"dtype": "int32"}, ValueError, "invalid dtype int32"),
        ({"size": (0, 4)}, ValueError, "at least 1"),
        ({"size": 4}, TypeError, "expected .width, height."),
        ({"size": (4, 4, 3)}, TypeError, "expected .width, height."),
        ({"size": (4.5, 4)}, TypeError, "expected .width, height."),
        ({"out": [0]}, TypeError, "invalid out of type list"),
        ({"out": np.zeros((4, 4), np.uint8)}, ValueError, r"invalid shape \(4, 4\) of out"),
        (
            {"out": np.zeros((3, 4, 4), np.uint8), "size": (5, 4)},
            ValueError,
            r"expected \(3, 4, 5\) or \(4, 5, 3\)",
        ),
        (
            {"out": np.zeros((3, 4, 4), np.uint8), "layout": "hwc"},
            ValueError,
            "expected .'height', 'width', 3.",
        ),
        ({"out": np.zeros((3, 4, 4), np.int16)}, ValueError, "invalid dtype int16 of out"),
        ({"out": np.zeros((3, 4, 4), np.uint8), "dtype": "float32"}, ValueError, "leave dtype out"),
        ({"out": np.zeros((3, 4, 4), np.uint8), "like": "cupy"}, ValueError, "out is of numpy"),
        ({"out": np.broadcast_to(np.uint8(0), (3, 4, 4))}, ValueError, "out is read-only"),
    ],
    ids=lambda value: "" if isinstance(value, (dict, type)) else value,
)
def test_bad_argument_is_named(arguments, error, text):
    with pytest.raises(error, match=text):
        rgb(make_frame("NV12", 8, 8), **arguments)


def test_format_without_conversion_is_named():
    frame = make_frame("NV12", 8, 8)
    frame.format = "v210"
    with pytest.raises(
        frameshare.UnsupportedError, match="format v210 to RGB: read frame.planes.*NV12, NV21"
    ):
        rgb(frame)


def test_unimported_library_stays_unimported():
    program = """
import sys, types, frameshare
from frameshare._rgb import rgb
frame = types.SimpleNamespace(format="NV12", width=2, height=2, device="cpu", planes=[])
try:
    rgb(frame, like="cupy")
except ValueError as error:
    print(error)
print([name for name in ("numpy", "torch", "cupy") if name in sys.modules])
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "like='cupy' without the library: import cupy first\n[]\n"


def test_default_library_is_imported_one(monkeypatch):
    from frameshare._rgb import _library

    monkeypatch.setattr(sys, "modules", {name: None for name in ("numpy", "torch", "cupy")})
    found = []
    for name in ("torch", "cupy", "numpy"):
        found.append(_library(None, None))
        del sys.modules[name]
    assert found == ["torch", "cupy", "numpy"] and _library(None, None) == "numpy"


def test_formats_of_reference_are_those_of_package():
    from frameshare._rgb._formats import FORMATS as formats

    assert set(formats) == set(FORMATS) and set(SUB) <= set(FORMATS)


def test_bottom_up_rows_are_read_from_the_top():
    frame = make_frame("NV12", 40, 20, padding=6)
    frame.planes = [plane[::-1] for plane in frame.planes]
    assert difference(rgb(frame, like="numpy"), frame) <= LIMITS["uint8"]


def test_bottom_up_rows_are_refused_for_torch(monkeypatch):
    """PyTorch ends the process when it takes such an array by DLPack."""
    pytest.importorskip("torch")
    frame = make_frame("NV12", 40, 20)
    frame.planes = [plane[::-1] for plane in frame.planes]
    assert difference(rgb(frame, like="torch"), frame) <= LIMITS["uint8"]
    monkeypatch.setattr("frameshare._rgb._torch._numpy_view", lambda out: None)
    with pytest.raises(frameshare.UnsupportedError, match="plane 0 has its last row first"):
        rgb(frame, like="torch")
