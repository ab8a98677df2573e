# SPDX-License-Identifier: MIT OR Apache-2.0
"""Conversion on the host with NumPy, in blocks of rows that fit the cache."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ._color import Color
from ._formats import Format
from ._request import Request
from ._sampling import axes

# Values of a block: its temporary arrays stay in the cache of a core.
_BLOCK = 1 << 14

Array = Any
# The samples below and above each position, and the weight of the upper one.
Grid = tuple[Array, Array, Array]


class _OnHost:
    """A plane in GPU memory that exports a copy in host memory."""

    def __init__(self, plane: Any) -> None:
        self.plane = plane

    def __dlpack__(self, **options: Any) -> Any:
        options.pop("stream", None)
        return self.plane.__dlpack__(**(options | {"dl_device": self.__dlpack_device__()}))

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def rgb(request: Request, out: Array | None) -> Array:
    """Converts a frame; one in GPU memory is downloaded."""
    if out is None:
        out = np.empty(request.shape, request.dtype)
    elif not out.flags.writeable:
        raise ValueError("out is read-only: pass an array that may be written")
    is_on_host = request.frame.device == "cpu"
    planes = [
        np.asarray(plane) if is_on_host else np.from_dlpack(_OnHost(plane)) for plane in request.frame.planes
    ]
    rows = [plane.reshape(len(plane), -1) for plane in planes]
    convert(rows, request.pixels, request.source_size, request.color, out.transpose(request.order))
    return out


def convert(planes: Sequence[Array], pixels: Format, size: tuple[int, int], color: Color, out: Array) -> None:
    """Writes `out`, a view of 3 channels, rows and columns, from the rows of samples of each plane."""
    _, height, width = out.shape
    if _is_copy(pixels, size, color, out):
        for channel, (plane, first, step, _, _) in enumerate(pixels.components):
            out[channel] = planes[plane][:, first::step][:, :width]
        return
    components = []
    for index, (plane, first, step, _, _) in enumerate(pixels.components):
        columns, _ = pixels.samples(index, *size)
        components.append(
            (planes[plane][:, first::step][:, :columns], _grids(pixels, index, size, (width, height)))
        )
    rows = max(1, _BLOCK // max(width, size[0]))
    to_rgb = _yuv if pixels.model == "yuv" else _scaled
    for top in range(0, height, rows):
        block = slice(top, min(top + rows, height))
        samples = [_rows(plane, down, block, pixels.shift) for plane, (_, down) in components]
        across = [_columns(grid) for _, (grid, _) in components]
        to_rgb(samples, across, color, out[:, block])


def _is_copy(pixels: Format, size: tuple[int, int], color: Color, out: Array) -> bool:
    """Returns whether the bytes of RGB are the result."""
    same = all(color.rows[i][i] == 1.0 and color.offsets[i] == 0.0 for i in range(3))
    return pixels.model == "rgb" and same and out.dtype == np.uint8 and out.shape[1:] == size[::-1]


def _grids(pixels: Format, index: int, size: tuple[int, int], out: tuple[int, int]) -> list[Grid | None]:
    """Returns the positions of the output's columns and rows in a component; `None` if they are its own."""
    return [None if axis.is_identity else _grid(*axis) for axis in axes(pixels, index, size, out)]


def _grid(out: int, factor: float, shift: float, samples: int) -> Grid:
    position = ((np.arange(out) + 0.5) * factor - shift).clip(0, samples - 1)
    lower = position.astype(np.intp)
    return lower, np.minimum(lower + 1, samples - 1), (position - lower).astype(np.float32)


def _rows(plane: Array, grid: Grid | None, block: slice, shift: int) -> Array:
    """Returns rows between those of the plane, as float32."""
    if grid is None:
        return _floats(plane[block], shift)
    lower, upper, weight = (values[block] for values in grid)
    low, high = _floats(plane[lower], shift), _floats(plane[upper], shift)
    high -= low
    high *= weight[:, None]
    low += high
    return low


def _floats(samples: Array, shift: int) -> Array:
    return (samples >> shift if shift else samples).astype(np.float32)


def _columns(grid: Grid | None) -> Callable[[Array], Array]:
    """Returns the function that computes columns between those of its argument."""
    if grid is None:
        return lambda rows: rows
    lower, upper, weight = grid
    if len(lower) > 1 and _is_doubling(grid):
        return lambda rows: _doubled(rows, len(lower))

    def between(rows: Array) -> Array:
        low, high = rows.take(lower, axis=1), rows.take(upper, axis=1)
        high -= low
        high *= weight
        low += high
        return low

    return between


def _is_doubling(grid: Grid) -> bool:
    position = grid[0] + grid[2]
    return bool((position == np.minimum(np.arange(len(position)) / 2, grid[1][-1])).all())


def _doubled(rows: Array, width: int) -> Array:
    out = np.empty((len(rows), width), np.float32)
    out[:, 0::2] = rows
    odd = out[:, 1::2]
    inner = (width - 1) // 2
    np.add(rows[:, :inner], rows[:, 1 : inner + 1], out=odd[:, :inner])
    odd[:, :inner] *= 0.5
    odd[:, inner:] = rows[:, -1:]
    return out


def _yuv(
    samples: Sequence[Array], across: Sequence[Callable[[Array], Array]], color: Color, out: Array
) -> None:
    (luma, u, v), rounding = samples, _rounding(out)
    luma *= np.float32(color.rows[0][0])
    luma = across[0](luma)
    for channel, (row, offset) in enumerate(zip(color.rows, color.offsets)):
        # Mixed before the interpolation of columns, which has twice as many of them.
        parts = [sample * np.float32(factor) for sample, factor in ((u, row[1]), (v, row[2])) if factor]
        chroma = parts[0]
        for part in parts[1:]:
            chroma += part
        chroma += np.float32(offset + rounding)
        chroma = across[1](chroma)
        value = np.add(chroma, luma, out=chroma)
        _store(value, color, out[channel])


def _scaled(
    samples: Sequence[Array], across: Sequence[Callable[[Array], Array]], color: Color, out: Array
) -> None:
    rounding = _rounding(out)
    for channel in range(3):
        index = min(channel, len(samples) - 1)
        value = across[index](samples[index]) * np.float32(color.rows[channel][channel])
        value += np.float32(color.offsets[channel] + rounding)
        _store(value, color, out[channel])


def _rounding(out: Array) -> float:
    """Returns the number to add before a conversion that cuts fractions off."""
    return 0.5 if out.dtype == np.uint8 else 0.0


def _store(value: Array, color: Color, out: Array) -> None:
    np.clip(value, 0.0, color.limit, out=value)
    np.copyto(out, value, casting="unsafe")
