# SPDX-License-Identifier: MIT OR Apache-2.0
"""The CUDA kernel: one thread for each pixel of the result.

Integers are `long long` and numbers `double` because CuPy passes Python's numbers so.
"""

from collections.abc import Sequence

from ._formats import Format
from ._request import Request
from ._sampling import axes

NAME = "frameshare_rgb"
# Threads of a block: columns and rows.
BLOCK = (32, 8)

_OUT = {"uint8": "unsigned char", "float16": "unsigned short", "float32": "float"}

_BODY = r"""
#ifndef TO_HALF
__device__ unsigned short to_half(float value)
{
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
#define TO_HALF to_half
#endif

struct Axis {
    float factor, shift;
    int samples;
};

__device__ float load(const SAMPLE *row, int column)
{
    return (float)(row[column] >> SHIFT);
}

/* Returns the sample at a pixel of the result, between up to four of the component. */
__device__ float sample(const SAMPLE *plane, long long stride, int first, int step, Axis across, Axis down,
                        int x, int y)
{
    float column = fminf(fmaxf((x + 0.5f) * across.factor - across.shift, 0.0f), (float)(across.samples - 1));
    float row = fminf(fmaxf((y + 0.5f) * down.factor - down.shift, 0.0f), (float)(down.samples - 1));
    int left = (int)column, top = (int)row;
    int right = left + 1 < across.samples ? left + 1 : left;
    int bottom = top + 1 < down.samples ? top + 1 : top;
    const SAMPLE *upper = plane + top * stride + first, *lower = plane + bottom * stride + first;
    float part = column - left;
    float above = load(upper, left * step) * (1.0f - part) + load(upper, right * step) * part;
    float below = load(lower, left * step) * (1.0f - part) + load(lower, right * step) * part;
    part = row - top;
    return above * (1.0f - part) + below * part;
}

__device__ void store(OUT *out, float value)
{
    value = fminf(fmaxf(value, 0.0f), LIMIT);
#if OUT_IS_uint8
    *out = (unsigned char)(value + 0.5f);
#elif OUT_IS_float16
    *out = TO_HALF(value);
#else
    *out = value;
#endif
}

extern "C" __global__ void frameshare_rgb(
    const SAMPLE *plane0, const SAMPLE *plane1, const SAMPLE *plane2,
    long long stride0, long long stride1, long long stride2,
    AXES(0), AXES(1), AXES(2),
    double m00, double m01, double m02,
    double m10, double m11, double m12,
    double m20, double m21, double m22,
    double offset0, double offset1, double offset2,
    OUT *out, long long out_channel, long long out_row, long long out_column,
    long long width, long long height)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height)
        return;
    float a = COMPONENT0, b = COMPONENT1, c = COMPONENT2;
    OUT *pixel = out + y * out_row + x * out_column;
    store(pixel, (float)m00 * a + (float)m01 * b + (float)m02 * c + (float)offset0);
    store(pixel + out_channel, (float)m10 * a + (float)m11 * b + (float)m12 * c + (float)offset1);
    store(pixel + 2 * out_channel, (float)m20 * a + (float)m21 * b + (float)m22 * c + (float)offset2);
}
"""


def source(pixels: Format, dtype: str, is_same_size: bool) -> str:
    """Returns the source of the kernel for a format, a dtype, and results of the frame's size or others."""
    lines = [
        f"#define SAMPLE {'unsigned char' if pixels.sample_bytes == 1 else 'unsigned short'}",
        f"#define SHIFT {pixels.shift}",
        f"#define OUT {_OUT[dtype]}",
        f"#define OUT_IS_{dtype} 1",
        f"#define LIMIT {255.0 if dtype == 'uint8' else 1.0}f",
        "#define AXES(i) double across_factor##i, double across_shift##i, long long across_samples##i, \\",
        "    double down_factor##i, double down_shift##i, long long down_samples##i",
    ]
    for index in range(3):
        if index >= len(pixels.components):
            lines.append(f"#define COMPONENT{index} a")
            continue
        plane, first, step, sub_x, sub_y = pixels.components[index]
        if is_same_size and (sub_x, sub_y) == (1, 1):
            value = f"load(plane{plane} + y * stride{plane} + {first}, x * {step})"
        else:
            across, down = (
                f"Axis{{(float){way}_factor{index}, (float){way}_shift{index}, (int){way}_samples{index}}}"
                for way in ("across", "down")
            )
            value = f"sample(plane{plane}, stride{plane}, {first}, {step}, {across}, {down}, x, y)"
        lines.append(f"#define COMPONENT{index} {value}")
    return "\n".join(lines) + _BODY


def arguments(request: Request, planes: Sequence[tuple[int, int]], out: Sequence[int]) -> list[int | float]:
    """Returns the arguments of the kernel for planes of these addresses and strides."""
    pixels, color = request.pixels, request.color
    three = [*planes, *[planes[0]] * (3 - len(planes))]
    numbers: list[int | float] = [address for address, _ in three]
    numbers += [stride for _, stride in three]
    for index in range(3):
        component = min(index, len(pixels.components) - 1)
        for axis in axes(pixels, component, request.source_size, request.size):
            numbers += axis[1:]
    for row in color.rows:
        numbers += row
    numbers += color.offsets
    return [*numbers, *out, *request.size]
