# SPDX-License-Identifier: MIT OR Apache-2.0

"""Frames of other processes, compared byte by byte, and their descriptions."""

import time
import zlib

import numpy
import pytest
from conftest import TARGET, run_well, wait_for
from support import PATIENCE
from numpy.lib.stride_tricks import as_strided

import frameshare

COUNT = 20


def up(number, step):
    return -(-number // step) * step


def layout(name, width, height):
    """GStreamer's default layout: of each plane its offset, type, shape and strides; and the size."""
    half = (up(width, 2) // 2, up(height, 2) // 2)
    if name == "NV12":
        stride = up(width, 4)
        chroma = stride * up(height, 2)
        return [
            (0, "u1", (height, width), (stride, 1)),
            (chroma, "u1", (half[1], half[0], 2), (stride, 2, 1)),
        ], chroma + stride * half[1]
    if name == "P010_10LE":
        stride = up(2 * width, 4)
        chroma = stride * up(height, 2)
        return [
            (0, "<u2", (height, width), (stride, 2)),
            (chroma, "<u2", (half[1], half[0], 2), (stride, 4, 2)),
        ], chroma + stride * half[1]
    if name == "I420":
        strides = (up(width, 4), up(half[0], 4))
        sizes = (strides[0] * up(height, 2), strides[1] * half[1])
        return [
            (0, "u1", (height, width), (strides[0], 1)),
            (sizes[0], "u1", (half[1], half[0]), (strides[1], 1)),
            (sizes[0] + sizes[1], "u1", (half[1], half[0]), (strides[1], 1)),
        ], sizes[0] + 2 * sizes[1]
    samples = {"GRAY8": 1, "YUY2": 2, "RGB": 3, "BGRA": 4, "GRAY16_LE": 2}[name]
    if name == "GRAY16_LE":
        stride = up(2 * width, 4)
        return [(0, "<u2", (height, width), (stride, 2))], stride * height
    stride = up(width * samples, 4)
    shape = (height, width, samples) if samples > 1 else (height, width)
    return [(0, "u1", shape, (stride, samples, 1)[: len(shape)])], stride * height


@pytest.mark.parametrize("size", [(640, 480), (322, 242)])
@pytest.mark.parametrize("name", ["NV12", "I420", "P010_10LE", "YUY2", "RGB", "BGRA", "GRAY8", "GRAY16_LE"])
def test_frames_of_gstreamer_equal_its_file(processes, tmp_path, name, size):
    width, height = size
    path, file = processes.path(), tmp_path / "raw"
    source = processes.pipeline(
        f"videotestsrc num-buffers={COUNT} pattern=ball ! video/x-raw,format={name},width={width},height={height}"
        f",framerate=60/1 ! tee name=t t. ! queue ! filesink location={file} "
        f"t. ! queue ! framesharesink socket-path={path} wait-for-connection=true sync=false"
    )
    wait_for(path, source)
    seen = []
    with frameshare.open(path, policy="lossless", reconnect=False) as stream:
        for frame in stream:
            assert (frame.format, frame.width, frame.height) == (name, width, height)
            arrays = [numpy.asarray(plane) for plane in frame.planes]
            seen.append([(a.shape, a.dtype.str.replace("|", ""), zlib.crc32(a.tobytes())) for a in arrays])
            assert not any(array.flags.writeable for array in arrays)
            assert not any(array.flags.owndata for array in arrays)
    assert stream.has_ended
    source.communicate()
    planes, size = layout(name, width, height)
    data = numpy.fromfile(file, dtype="u1").reshape(COUNT, size)
    expected = [
        [
            (shape, kind, zlib.crc32(as_strided(raw[offset:].view(kind), shape, strides).tobytes()))
            for offset, kind, shape, strides in planes
        ]
        for raw in data
    ]
    assert seen == expected
    assert len({str(one) for one in seen}) > COUNT // 2, "the pattern does not move"


def test_frames_of_engine_equal_their_formula(processes):
    path = processes.path()
    wait_for(path, processes.start([TARGET / "examples" / "engine-export", path]))
    numbers = []
    with frameshare.open(path, policy="lossless", reconnect=False) as stream:
        for frame in stream:
            image = numpy.from_dlpack(frame)
            number = int(image[0, 0])
            assert (image == (numpy.arange(640) + number).astype("u1")).all()
            assert frame.lost_before == 0
            numbers.append((frame.sequence, number))
    assert numbers == [(number + 1, number) for number in range(90)]


def test_frame_of_overlapping_rows_takes_no_memory(processes):
    """A hostile exporter says RGB 30000x30000 of a frame of 128 KiB."""
    program = """
import resource, sys
import frameshare, numpy
frame = frameshare.open(sys.argv[1], device="cpu").next(60)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for read in [lambda: frame.rgb(like="numpy"), lambda: frame.plane(0), lambda: numpy.from_dlpack(frame)]:
    try:
        read()
    except frameshare.Error as error:
        assert "rows of plane 0 overlap" in str(error), error
    else:
        raise SystemExit("it was read")
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10, "MiB more")
"""
    path = processes.path()
    wait_for(path, processes.start([TARGET / "hostile", "exporter", path, "frame-of-overlapping-rows", "stay"]))
    more, _ = run_well(program, path).split(maxsplit=1)
    assert int(more) < 100


def test_frame_describes_itself(processes):
    processes.publish("--format", "NV12", "--size", "1280x720", "--rate", "25")
    with frameshare.open(processes.path()) as stream:
        first, second = stream.next(PATIENCE), stream.next(PATIENCE)
        assert second.sequence > first.sequence >= 1
        assert second.session == first.session != 0
        assert abs(time.monotonic_ns() - second.pts) < 60e9
        assert second.duration in (None, 40_000_000)
        assert 0 <= second.age < 60
        assert second.lost_before == second.sequence - first.sequence - 1
        assert second.device == "cpu"
        color = second.colorimetry
        found = (color.matrix, color.range, color.transfer, color.primaries, str(color))
        assert found == ("bt709", "limited", "bt709", "bt709", "bt709")
        assert not second.metas
        assert "NV12 1280x720" in repr(second) and str(second.sequence) in repr(second)
        luma, chroma = second.planes
        assert (luma.width, luma.height, luma.stride, luma.components) == (1280, 720, 1280, 1)
        assert (chroma.width, chroma.height, chroma.components, chroma.element) == (640, 360, 2, "uint8")
        assert (chroma.shape, chroma.strides) == ((360, 640, 2), (1280, 2, 1))
        with pytest.raises(IndexError, match="no plane 2: the frame has 2"):
            second.plane(2)
        with pytest.raises(IndexError, match="no plane -1: the frame has 2"):
            second.plane(-1)
        assert len({color, second.colorimetry}) == 1


def test_buffer_is_given_as_asked(processes):
    """Consumers of plain bytes get rows without padding only."""
    processes.publish("--format", "GRAY8", "--size", "640x480")
    processes.publish("--format", "GRAY8", "--size", "322x240", path=processes.path("padded"))
    with frameshare.open(processes.path()) as stream, frameshare.open(processes.path("padded")) as padded:
        plane = stream.next(PATIENCE).plane(0)
        view = memoryview(plane)
        assert (view.format, view.itemsize, view.ndim, view.shape) == ("B", 1, 2, (480, 640))
        assert (view.strides, view.nbytes, view.readonly, view.c_contiguous) == ((640, 1), 480 * 640, True, True)
        assert bytes(plane) == view.tobytes() == numpy.asarray(plane).tobytes()
        assert zlib.crc32(plane) == zlib.crc32(view.tobytes())
        plane = padded.next(PATIENCE).plane(0)
        view = memoryview(plane)
        assert (view.shape, view.strides, view.contiguous) == ((240, 322), (324, 1), False)
        with pytest.raises(BufferError, match="rows of the plane have padding"):
            zlib.crc32(plane)
        assert view.tobytes() == numpy.asarray(plane).tobytes()


def test_encoded_stream_has_no_planes(processes):
    path = processes.path()
    processes.pipeline(f"videotestsrc is-live=true ! jpegenc ! framesharesink encoded=true socket-path={path}")
    with frameshare.open(path) as stream:
        frame = stream.next(PATIENCE)
        for use in (lambda: frame.format, lambda: frame.planes, lambda: memoryview(frame)):
            with pytest.raises(frameshare.UnsupportedError, match="frames are image/jpeg, not video/x-raw"):
                use()


@pytest.mark.parametrize(
    ("name", "size", "rows"),
    [("NV12", (640, 480), 720), ("NV12", (322, 242), 363), ("I420", (640, 480), 720), ("YUY2", (640, 480), 480)],
)
def test_touching_planes_are_one_array(processes, name, size, rows):
    processes.publish("--format", name, "--size", "{}x{}".format(*size))
    with frameshare.open(processes.path()) as stream:
        frame = stream.next(PATIENCE)
        whole = numpy.asarray(frame)
        assert whole.shape[:2] == (rows, size[0])
        apart = b"".join(numpy.asarray(plane).tobytes() for plane in frame.planes)
        assert whole.tobytes() == apart
        assert numpy.from_dlpack(frame).tobytes() == apart


@pytest.mark.parametrize(
    ("name", "size", "text"),
    [("I420", "322x242", "different lengths"), ("NV12", "322x243", "not behind the plane before it")],
)
def test_planes_apart_are_no_array(processes, name, size, text):
    processes.publish("--format", name, "--size", size)
    with frameshare.open(processes.path()) as stream:
        frame = stream.next(PATIENCE)
        for export in (memoryview, numpy.from_dlpack):
            with pytest.raises(BufferError, match=text):
                export(frame)
        assert numpy.asarray(frame.plane(0)).any()
