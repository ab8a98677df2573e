# SPDX-License-Identifier: MIT OR Apache-2.0
"""RGB of the frames of a stream, and that of GStreamer."""

import shutil
import subprocess
import types

import frameshare
import numpy as np
import pytest
from conftest import GPU_EXPORT, run_well, wait_for
from rgb_reference import BITS, difference, row_shapes
from support import PATIENCE, simulated_driver


def stand_in(frame):
    """Returns the frame with copies of its planes."""
    colors = types.SimpleNamespace(matrix=frame.colorimetry.matrix, range=frame.colorimetry.range)
    return types.SimpleNamespace(
        format=frame.format,
        width=frame.width,
        height=frame.height,
        colorimetry=colors,
        planes=[np.array(plane) for plane in frame.planes],
    )


@pytest.mark.parametrize("size", ["64x48", "33x17"])
@pytest.mark.parametrize("name", ["NV12", "I420", "YUY2", "P010_10LE", "RGB", "BGRx", "GRAY8"])
def test_frame_of_stream_is_converted_as_reference(processes, name, size):
    processes.pipeline(
        f"videotestsrc is-live=true pattern=smpte ! video/x-raw,format={name},width={size[:2]},height={size[3:]}"
        f" ! framesharesink socket-path={processes.path()}"
    )
    with frameshare.open(processes.path(), device="cpu") as stream, stream.next(PATIENCE) as frame:
        found = frame.rgb(like="numpy")
        small = frame.rgb(np.empty((9, 16, 3), np.float32))
        frame = stand_in(frame)
    assert difference(found, frame) <= 0.51
    assert difference(small, frame, (16, 9), "hwc") <= 0.01


def test_conversion_leaves_no_view_of_frame(processes):
    processes.publish()
    with frameshare.open(processes.path(), device="cpu") as stream:
        frame = stream.next()
        image = frame.rgb(like="numpy")
        frame.release()
        assert image.shape == (3, frame.height, frame.width)
        with pytest.raises(frameshare.ReleasedError):
            frame.rgb(like="numpy")


def test_frame_in_gpu_memory_is_downloaded_for_numpy(processes):
    """On the simulated driver, which the process finds by LD_LIBRARY_PATH."""
    driver = simulated_driver()
    wait_for(processes.path(), processes.start([GPU_EXPORT, processes.path()], **driver))
    program = """
import sys
import frameshare
from rgb_reference import difference, make_frame

with frameshare.open(sys.argv[1]) as stream:
    for _ in range(5):
        with stream.next(60) as frame:
            assert frame.device == "cuda:0"
            found = frame.rgb()
        # The exporter fills frame n with n - 1.
        expected = make_frame("NV12", 640, 360, matrix="bt601", content=(frame.sequence - 1) % 256)
        assert difference(found, expected) <= 0.51, frame.sequence
print("converted")
"""
    assert run_well(program, processes.path(), **driver).endswith("converted\n")


FLAT = ["gradient", "colors", "solid-color foreground-color=0xff2080c0"]
# Edges of chroma differ where it is interpolated: videoconvert repeats samples.
CASES = [
    ("NV12", "bt709", 6, FLAT),
    ("YUY2", "bt601", 6, FLAT),
    ("P010_10LE", "bt709", 1, FLAT),
    ("Y444", "bt709", 6, [*FLAT, "smpte"]),
    ("Y444", "bt2020", 6, [*FLAT, "smpte"]),
    ("Y444", "1:4:0:0", 6, [*FLAT, "smpte"]),
]


@pytest.mark.skipif(shutil.which("gst-launch-1.0") is None, reason="needs gst-launch-1.0")
@pytest.mark.parametrize(
    "name, colorimetry, limit, pattern",
    [(*case, pattern) for *case, patterns in CASES for pattern in patterns],
)
def test_conversion_agrees_with_videoconvert(tmp_path, name, colorimetry, limit, pattern):
    width, height = 320, 240
    # videoconvert reduces 10 bits to 8 with noise by default.
    subprocess.run(
        f"gst-launch-1.0 -q videotestsrc num-buffers=1 pattern={pattern}"
        f" ! video/x-raw,format={name},width={width},height={height},colorimetry={colorimetry} ! tee name=t"
        f" t. ! queue ! filesink location={tmp_path}/raw"
        f" t. ! queue ! videoconvert dither=none ! video/x-raw,format=RGB ! filesink location={tmp_path}/rgb".split(),
        check=True,
        timeout=60,
    )
    raw = np.fromfile(tmp_path / "raw", np.uint16 if name in BITS else np.uint8)
    planes, at = [], 0
    for shape in row_shapes(name, width, height):
        planes.append(raw[at : at + np.prod(shape)].reshape(shape))
        at += planes[-1].size
    assert at == raw.size
    matrix, range_ = ("bt601", "full") if colorimetry == "1:4:0:0" else (colorimetry, "limited")
    colors = types.SimpleNamespace(matrix=matrix, range=range_)
    frame = types.SimpleNamespace(
        format=name, width=width, height=height, colorimetry=colors, device="cpu", planes=planes
    )
    found = frameshare.Frame.rgb(frame, like="numpy", layout="hwc")
    expected = np.fromfile(tmp_path / "rgb", np.uint8).reshape(height, width, 3)
    assert np.abs(found.astype(int) - expected).max() <= limit
