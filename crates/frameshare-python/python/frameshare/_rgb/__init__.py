# SPDX-License-Identifier: MIT OR Apache-2.0
"""Conversion of frames to RGB: `Frame.rgb`.

No module here imports PyTorch or CuPy unless the application has imported it, and NumPy is imported
only for results in NumPy.
"""

import importlib
import sys
from collections.abc import Sequence
from typing import Any

from .._errors import UnsupportedError
from ._formats import FORMATS
from ._request import Request, dtype_name

# Libraries and their type of arrays, most preferred first.
_LIBRARIES = {"torch": "Tensor", "cupy": "ndarray", "numpy": "ndarray"}
_LAYOUTS = ("chw", "hwc")
_DTYPES = ("uint8", "float16", "float32")


def rgb(
    self: Any,
    out: Any = None,
    *,
    like: str | None = None,
    layout: str | None = None,
    dtype: Any = None,
    size: Sequence[int] | None = None,
) -> Any:
    """Returns the frame as RGB: red, green and blue in this order, in memory of its own.

    out: the array or tensor to write; its library, shape and dtype are those of the result.
    like: the library of the result, "torch", "cupy" or "numpy". The default is PyTorch if it is
        imported, else CuPy if it is imported, else NumPy.
    layout: "chw" (channels first, the default) or "hwc".
    dtype: "uint8" (0 to 255, the default), "float16" or "float32" (0 to 1).
    size: (width, height) of the result; the image is resized, bilinearly.
    """
    frame = self
    pixels = FORMATS.get(frame.format)
    if pixels is None:
        raise UnsupportedError(
            f"no conversion of format {frame.format} to RGB: read frame.planes, or convert in the exporter, "
            f'such as by "videoconvert ! video/x-raw,format=NV12". Formats with a conversion: {", ".join(FORMATS)}'
        )
    library = _library(out, like)
    if layout not in (None, *_LAYOUTS):
        raise ValueError(f'invalid layout {layout!r}: expected "chw" or "hwc"')
    name = None if dtype is None else dtype_name(dtype)
    if name not in (None, *_DTYPES):
        raise ValueError(f"invalid dtype {name}: expected one of {', '.join(_DTYPES)}")
    asked = None if size is None else _size(size)
    if out is None:
        request = Request(
            frame, pixels, layout or "chw", name or "uint8", asked or (frame.width, frame.height)
        )
    else:
        request = _request_of(out, frame, pixels, layout, name, asked)
    backend = importlib.import_module(f"._{library}", __name__)
    return backend.rgb(request, out)


def _library(out: Any, like: str | None) -> str:
    if like is not None and like not in _LIBRARIES:
        raise ValueError(f'invalid library {like!r} in like=: expected "torch", "cupy" or "numpy"')
    if out is None:
        if like is None:
            return next((name for name in _LIBRARIES if name in sys.modules), "numpy")
        if like != "numpy" and like not in sys.modules:
            raise ValueError(f"like={like!r} without the library: import {like} first")
        return like
    for name, array in _LIBRARIES.items():
        module = sys.modules.get(name)
        if module is not None and isinstance(out, getattr(module, array)):
            if like not in (None, name):
                raise ValueError(f"out is of {name}, but like={like!r}: leave like out")
            return name
    raise TypeError(
        f"invalid out of type {type(out).__name__}: expected a tensor of PyTorch or an array of CuPy or NumPy"
    )


def _size(size: Sequence[int]) -> tuple[int, int]:
    try:
        width, height = (value.__index__() for value in size)
    except (TypeError, AttributeError, ValueError):
        raise TypeError(f"invalid size {size!r}: expected (width, height)") from None
    if width < 1 or height < 1:
        raise ValueError(f"invalid size {size!r}: width and height are at least 1")
    return width, height


def _request_of(out: Any, frame: Any, pixels: Any, layout: Any, dtype: Any, size: Any) -> Request:
    """Returns the request that `out` stands for, checked against the other arguments."""
    shape = tuple(out.shape)
    found = dtype_name(out.dtype)
    if found not in _DTYPES:
        raise ValueError(f"invalid dtype {found} of out: expected one of {', '.join(_DTYPES)}")
    if dtype not in (None, found):
        raise ValueError(f"out has dtype {found}, but dtype={dtype}: leave dtype out")
    for candidate in _LAYOUTS if layout is None else (layout,):
        if len(shape) == 3 and shape[candidate.index("c")] == 3:
            height, width = (shape[candidate.index(axis)] for axis in "hw")
            if size not in (None, (width, height)):
                continue
            if width > 0 and height > 0:
                return Request(frame, pixels, candidate, found, (width, height))
    wanted = " or ".join(
        str(
            tuple(
                {"c": 3, "h": size[1] if size else "height", "w": size[0] if size else "width"}[axis]
                for axis in each
            )
        )
        for each in (_LAYOUTS if layout is None else (layout,))
    )
    raise ValueError(f"invalid shape {shape} of out: expected {wanted}")
