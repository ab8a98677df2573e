# SPDX-License-Identifier: MIT OR Apache-2.0
"""A conversion, with its arguments checked."""

from typing import Any, NamedTuple

from .._errors import UnsupportedError
from ._color import Color, color
from ._formats import Format


class Request(NamedTuple):
    """A frame and the form of its RGB."""

    frame: Any
    pixels: Format
    layout: str
    dtype: str
    # Width and height of the result.
    size: tuple[int, int]

    @property
    def shape(self) -> tuple[int, int, int]:
        width, height = self.size
        return (3, height, width) if self.layout == "chw" else (height, width, 3)

    @property
    def order(self) -> tuple[int, int, int]:
        """Axes of the result that are channels, rows and columns."""
        return (0, 1, 2) if self.layout == "chw" else (2, 0, 1)

    @property
    def source_size(self) -> tuple[int, int]:
        return self.frame.width, self.frame.height

    @property
    def top_down_planes(self) -> list[Any]:
        """The planes, for libraries that take no negative strides: PyTorch may end the process."""
        planes = list(self.frame.planes)
        for number, plane in enumerate(planes):
            if plane.strides[0] < 0:
                raise UnsupportedError(
                    f"plane {number} has its last row first, which only NumPy reads: use like='numpy'"
                )
        return planes

    @property
    def color(self) -> Color:
        colors = self.frame.colorimetry
        limit = 255.0 if self.dtype == "uint8" else 1.0
        height = self.frame.height
        return color(self.pixels.model, colors.matrix, colors.range, self.pixels.bits, height, limit)


def dtype_name(dtype: Any) -> str:
    """Returns the name of a dtype of any library: a name, a type or an object."""
    if isinstance(dtype, str):
        return dtype
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None)
    return name if isinstance(name, str) else str(dtype).removeprefix("torch.")
