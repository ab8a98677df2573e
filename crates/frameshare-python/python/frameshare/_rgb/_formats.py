# SPDX-License-Identifier: MIT OR Apache-2.0
"""Pixel formats with a conversion to RGB: the places of their components in the planes."""

from typing import NamedTuple


class Component(NamedTuple):
    """A component: sample `x` of a row is `row[first + step * x]` of its plane."""

    plane: int
    first: int
    step: int
    # Columns and rows of the image for each sample.
    sub_x: int = 1
    sub_y: int = 1


class Format(NamedTuple):
    """A pixel format: components Y, U, V, or R, G, B, or Y alone."""

    name: str
    model: str
    components: tuple[Component, ...]
    # A sample's value is `(raw >> shift)`, of `bits` bits.
    bits: int = 8
    shift: int = 0

    @property
    def sample_bytes(self) -> int:
        return 1 if self.bits + self.shift <= 8 else 2

    def samples(self, index: int, width: int, height: int) -> tuple[int, int]:
        """Returns the number of columns and rows of a component."""
        _, _, _, sub_x, sub_y = self.components[index]
        return -(-width // sub_x), -(-height // sub_y)


def _yuv(name: str, luma: Component, u: Component, v: Component, bits: int = 8, shift: int = 0) -> Format:
    return Format(name, "yuv", (luma, u, v), bits, shift)


def _planar(name: str, u: int, v: int, sub: tuple[int, int], bits: int = 8) -> Format:
    return _yuv(name, _LUMA, Component(u, 0, 1, *sub), Component(v, 0, 1, *sub), bits)


def _interleaved(name: str, u: int, sub: tuple[int, int], bits: int = 8, shift: int = 0) -> Format:
    return _yuv(name, _LUMA, Component(1, u, 2, *sub), Component(1, 1 - u, 2, *sub), bits, shift)


def _packed_422(name: str) -> Format:
    y, u, v = (name.index(letter) for letter in "YUV")
    return _yuv(name, Component(0, y, 2), Component(0, u, 4, 2), Component(0, v, 4, 2))


def _packed_rgb(name: str) -> Format:
    return Format(name, "rgb", tuple(Component(0, name.index(letter), len(name)) for letter in "RGB"))


_LUMA = Component(0, 0, 1)

FORMATS = {
    format.name: format
    for format in (
        _interleaved("NV12", 0, (2, 2)),
        _interleaved("NV21", 1, (2, 2)),
        _interleaved("NV16", 0, (2, 1)),
        _interleaved("NV24", 0, (1, 1)),
        _interleaved("P010_10LE", 0, (2, 2), 10, 6),
        _interleaved("P012_LE", 0, (2, 2), 12, 4),
        _interleaved("P016_LE", 0, (2, 2), 16),
        _planar("I420", 1, 2, (2, 2)),
        _planar("YV12", 2, 1, (2, 2)),
        _planar("Y42B", 1, 2, (2, 1)),
        _planar("Y444", 1, 2, (1, 1)),
        _planar("I420_10LE", 1, 2, (2, 2), 10),
        _packed_422("YUYV")._replace(name="YUY2"),
        _packed_422("YVYU"),
        _packed_422("UYVY"),
        _packed_422("VYUY"),
        *map(_packed_rgb, ("RGB", "BGR", "RGBA", "BGRA", "ARGB", "ABGR", "RGBx", "BGRx", "xRGB", "xBGR")),
        Format("GRAY8", "gray", (_LUMA,)),
        Format("GRAY16_LE", "gray", (_LUMA,), 16),
    )
}
