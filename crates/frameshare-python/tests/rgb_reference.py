# SPDX-License-Identifier: MIT OR Apache-2.0
"""Reference of the conversion to RGB, in float64, and frames to convert.

It shares no code with the package: the matrix is the inverse of the one from RGB to YUV, pixel
formats are written out, and each pixel is the mean of four samples, weighted by their areas.
"""

import types

import numpy as np

FORMATS = (
    "NV12 NV21 NV16 NV24 P010_10LE P012_LE P016_LE I420 YV12 Y42B Y444 I420_10LE YUY2 YVYU UYVY VYUY "
    "RGB BGR RGBA BGRA ARGB ABGR RGBx BGRx xRGB xBGR GRAY8 GRAY16_LE"
).split()
# Chroma's share of columns and rows.
HALVES = {
    (2, 2): "NV12 NV21 P010_10LE P012_LE P016_LE I420 YV12 I420_10LE".split(),
    (2, 1): "NV16 Y42B YUY2 YVYU UYVY VYUY".split(),
    (1, 1): "NV24 Y444".split(),
}
SUB = {name: sub for sub, names in HALVES.items() for name in names}
BITS = {"P010_10LE": 10, "I420_10LE": 10, "P012_LE": 12, "P016_LE": 16, "GRAY16_LE": 16}
SHIFT = {"P010_10LE": 6, "P012_LE": 4}
RED_BLUE = {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722), "bt2020": (0.2627, 0.0593),
            "fcc": (0.30, 0.11), "smpte240m": (0.212, 0.087)}  # fmt: skip


def half(number, share):
    return (number + share - 1) // share


def row_shapes(name, width, height):
    """Returns rows, columns and components of each plane."""
    if name not in SUB:
        pixel = {"GRAY8": 1, "GRAY16_LE": 1}.get(name, len(name))
        return [(height, width, pixel)]
    across, down = SUB[name]
    chroma = half(height, down), half(width, across)
    if name in ("YUY2", "YVYU", "UYVY", "VYUY"):
        return [(height, 2 * half(width, 2), 2)]
    if name.startswith(("NV", "P0")):
        return [(height, width, 1), (*chroma, 2)]
    return [(height, width, 1), (*chroma, 1), (*chroma, 1)]


def make_frame(
    name, width, height, seed=0, padding=0, matrix="bt709", range_=None, content="noise", device="cpu"
):
    """Returns a stand-in for a frame, with planes in NumPy."""
    random = np.random.default_rng(seed)
    kind = np.uint16 if name in BITS else np.uint8
    top = 1 << BITS.get(name, 8)
    planes = []
    for rows, columns, components in row_shapes(name, width, height):
        stride = columns * components + padding
        if content == "noise":
            memory = random.integers(0, top, (rows, stride)).astype(kind)
        else:
            memory = np.full((rows, stride), content, kind)
        memory <<= SHIFT.get(name, 0)
        if name in SHIFT:
            # The lower bits are no part of the sample.
            memory |= random.integers(0, 1 << SHIFT[name], memory.shape).astype(kind)
        plane = memory[:, : columns * components]
        planes.append(plane if components == 1 else plane.reshape(rows, columns, components))
    if range_ is None:
        range_ = "limited" if name in SUB else "full"
    colors = types.SimpleNamespace(matrix=matrix if name in SUB else "rgb", range=range_)
    frame = types.SimpleNamespace(
        format=name, width=width, height=height, colorimetry=colors, device=device, planes=planes, used=[]
    )
    frame.used_on = frame.used.append
    return frame


def components(frame):
    """Returns Y, U and V, or R, G and B, as float64, and the columns and rows of the image for each."""
    name, width, height = frame.format, frame.width, frame.height
    planes = [np.asarray(plane).reshape(len(plane), -1) >> SHIFT.get(name, 0) for plane in frame.planes]
    if name.startswith("GRAY"):
        return [planes[0].astype(float)] * 3, [(1, 1)] * 3
    if name not in SUB:
        pixels = planes[0].reshape(height, width, len(name))
        return [pixels[:, :, name.index(letter)].astype(float) for letter in "RGB"], [(1, 1)] * 3
    subs = [(1, 1), SUB[name], SUB[name]]
    if name in ("YUY2", "YVYU", "UYVY", "VYUY"):
        pairs = planes[0].reshape(height, -1, 4)
        at = {"YUY2": (0, 2, 1, 3), "YVYU": (0, 2, 3, 1), "UYVY": (1, 3, 0, 2), "VYUY": (1, 3, 2, 0)}[name]
        luma = np.stack([pairs[:, :, at[0]], pairs[:, :, at[1]]], axis=2).reshape(height, -1)[:, :width]
        found = [luma, pairs[:, :, at[2]], pairs[:, :, at[3]]]
    elif len(planes) == 2:
        chroma = planes[1].reshape(len(planes[1]), -1, 2)
        found = [planes[0], chroma[:, :, 0], chroma[:, :, 1]]
        if name == "NV21":
            found[1:] = found[:0:-1]
    else:
        found = planes[:1] + (planes[:0:-1] if name == "YV12" else planes[1:])
    return [plane.astype(float) for plane in found], subs


def at_positions(samples, sub, frame, size):
    """Returns the samples at the centers of the result's pixels."""
    rows, columns = samples.shape
    x = (np.arange(size[0]) + 0.5) * frame.width / size[0]
    y = (np.arange(size[1]) + 0.5) * frame.height / size[1]
    # Distances from the first sample's center: chroma lies on the left column and between the rows.
    x = x / 2 - 0.25 if sub[0] == 2 else x - 0.5
    y = y / 2 - 0.5 if sub[1] == 2 else y - 0.5
    x, y = np.meshgrid(x.clip(0, columns - 1), y.clip(0, rows - 1))
    left, top = np.floor(x).astype(int), np.floor(y).astype(int)
    right, bottom = (left + 1).clip(max=columns - 1), (top + 1).clip(max=rows - 1)
    x, y = x - left, y - top
    return (
        samples[top, left] * (1 - x) * (1 - y)
        + samples[top, right] * x * (1 - y)
        + samples[bottom, left] * (1 - x) * y
        + samples[bottom, right] * x * y
    )


def rgb(frame, size=None):
    """Returns the frame as RGB from 0 to 1, channels last, in float64."""
    size = size or (frame.width, frame.height)
    planes, subs = components(frame)
    signal = np.stack([at_positions(plane, sub, frame, size) for plane, sub in zip(planes, subs)], axis=-1)
    bits, is_full = BITS.get(frame.format, 8), frame.colorimetry.range == "full"
    top = 2**bits - 1
    black, white = (0, top) if is_full else (16 * 2 ** (bits - 8), 235 * 2 ** (bits - 8))
    if frame.format not in SUB:
        return ((signal - black) / (white - black)).clip(0, 1)
    span = top if is_full else 224 * 2 ** (bits - 8)
    red, blue = RED_BLUE[frame.colorimetry.matrix]
    luma = np.array([red, 1 - red - blue, blue])
    forward = np.stack([
        luma,
        (np.array([0, 0, 1]) - luma) / (2 * (1 - blue)),
        (np.array([1, 0, 0]) - luma) / (2 * (1 - red)),
    ])  # fmt: skip
    signal -= [black, 2 ** (bits - 1), 2 ** (bits - 1)]
    signal /= [white - black, span, span]
    return (signal @ np.linalg.inv(forward).T).clip(0, 1)


def difference(found, frame, size=None, layout="chw"):
    """Returns the greatest difference of a result to the reference, in code values of 8 bits."""
    expected = rgb(frame, size)
    found = np.asarray(found)
    if layout == "chw":
        found = found.transpose(1, 2, 0)
    assert found.shape == expected.shape, (found.shape, expected.shape)
    scale = 255 if found.dtype == np.uint8 else 1
    return float(np.abs(found.astype(float) / scale - expected).max() * 255)
