# SPDX-License-Identifier: MIT OR Apache-2.0

"""Publishing: arrays, slots written in place, metas, and the text of each error."""

import array
import concurrent.futures
import ctypes
import fractions
import os
import pickle
import signal
import sys
import threading
import time
import types

import frameshare
import numpy
import pytest
from consumer import Imported
from support import PATIENCE, wait_until


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("FRAMESHARE_PATH", raising=False)


def created(format="RGB", width=640, height=480, **options):
    return frameshare.create("cam0", format=format, width=width, height=height, **options)


def opened(**options):
    return frameshare.open("cam0", **{"policy": "lossless", "connection_timeout": PATIENCE, **options})


def image(*shape, dtype="uint8"):
    return numpy.random.default_rng(7).integers(0, 255, shape, dtype=dtype)


def planes_of(frame):
    return [numpy.array(plane) for plane in frame.planes]


@pytest.mark.parametrize(
    ("format", "shape", "dtype"),
    [
        ("RGB", (480, 640, 3), "uint8"),
        ("RGBA", (480, 640, 4), "uint8"),
        ("BGR", (480, 640, 3), "uint8"),
        ("GRAY8", (480, 640), "uint8"),
        ("GRAY16_LE", (480, 640), "uint16"),
        ("YUY2", (480, 640, 2), "uint8"),
    ],
)
def test_packed_array_arrives_unchanged(format, shape, dtype):
    data = image(*shape, dtype=dtype)
    with created(format) as exporter, opened() as stream:
        assert exporter.publish(data) == 1
        frame = stream.next(PATIENCE)
        assert (frame.format, frame.width, frame.height, frame.device) == (format, 640, 480, "cpu")
        assert numpy.array_equal(planes_of(frame)[0], data)


@pytest.mark.parametrize(("width", "height"), [(640, 480), (642, 482)])
@pytest.mark.parametrize("format", ["NV12", "I420", "P010_10LE", "Y444", "NV16"])
def test_planes_arrive_from_one_array_and_from_several(format, width, height):
    dtype = "uint16" if format == "P010_10LE" else "uint8"
    with created(format, width, height) as exporter, opened() as stream:
        with exporter.acquire() as slot:
            shapes = [plane.shape for plane in slot.planes]
        stream.next(PATIENCE)
        planes = [image(*shape, dtype=dtype) for shape in shapes]
        flat = numpy.concatenate([plane.ravel() for plane in planes])
        for data in (planes, tuple(planes), flat, flat.reshape(-1, width)):
            exporter.publish(data)
            found = planes_of(stream.next(PATIENCE))
            assert all(numpy.array_equal(*pair) for pair in zip(found, planes, strict=True))


def test_rows_with_padding_and_in_reverse_arrive():
    data = image(480, 700, 3)
    with created() as exporter, opened() as stream:
        for view in (data[:, :640], data[::-1, :640], image(960, 640, 3)[::2]):
            exporter.publish(view)
            assert numpy.array_equal(planes_of(stream.next(PATIENCE))[0], view)
    whole = image(720, 700)[:, :640]
    with created("NV12") as exporter, opened() as stream:
        exporter.publish(whole)
        luma, chroma = planes_of(stream.next(PATIENCE))
        assert numpy.array_equal(luma, whole[:480])
        assert numpy.array_equal(chroma.reshape(240, 640), whole[480:])


def test_buffers_and_read_only_arrays_arrive():
    data = image(480, 640)
    frozen = data.copy()
    frozen.flags.writeable = False
    with created("GRAY8") as exporter, opened() as stream:
        for source in (
            data.tobytes(),
            bytearray(data),
            memoryview(data),
            array.array("B", data.tobytes()),
            frozen,
        ):
            exporter.publish(source)
            assert numpy.array_equal(planes_of(stream.next(PATIENCE))[0], data)


class OnlyDlpack:
    """An array of a library that has DLPack alone, in an early or a later version."""

    def __init__(self, data, is_versioned):
        self.data, self.is_versioned = data, is_versioned

    def __dlpack_device__(self):
        return self.data.__dlpack_device__()

    def __dlpack__(self, **options):
        if "max_version" in options and not self.is_versioned:
            raise TypeError("unexpected keyword argument 'max_version'")
        return self.data.__dlpack__(**options)


@pytest.mark.parametrize("is_versioned", [True, False])
def test_dlpack_arrives(is_versioned):
    data = image(480, 640, 3)
    with created() as exporter, opened() as stream:
        exporter.publish(OnlyDlpack(data, is_versioned))
        assert numpy.array_equal(planes_of(stream.next(PATIENCE))[0], data)


def test_frame_of_another_stream_is_published_again():
    data = image(480, 640, 3)
    with created() as exporter, opened() as stream:
        with frameshare.create("again", format="RGB", width=640, height=480) as other:
            with frameshare.open("again", policy="lossless") as reader:
                exporter.publish(data)
                with stream.next(PATIENCE) as frame:
                    other.publish(frame.planes)
                assert numpy.array_equal(planes_of(reader.next(PATIENCE))[0], data)


def test_times_and_duration_arrive():
    with created("GRAY8", rate=25) as exporter, opened() as stream:
        data = image(480, 640)
        before = time.monotonic_ns()
        exporter.publish(data)
        frame = stream.next(PATIENCE)
        assert before <= frame.pts <= time.monotonic_ns()
        assert frame.duration == 40_000_000
        exporter.publish(data, 5, duration=7)
        frame = stream.next(PATIENCE)
        assert (frame.pts, frame.duration) == (5, 7)


@pytest.mark.parametrize(
    ("rate", "duration"),
    [
        (30, 33_333_333),
        (29.97, 33_366_666),
        (12.5, 80_000_000),
        ((30000, 1001), 33_366_666),
        ("25/2", 80_000_000),
        (fractions.Fraction(50), 20_000_000),
        (None, None),
    ],
)
def test_rate_takes_numbers_fractions_and_pairs(rate, duration):
    with created("GRAY8", rate=rate) as exporter, opened() as stream:
        exporter.publish(image(480, 640))
        assert stream.next(PATIENCE).duration == duration


METAS = [
    ("detector", {"model": "v3", "score": 0.5, "count": 2, "large": 1 << 40, "seen": True, "raw": b"\0\1"}),
    ("detector", {"boxes": [[1, 2, 3, 4], [5, 6, 7, 8]], "extra": {"deep": {"none": None}}}),
    (
        "GstVideoRegionOfInterestMeta",
        {
            "type": "face",
            "id": 3,
            "parent": 0,
            "x": 1,
            "y": 2,
            "width": 3,
            "height": 4,
            "params": {"p": {"a": 1}},
        },
    ),
    (
        "GstReferenceTimestampMeta",
        {"reference": "timestamp/x-unix", "timestamp": 1_700_000_000_000_000_001, "duration": None},
    ),
]


def test_metas_arrive():
    with created("GRAY8") as exporter, opened() as stream:
        data = image(480, 640)
        exporter.publish(data, metas=METAS)
        assert stream.next(PATIENCE).metas == METAS
        exporter.publish(data, metas=dict(METAS[:1]))
        assert stream.next(PATIENCE).metas == METAS[:1]
        exporter.publish(data)
        assert stream.next(PATIENCE).metas == []
        with exporter.acquire(metas=METAS[2:]):
            pass
        assert stream.next(PATIENCE).metas == METAS[2:]
        with exporter.acquire() as slot:
            slot.metas = {"late": {"x": 1}}
            slot.pts = 9
        frame = stream.next(PATIENCE)
        assert (frame.metas, frame.pts) == ([("late", {"x": 1})], 9)


@pytest.mark.parametrize(
    ("metas", "error", "text"),
    [
        (5, TypeError, "'int' object is not iterable"),
        ([("a",)], TypeError, "a meta is ('a',), but must be a name and a dictionary of values"),
        ({"a": 1}, TypeError, "a meta is ('a', 1), but must be a name and a dictionary of values"),
        (
            {"a": {"x": object}},
            TypeError,
            "a value of a meta is a type, but must be None, a bool, int, float, str, bytes",
        ),
        ({"1st": {}}, ValueError, "a meta has an invalid name of a structure"),
        ({"a": {"": 1}}, ValueError, "a meta has an invalid name of a field"),
        ({"a": {"x": 1 << 64}}, ValueError, "18446744073709551616 has more than 64 bits"),
        ({"GstVideoCropMeta": {"x": 1}}, ValueError, "a GstVideoCropMeta needs y: a number of pixels"),
        ({"GstReferenceTimestampMeta": {}}, ValueError, "a GstReferenceTimestampMeta needs reference"),
        ({"GstVideoRegionOfInterestMeta": {}}, ValueError, 'needs type: a name such as "face"'),
    ],
)
def test_invalid_metas_are_refused(metas, error, text):
    with created("GRAY8") as exporter, pytest.raises(error) as raised:
        exporter.publish(image(480, 640), metas=metas)
    assert text in str(raised.value)


def test_deep_metas_are_refused():
    deep = {}
    for _ in range(40):
        deep = {"x": deep}
    with created("GRAY8") as exporter, pytest.raises(ValueError, match="nest more than 16 deep"):
        exporter.publish(image(480, 640), metas={"a": deep})


RGB = "frames of RGB 640x480 are uint8 (480, 640, 3)"
NV12 = "frames of NV12 640x480 are uint8 (720, 640), or a list of (480, 640), (240, 320, 2)"
I420 = "frames of I420 642x480 are uint8 (720, 642), or a list of (480, 642), (240, 321), (240, 321)"


@pytest.mark.parametrize(
    ("format", "data", "error", "text"),
    [
        (
            "RGB",
            image(480, 640, 3).astype("float32"),
            ValueError,
            f"cannot publish float32 (480, 640, 3): {RGB}",
        ),
        ("RGB", image(480, 640, 3).astype("int8"), ValueError, f"cannot publish int8 (480, 640, 3): {RGB}"),
        ("RGB", image(480, 640, 3).astype("bool"), ValueError, f"cannot publish bool8 (480, 640, 3): {RGB}"),
        ("RGB", image(3, 480, 640), ValueError, f"cannot publish uint8 (3, 480, 640): {RGB}"),
        ("RGB", image(480, 640), ValueError, f"cannot publish uint8 (480, 640): {RGB}"),
        ("RGB", b"abc", ValueError, f"cannot publish uint8 (3,): {RGB}"),
        ("RGB", numpy.uint8(3), ValueError, f"cannot publish uint8 (): {RGB}"),
        (
            "RGB",
            image(3, 480, 640).transpose(1, 2, 0),
            ValueError,
            "strides of (640, 1, 307200) bytes: the elements",
        ),
        (
            "RGB",
            image(480, 1280, 3)[:, ::2],
            ValueError,
            "with strides of (3840, 6, 1) bytes: the elements of a row",
        ),
        ("RGB", image(480, 640, 6)[..., ::2], ValueError, "have to lie one after the other"),
        ("NV12", image(480, 640), ValueError, f"cannot publish uint8 (480, 640): {NV12}"),
        ("NV12", [image(480, 640)], ValueError, f"cannot publish 1 planes: {NV12}"),
        (
            "NV12",
            [image(480, 640), image(240, 640, 2)],
            ValueError,
            f"cannot publish uint8 (240, 640, 2): {NV12}",
        ),
        ("I420", image(480, 642), ValueError, f"cannot publish uint8 (480, 642): {I420}"),
        (
            "I420",
            image(720, 700)[:, :642],
            ValueError,
            "all planes of I420 in one array have to lie one after the other",
        ),
        ("GRAY16_LE", image(480, 640), ValueError, "are uint16 (480, 640)"),
        (
            "GRAY16_LE",
            image(480, 640, dtype="uint16").astype(">u2"),
            ValueError,
            "uint16 of the other byte order",
        ),
        (
            "RGB",
            3,
            TypeError,
            "cannot publish a int: expected a NumPy array, a buffer, or an array or tensor with DLPack",
        ),
        ("RGB", None, TypeError, "cannot publish a NoneType: expected"),
        ("RGB", "text", TypeError, "cannot publish a str: expected"),
    ],
)
def test_invalid_array_is_refused_with_the_expected_one(format, data, error, text):
    with created(format, width=642 if format == "I420" else 640) as exporter, opened() as stream:
        with pytest.raises(error) as raised:
            exporter.publish(data)
        assert text in str(raised.value)
        # Nothing was published, and the exporter goes on.
        with exporter.acquire():
            pass
        assert stream.next(PATIENCE).sequence == 1


class OnGpu:
    __cuda_array_interface__ = {
        "version": 3,
        "shape": (480, 640, 3),
        "strides": None,
        "typestr": "|u1",
        "data": (4096, False),
    }


def test_array_of_a_gpu_is_refused_on_the_host():
    with created() as exporter, pytest.raises(ValueError) as raised:
        exporter.publish(OnGpu())
    assert "on a GPU: frames of cam0 are in host memory; copy it there (tensor.cpu(), cupy.asnumpy)" in str(
        raised.value
    )


class OnGpuWithBuffer(ctypes.c_uint8 * (480 * 640 * 3)):
    """As an array of CuPy, which has the buffer protocol for managed memory."""

    __cuda_array_interface__ = OnGpu.__cuda_array_interface__


def test_array_of_a_gpu_is_not_taken_for_a_buffer():
    with (
        created() as exporter,
        pytest.raises(ValueError, match="on a GPU: frames of cam0 are in host memory"),
    ):
        exporter.publish(OnGpuWithBuffer())


@pytest.mark.parametrize(("limit", "granted"), [({}, 16), ({"max_held_limit": 20}, 20)])
def test_reader_learns_how_many_frames_it_may_hold(limit, granted, caplog):
    with created("GRAY8", **limit) as exporter, opened(max_held=64) as stream:
        assert (stream.max_held, stream.stats.max_held) == (64, granted)
        frames = []
        for number in range(1, granted + 1):
            exporter.publish(image(480, 640))
            frames.append(stream.next(PATIENCE))
            assert stream.stats.held == number
        with pytest.raises(frameshare.TimeoutError, match=rf"holds {granted} frames .*max_held_limit"):
            stream.next(0)
    # Another thread passes it on.
    wait_until(lambda: any(f"may hold {granted} frames instead of 64" in text for text in caplog.messages))


def test_results_may_be_held_as_created():
    with (
        frameshare.create_results("results", max_held_limit=40),
        frameshare.open_results("results", max_held=64) as results,
    ):
        assert results._stream.stats.max_held == 40


def test_reader_that_may_hold_as_many_is_not_warned(caplog):
    with created("GRAY8"), opened(max_held=16) as stream, opened() as other:
        assert (stream.stats.max_held, other.stats.max_held) == (16, 4)
    with created("GRAY8"), opened(max_held=17):
        wait_until(lambda: any("instead of 17" in text for text in caplog.messages))
    assert [text for text in caplog.messages if "instead of" in text and "instead of 17" not in text] == []


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"format": "XYZ"}, frameshare.UnsupportedError, "XYZ"),
        ({"width": 0}, ValueError, "the size is 0x480, but must not be 0"),
        ({"rate": "fast"}, ValueError, "rate is fast, but must be frames per second"),
        ({"rate": []}, TypeError, "rate is [], but must be frames per second"),
        ({"rate": -1}, ValueError, "rate is -1, but must be frames per second"),
        ({"rate": 0}, ValueError, "rate is 0, but must be more than 0, or None if frames have no fixed rate"),
        ({"rate": (0, 1)}, ValueError, "rate is (0, 1), but must be more than 0"),
        ({"rate": (30, 0)}, ValueError, "rate is (30, 0), but must be frames per second"),
        ({"width": -1}, ValueError, "width is -1, but must be a number from 0 to 4294967295"),
        ({"height": 1 << 40}, ValueError, "height is 1099511627776, but must be a number from 0 to 4294967295"),
        ({"max_slots": -2}, ValueError, "max_slots is -2, but must be a number from 0 to 4294967295"),
        ({"width": "64"}, TypeError, "width is a str, but must be a number"),
        (
            {"colorimetry": "bt13"},
            ValueError,
            'invalid colorimetry "bt13" for RGB: expected a name of GStreamer',
        ),
        ({"memory": "disk"}, ValueError, 'invalid memory "disk": expected "vmm", "pool" or "legacy"'),
        ({"memory": "vmm"}, ValueError, 'memory "vmm" is GPU memory: name a GPU, such as device=0'),
        (
            {"slow_readers": "kill"},
            ValueError,
            'invalid slow_readers "kill": expected "wait", "queue" or "disconnect"',
        ),
        ({"reader_timeout": -1.0}, ValueError, "reader_timeout is -1, but must be a number of seconds"),
        ({"history": -1}, ValueError, "history is -1, but must be a number from 0 to 4294967295"),
        ({"history": 2}, ValueError, 'history is "2", but must be 0, or 1 to keep the last frame'),
        ({"max_slots": 1}, ValueError, "max_slots is 1, but must be 4 to 1024"),
        ({"max_held_limit": 0}, ValueError, "max_held_limit is 0, but must be 1 to 64"),
        ({"max_held_limit": 65}, ValueError, "max_held_limit is 65, but must be 1 to 64"),
        ({"max_held_limit": -1}, ValueError, "max_held_limit is -1, but must be a number from 0"),
        ({"device": True}, TypeError, "device is True: pass None"),
        ({"device": 1.5}, TypeError, "device is 1.5: pass None"),
        ({"device": 0}, frameshare.UnsupportedError, 'use device="cpu" for frames in host memory'),
    ],
)
def test_invalid_options_are_refused(options, error, text):
    with pytest.raises(error) as raised:
        created(**options)
    assert text in str(raised.value)


def test_colorimetry_arrives():
    with created("NV12", colorimetry="bt2020") as exporter, opened() as stream:
        with exporter.acquire():
            pass
        assert str(stream.next(PATIENCE).colorimetry) == "bt2020"


def test_name_in_use_is_refused():
    with created():
        with pytest.raises(frameshare.Error, match="in use, held by"):
            created()
    with created():
        pass


def write_by_dlpack(plane, data):
    """NumPy 2.4 writes arrays of DLPack; 2.2 and older mark all of them as read-only."""
    if numpy.lib.NumpyVersion(numpy.__version__) >= "2.4.0":
        numpy.from_dlpack(plane)[...] = data
        return
    tensor = Imported(plane.__dlpack__(max_version=(1, 0)))
    assert (tensor.flags, tensor.shape) == (0, data.shape)
    ctypes.memmove(tensor.data, data.tobytes(), data.nbytes)
    tensor.free()


def test_slot_is_written_in_place_by_each_protocol():
    with created() as exporter, opened() as stream:
        data = image(480, 640, 3)
        writers = [
            lambda plane: numpy.asarray(plane).__setitem__(..., data),
            lambda plane: write_by_dlpack(plane, data),
            lambda plane: memoryview(plane).cast("B").__setitem__(slice(None), data.tobytes()),
            lambda plane: ctypes.memmove(plane.__array_interface__["data"][0], data.tobytes(), data.nbytes),
        ]
        for number, write in enumerate(writers, 1):
            with exporter.acquire() as slot:
                assert slot.sequence is None
                write(slot.plane(0))
            assert slot.sequence == number
            assert numpy.array_equal(planes_of(stream.next(PATIENCE))[0], data)


def test_slot_is_discarded_by_an_exception():
    with created() as exporter, opened() as stream:
        with pytest.raises(KeyError), exporter.acquire() as slot:
            raise KeyError
        with pytest.raises(frameshare.ReleasedError, match="the slot was discarded: acquire another one"):
            slot.planes
        with exporter.acquire() as slot:
            slot.discard()
        with exporter.acquire() as slot:
            slot.publish()
        with pytest.raises(
            frameshare.ReleasedError, match="the slot was published as frame 1: acquire another one"
        ):
            slot.plane(0)
        assert stream.next(PATIENCE).sequence == 1


def test_view_keeps_its_slot_out_of_use():
    with created(max_slots=24) as exporter, opened() as stream:
        with exporter.acquire() as slot:
            view = numpy.asarray(slot.plane(0))
            view[:] = 1
        assert planes_of(stream.next(PATIENCE))[0].max() == 1
        # A late write reaches no other frame.
        for value in range(2, 60):
            with exporter.acquire() as slot:
                numpy.asarray(slot.plane(0))[:] = value
                view[:] = 255
            assert planes_of(stream.next(PATIENCE))[0].max() == value


def test_slot_has_errors_for_other_planes_and_devices():
    with created("NV12") as exporter, exporter.acquire() as slot:
        plane = slot.plane(1)
        assert (plane.width, plane.height, plane.stride, plane.components) == (320, 240, 640, 2)
        assert (plane.element, plane.shape, plane.strides) == ("uint8", (240, 320, 2), (640, 2, 1))
        with pytest.raises(IndexError, match="plane 2 of a frame of NV12, which has 2"):
            slot.plane(2)
        with pytest.raises(
            AttributeError, match="the slot is in host memory: use DLPack or the buffer protocol"
        ):
            plane.__cuda_array_interface__
        with pytest.raises(ValueError, match="stream must be None for host memory"):
            plane.__dlpack__(stream=1)
        with pytest.raises(BufferError, match="a copy of it would not be published"):
            plane.__dlpack__(copy=True)
        with pytest.raises(TypeError, match="str is no CUDA stream: pass a cudaStream_t"):
            exporter.acquire(stream="default")
        with pytest.raises(ValueError, match="stream is -5: pass a cudaStream_t"):
            exporter.acquire(stream=-5)


def test_unconsumed_capsules_are_freed():
    with created() as exporter, exporter.acquire() as slot:
        for version in (None, (1, 0)):
            plane = slot.plane(0)
            for _ in range(3):
                plane.__dlpack__(max_version=version)


def test_publication_waits_for_lossless_reader_with_the_gil_released():
    with created("GRAY8") as exporter, opened(max_held=1) as stream:
        data = image(480, 640)
        published = 0
        with pytest.raises(
            frameshare.TimeoutError, match="readers of cam0 had no room for the frame within 0.05 s"
        ):
            while True:
                exporter.publish(data, timeout=0.05)
                published += 1
        taken = []

        def read():
            for _ in range(published + 1):
                with stream.next(PATIENCE) as frame:
                    taken.append(frame.sequence)

        thread = threading.Thread(target=read)
        thread.start()
        # This wait ends by the other thread, which needs the GIL.
        assert exporter.publish(data) == published + 1
        thread.join(PATIENCE)
        assert taken == list(range(1, published + 2))


def fill(exporter):
    """Publishes until the readers have no room for more."""
    with pytest.raises(frameshare.TimeoutError, match="had no room for the frame"):
        while True:
            exporter.publish(image(480, 640), timeout=0.05)


def test_timeout_of_a_publication_is_that_of_both_waits():
    timeout = 8.0
    with created("GRAY8", max_slots=8, reader_timeout=30.0) as exporter, opened(max_held=1) as stream:
        fill(exporter)
        slots = []
        with pytest.raises(frameshare.TimeoutError, match="no slot of cam0 became free within 0.05 s"):
            while True:
                slots.append(exporter.acquire(timeout=0.05))
        # A slot comes within the limit, and room for the frame after it.
        timers = [
            threading.Timer(0.7 * timeout, slots[0].discard),
            threading.Timer(1.5 * timeout, lambda: stream.next(PATIENCE).release()),
        ]
        for timer in timers:
            timer.start()
        try:
            with pytest.raises(frameshare.TimeoutError, match="of cam0 .* within 8 s"):
                exporter.publish(image(480, 640), timeout=timeout)
        finally:
            for timer in timers:
                timer.join()


def test_reader_timeout_may_be_longer_than_the_clock():
    with created("GRAY8", reader_timeout=1e19) as exporter:
        exporter.acquire(timeout=10).publish()


class CupyArray:
    """An array of CuPy on the second GPU: it notes the stream that it is asked for."""

    __module__ = "cupy"

    def __init__(self):
        self.streams = []

    def __dlpack_device__(self):
        return (2, 1)

    def __dlpack__(self, stream=None, **_):
        self.streams.append(stream)
        raise RuntimeError("noted")


def test_stream_of_cupy_is_that_of_the_device_of_the_array(monkeypatch):
    def get_current_stream(device_id=-1):
        return types.SimpleNamespace(ptr={-1: 0x1000, 0: 0x1000, 1: 0x1001}[device_id])

    cuda = types.SimpleNamespace(get_current_stream=get_current_stream)
    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(cuda=cuda))
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    array = CupyArray()
    with created("GRAY8") as exporter, pytest.raises(RuntimeError, match="noted"):
        exporter.publish(array)
    assert array.streams == [0x1001]


def test_publication_without_time_waits_for_no_other_thread():
    with created("GRAY8", reader_timeout=2 * PATIENCE) as exporter, opened(max_held=1) as stream:
        fill(exporter)
        thread = threading.Thread(target=exporter.publish, args=(image(480, 640),))
        thread.start()
        for _ in range(20):
            with pytest.raises(frameshare.TimeoutError, match="of cam0 .* within 0 s"):
                exporter.publish(image(480, 640), timeout=0)
        stream.next(PATIENCE).release()
        thread.join(PATIENCE)
        assert not thread.is_alive()
        assert stream.next(PATIENCE)


def in_threads(count, use):
    """Runs a function in several threads at once; returns their results and exceptions."""
    start = threading.Barrier(count)

    def run(_):
        start.wait()
        try:
            return use()
        except frameshare.Error as error:
            return error

    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def test_slot_is_published_once_by_several_threads():
    with created("GRAY8", reader_timeout=30.0) as exporter, opened(max_held=1) as stream:
        fill(exporter)
        slot = exporter.acquire()
        reading = threading.Timer(0.3, lambda: [stream.next(PATIENCE).release() for _ in range(2)])
        reading.start()
        found = in_threads(4, lambda: slot.publish(timeout=PATIENCE))
        reading.join()
        numbers = [one for one in found if isinstance(one, int)]
        assert numbers == [slot.sequence]
        errors = [one for one in found if one not in numbers]
        assert {type(one) for one in errors} == {frameshare.ReleasedError}
        texts = {"the slot is being published by another thread", f"the slot was published as frame {numbers[0]}"}
        assert {str(one).partition(":")[0] for one in errors} <= texts


def test_slot_cannot_be_changed_while_another_thread_publishes_it():
    with created("GRAY8", reader_timeout=30.0) as exporter, opened(max_held=1) as stream:
        fill(exporter)
        slot = exporter.acquire(pts=5, metas={"a": {"x": 1}})
        thread = threading.Thread(target=slot.publish)
        thread.start()
        while repr(slot) != "<frameshare.Slot being published>":
            assert thread.is_alive()
        uses = (
            slot.publish,
            slot.discard,
            slot.__enter__,
            lambda: slot.__exit__(None, None, None),
            lambda: slot.planes,
            lambda: slot.plane(0),
            lambda: slot.used_on(1),
            lambda: setattr(slot, "pts", 9),
            lambda: setattr(slot, "metas", {}),
        )
        for use in uses:
            with pytest.raises(frameshare.ReleasedError, match="the slot is being published by another thread"):
                use()
        # The exception of a block comes out of it.
        with pytest.raises(KeyError):
            slot.__exit__(KeyError, KeyError(), None)
            raise KeyError
        assert slot.sequence is None
        while (frame := stream.next(PATIENCE)).pts != 5:
            frame.release()
        thread.join(PATIENCE)
        assert (frame.sequence, frame.pts, frame.metas) == (slot.sequence, 5, [("a", {"x": 1})])
        for use in uses[-2:]:
            with pytest.raises(frameshare.ReleasedError, match=f"the slot was published as frame {frame.sequence}"):
                use()


def test_slot_that_had_no_room_is_published_again():
    with created("GRAY8", reader_timeout=30.0) as exporter, opened(max_held=1) as stream:
        fill(exporter)
        slot = exporter.acquire()
        for timeout in (0, 0.05):
            with pytest.raises(frameshare.TimeoutError, match="readers of cam0 had no room for the frame"):
                slot.publish(timeout=timeout)
        with pytest.raises(ValueError, match="timeout is -1, but must be a number of seconds"):
            slot.publish(timeout=-1)
        slot.pts = 7
        numpy.asarray(slot.plane(0))[:] = 3
        stream.next(PATIENCE).release()
        sequence = slot.publish(timeout=PATIENCE)
        frame = stream.next(PATIENCE)
        assert frame.sequence == sequence
        assert (frame.pts, planes_of(frame)[0].max()) == (7, 3)


def test_numbers_of_a_publication_are_refused_by_name():
    whole = "but must be a number from 0 to 18446744073709551615"
    with created("GRAY8") as exporter, exporter.acquire() as slot:
        for use in (exporter.acquire, lambda *values, **named: exporter.publish(image(480, 640), *values, **named)):
            with pytest.raises(ValueError, match=f"pts is -5, {whole}"):
                use(-5)
            with pytest.raises(ValueError, match=f"duration is {1 << 64}, {whole}"):
                use(duration=1 << 64)
            with pytest.raises(TypeError, match="pts is a float, but must be a number"):
                use(0.5)
        with pytest.raises(ValueError, match=f"pts is -1, {whole}"):
            slot.pts = -1
        with pytest.raises(IndexError, match="plane -1 of a frame of GRAY8, which has 1"):
            slot.plane(-1)


def test_signal_ends_a_waiting_publication():
    class Stopped(Exception):
        pass

    def stop(*_):
        raise Stopped

    with created("GRAY8", reader_timeout=30.0) as exporter, opened(max_held=1) as stream:
        fill(exporter)
        before = signal.signal(signal.SIGUSR1, stop)
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
        try:
            with pytest.raises(Stopped):
                timer.start()
                exporter.publish(image(480, 640))
        finally:
            timer.join()
            signal.signal(signal.SIGUSR1, before)
        with stream.next(PATIENCE) as frame:
            assert frame.sequence == 1


def test_readers_are_counted_and_awaited():
    with created("GRAY8") as exporter:
        assert exporter.readers == 0
        with pytest.raises(frameshare.TimeoutError, match="no reader of cam0 came within 0.01 s"):
            exporter.wait_for_reader(0.01)
        with opened() as stream:
            exporter.wait_for_reader(10)
            assert exporter.readers == 1
            exporter.publish(image(480, 640))
            assert exporter.drain(timeout=0) is False
            stream.next(PATIENCE).release()
            assert exporter.drain(timeout=10) is True


def test_closed_exporter_ends_its_stream():
    exporter = created("GRAY8")
    with opened(reconnect=False) as stream:
        exporter.publish(image(480, 640))
        exporter.close()
        exporter.close()
        assert [frame.sequence for frame in stream] == [1]
        assert exporter.closed
        uses = (
            lambda: exporter.publish(image(480, 640)),
            exporter.acquire,
            exporter.end,
            lambda: exporter.readers,
        )
        for use in uses:
            with pytest.raises(
                frameshare.ClosedError, match="the exporter of cam0 was closed by this process"
            ):
                use()


def test_last_frame_is_kept_for_joining_readers():
    with created("GRAY8", history=1) as exporter:
        exporter.publish(numpy.full((480, 640), 5, "uint8"))
        time.sleep(0.25)  # until the stream counts as slow
        with opened() as stream:
            assert planes_of(stream.next(PATIENCE))[0].max() == 5


def test_exporter_is_not_pickled():
    with created() as exporter, pytest.raises(TypeError, match="a stream has one exporter, in one process"):
        pickle.dumps(exporter)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_forked_child_leaves_the_stream_to_its_parent():
    exporter = created("GRAY8")
    with opened() as stream:
        slot = exporter.acquire()
        child = os.fork()
        if child == 0:
            data = image(480, 640)
            uses = (lambda: exporter.publish(data), exporter.acquire, exporter.close, exporter.end, slot.publish)
            found = 0
            for use in (*uses, slot.discard, lambda: slot.planes, lambda: exporter.readers, lambda: exporter.closed):
                try:
                    use()
                except frameshare.Error as error:
                    found += "the exporter of cam0 belongs to the parent of this forked child" in str(error)
            del slot, exporter, uses, use
            os._exit(0 if found == 9 else found + 1)
        assert os.waitpid(child, 0)[1] == 0
        with slot:
            numpy.asarray(slot.plane(0))[:] = 3
        assert planes_of(stream.next(PATIENCE))[0].max() == 3
        exporter.publish(image(480, 640))
        assert stream.next(PATIENCE).sequence == 2
        exporter.close()


def test_many_frames_leak_nothing():
    def resident():
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    data = image(48, 64)
    with created("GRAY8", 64, 48) as exporter, opened() as stream:

        def run(frames):
            for _ in range(frames):
                exporter.publish(data, metas={"a": {"x": 1}})
                with exporter.acquire() as slot:
                    write_by_dlpack(slot.plane(0), data)
                stream.next(PATIENCE)
                stream.next(PATIENCE)

        run(1000)
        memory, descriptors = resident(), len(os.listdir("/proc/self/fd"))
        run(5000)
        assert resident() - memory < 8 << 20
        assert len(os.listdir("/proc/self/fd")) == descriptors
