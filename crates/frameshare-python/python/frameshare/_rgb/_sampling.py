# SPDX-License-Identifier: MIT OR Apache-2.0
"""Positions of samples: the same bilinear sampling in all back ends.

The center of pixel `x` of the output lies at `(x + 0.5) * width / out_width - 0.5` of the image.
Chroma of half the width lies at the left of its two columns, as in H.264 and MPEG-2; chroma of half
the height lies between its two rows. Positions outside a component are those of its edge.
"""

from functools import lru_cache
from typing import NamedTuple

from ._formats import Format


class Axis(NamedTuple):
    """Position `i` of the output is `(i + 0.5) * factor - shift` of the component, within its samples."""

    out: int
    factor: float
    shift: float
    samples: int

    @property
    def is_identity(self) -> bool:
        """Whether the output's positions are those of the samples."""
        return self == (self.samples, 1.0, 0.5, self.samples)


@lru_cache(maxsize=256)
def axes(pixels: Format, index: int, size: tuple[int, int], out: tuple[int, int]) -> tuple[Axis, Axis]:
    """Returns the positions of the output's columns and rows in a component."""
    component, samples = pixels.components[index], pixels.samples(index, *size)
    # Half a column of the image; and for rows, half a sample of the component.
    shifts = (0.5 / component.sub_x, 0.5)
    subs = (component.sub_x, component.sub_y)
    across, down = (
        Axis(to, of / to / sub, shift, count)
        for to, of, sub, shift, count in zip(out, size, subs, shifts, samples)
    )
    return across, down
