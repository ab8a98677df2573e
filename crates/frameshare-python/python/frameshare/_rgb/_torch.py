# SPDX-License-Identifier: MIT OR Apache-2.0
"""Conversion with PyTorch: the kernel of CuPy if it is imported, else tensor operations."""

import sys
from collections.abc import Sequence
from typing import Any

import torch

from ._color import Color
from ._formats import Format
from ._request import Request
from ._sampling import Axis, axes

Tensor = Any


def rgb(request: Request, out: Tensor | None) -> Tensor:
    """Converts a frame on the device where it lies, on PyTorch's current stream."""
    frame = request.frame
    device = torch.device(frame.device)
    if out is not None and out.device != device:
        raise ValueError(f"out is on {out.device}, but the frame is on {device}: pass a tensor on {device}")
    if out is not None and out.requires_grad:
        raise ValueError("out requires a gradient: pass a tensor that does not")
    dtype = getattr(torch, request.dtype)
    result: Tensor = torch.empty(request.shape, dtype=dtype, device=device) if out is None else out
    if device.type == "cpu" and (array := _numpy_view(result)) is not None:
        from . import _numpy

        _numpy.rgb(request, array)
        return result
    planes = [torch.from_dlpack(plane).flatten(1) for plane in request.top_down_planes]
    view = result.permute(request.order)
    if device.type == "cpu":
        convert(planes, request.pixels, request.source_size, request.color, view)
        return result
    stream = torch.cuda.current_stream(device)
    with torch.cuda.device(device):
        if "cupy" in sys.modules:
            from . import _cupy

            _cupy.launch_on(
                device.index,
                stream.cuda_stream,
                request,
                _arguments(planes),
                (view.data_ptr(), *view.stride()),
            )
        else:
            convert(planes, request.pixels, request.source_size, request.color, view)
    frame.used_on(stream)
    return result


def _numpy_view(out: Tensor) -> Any:
    """Returns a tensor on the host as an array of NumPy, whose conversion is several times as fast;
    `None` if NumPy is not imported or this PyTorch was built without it."""
    if "numpy" not in sys.modules:
        return None
    try:
        return out.numpy()
    except RuntimeError:
        return None


def _arguments(planes: Sequence[Tensor]) -> list[tuple[int, int]]:
    return [(plane.data_ptr(), plane.stride(0)) for plane in planes]


def convert(
    planes: Sequence[Tensor], pixels: Format, size: tuple[int, int], color: Color, out: Tensor
) -> None:
    """Writes `out`, a view of 3 channels, rows and columns, from the rows of samples of each plane."""
    with torch.no_grad():
        samples = [_component(planes, pixels, index, size, out) for index in range(len(pixels.components))]
        rounding = 0.5 if out.dtype == torch.uint8 else 0.0
        for channel, (row, offset) in enumerate(zip(color.rows, color.offsets)):
            used = samples if len(samples) == 3 else [samples[0]] * 3
            parts = [sample * factor for sample, factor in zip(used, row) if factor]
            value = parts[0].add_(offset + rounding)
            for part in parts[1:]:
                value.add_(part)
            out[channel].copy_(value.clamp_(0.0, color.limit))


def _component(
    planes: Sequence[Tensor], pixels: Format, index: int, size: tuple[int, int], out: Tensor
) -> Tensor:
    plane, first, step, _, _ = pixels.components[index]
    columns, _ = pixels.samples(index, *size)
    samples = planes[plane][:, first::step][:, :columns]
    if pixels.shift:
        samples = samples.to(torch.int32) >> pixels.shift
    samples = samples.to(torch.float32)
    across, down = axes(pixels, index, size, (out.shape[2], out.shape[1]))
    return _between(_between(samples, 0, down), 1, across)


def _between(samples: Tensor, dim: int, axis: Axis) -> Tensor:
    """Returns rows or columns between those of the component."""
    if axis.is_identity:
        return samples
    index = torch.arange(axis.out, dtype=torch.float64, device=samples.device)
    position = ((index + 0.5) * axis.factor - axis.shift).clamp_(0, axis.samples - 1)
    lower = position.to(torch.int64)
    upper = (lower + 1).clamp_(max=axis.samples - 1)
    weight = (position - lower).to(torch.float32)
    low, high = samples.index_select(dim, lower), samples.index_select(dim, upper)
    return torch.lerp(low, high, weight[:, None] if dim == 0 else weight)
