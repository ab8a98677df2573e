# SPDX-License-Identifier: MIT OR Apache-2.0
"""Matrices from samples to RGB, for a matrix, a range and a number of bits."""

from functools import lru_cache
from typing import NamedTuple

# Shares of red and blue in luma.
_LUMA = {
    "bt601": (0.299, 0.114),
    "bt709": (0.2126, 0.0722),
    "bt2020": (0.2627, 0.0593),
    "fcc": (0.30, 0.11),
    "smpte240m": (0.212, 0.087),
}
# Rows above which GStreamer takes BT.709 for YUV without a colorimetry.
_MAX_SD_HEIGHT = 576


class Color(NamedTuple):
    """An affine map: channel `i` is `sum(rows[i][j] * sample[j]) + offsets[i]`, from 0 to `limit`."""

    rows: tuple[tuple[float, float, float], ...]
    offsets: tuple[float, float, float]
    limit: float


@lru_cache(maxsize=64)
def color(model: str, matrix: str, range_: str, bits: int, height: int, limit: float) -> Color:
    """Returns the map from samples of `bits` bits to RGB from 0 to `limit`.

    An unknown matrix is BT.709 above 576 rows and BT.601 else, and an unknown range is limited for
    YUV and full for RGB and gray, as in GStreamer.
    """
    full = range_ == "full" or (range_ != "limited" and model != "yuv")
    unit = 1 << (bits - 8)
    black, luma_span, chroma_span = (0, (1 << bits) - 1, (1 << bits) - 1) if full else (
        16 * unit, 219 * unit, 224 * unit)  # fmt: skip
    y = limit / luma_span
    if model != "yuv":
        rows = ((y, 0.0, 0.0), (0.0, y, 0.0), (0.0, 0.0, y))
        offset = -y * black
        return Color(rows, (offset, offset, offset), limit)
    red, blue = _LUMA.get(matrix) or _LUMA["bt709" if height > _MAX_SD_HEIGHT else "bt601"]
    green = 1 - red - blue
    chroma = limit / chroma_span
    rv, bu = 2 * (1 - red) * chroma, 2 * (1 - blue) * chroma
    gu, gv = -bu * blue / green, -rv * red / green
    rows = ((y, 0.0, rv), (y, gu, gv), (y, bu, 0.0))
    gray = 128 * unit
    red_offset, green_offset, blue_offset = (-row[0] * black - (row[1] + row[2]) * gray for row in rows)
    return Color(rows, (red_offset, green_offset, blue_offset), limit)
