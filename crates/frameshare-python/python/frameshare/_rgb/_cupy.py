# SPDX-License-Identifier: MIT OR Apache-2.0
"""Conversion on the GPU with a kernel that CuPy compiles and launches."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import cupy

from . import _kernel
from ._formats import FORMATS
from ._request import Request

Array = Any


def rgb(request: Request, out: Array | None) -> Array:
    """Converts a frame on CuPy's current stream of the GPU where it lies; one on the host is uploaded."""
    frame = request.frame
    is_on_host = frame.device == "cpu"
    if not is_on_host:
        device = int(frame.device.removeprefix("cuda:"))
    else:
        device = cupy.cuda.Device().id if out is None else out.device.id
    if out is not None and out.device.id != device:
        raise ValueError(
            f"out is on cuda:{out.device.id}, but the frame is on {frame.device}: pass an array on that GPU"
        )
    with cupy.cuda.Device(device):
        take = _upload if is_on_host else cupy.from_dlpack
        planes = [take(plane) for plane in request.top_down_planes]
        result: Array = cupy.empty(request.shape, request.dtype) if out is None else out
        view = result.transpose(request.order)
        arguments = [(plane.data.ptr, plane.strides[0] // plane.itemsize) for plane in planes]
        strides = [stride // view.itemsize for stride in view.strides]
        _launch(device, request, arguments, (view.data.ptr, *strides))
        if not is_on_host:
            frame.used_on(cupy.cuda.get_current_stream())
    return result


def _upload(plane: Any) -> Array:
    import numpy

    return cupy.asarray(numpy.asarray(plane))


def launch_on(
    device: int, stream: int, request: Request, planes: Sequence[tuple[int, int]], out: Sequence[int]
) -> None:
    """Launches the kernel on a stream of another library. Planes are addresses and strides, and `out`
    the address and the strides of channels, rows and columns, all in samples."""
    with cupy.cuda.Device(device), cupy.cuda.ExternalStream(stream, device):
        _launch(device, request, planes, out)


@cache
def _compiled(device: int, pixels: str, dtype: str, is_same_size: bool) -> Any:
    source = _kernel.source(FORMATS[pixels], dtype, is_same_size)
    return cupy.RawKernel(source, _kernel.NAME)


def _launch(device: int, request: Request, planes: Sequence[tuple[int, int]], out: Sequence[int]) -> None:
    width, height = request.size
    kernel = _compiled(device, request.pixels.name, request.dtype, request.size == request.source_size)
    columns, rows = _kernel.BLOCK
    grid = (-(-width // columns), -(-height // rows))
    kernel(grid, _kernel.BLOCK, _kernel.arguments(request, planes, out))
