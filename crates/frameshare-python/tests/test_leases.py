# SPDX-License-Identifier: MIT OR Apache-2.0

"""Release of frames: views keep them, and nothing reads another frame after it."""

import copy
import ctypes
import gc
import pickle
import threading
import time
import warnings
import weakref
import zlib

import numpy
import pytest
from conftest import TARGET, faults, held_by_exporter, run, run_well, wait_for
from support import PATIENCE

import frameshare


def checksum(address, size=640 * 480):
    return zlib.crc32(ctypes.string_at(address, size))


def exports(plane):
    """The ways in which host memory goes out."""
    return [memoryview(plane), numpy.asarray(plane), numpy.from_dlpack(plane), plane.__dlpack__()]


def until(condition):
    """Waits for a condition; the test's own limit of time ends it otherwise."""
    while not condition():
        time.sleep(0.01)


@pytest.fixture
def stream(processes):
    processes.publish("--rate", "60")
    with frameshare.open(processes.path()) as stream:
        yield stream


def test_release_with_views_raises_their_number(stream):
    frame = stream.next(PATIENCE)
    views = exports(frame.plane(0)) + exports(frame)
    while views:
        count = len(views)
        with pytest.raises(BufferError, match=f"{count} array" + ("s exist" if count > 1 else " exists")):
            frame.release()
        assert not frame.released
        views.pop()
    frame.release()
    frame.release()
    assert frame.released


def test_use_after_release_raises(stream):
    frame = stream.next(PATIENCE)
    plane, sequence = frame.plane(0), frame.sequence
    frame.release()
    uses = [
        lambda: frame.plane(0),
        lambda: frame.planes,
        lambda: frame.clone(),
        lambda: frame.used_on(1),
        lambda: frame.__enter__(),
        lambda: frame.__dlpack__(),
        lambda: frame.__array_interface__,
        lambda: memoryview(frame),
        lambda: plane.__dlpack__(),
        lambda: plane.__dlpack_device__(),
        lambda: plane.__array_interface__,
        lambda: memoryview(plane),
        lambda: numpy.asarray(plane),
        lambda: numpy.from_dlpack(plane),
    ]
    for use in uses:
        with pytest.raises(frameshare.ReleasedError, match=f"frame {sequence} was released"):
            use()
    assert frame.sequence == sequence and frame.format == "NV12" and "released" in repr(frame)


def test_address_of_interface_keeps_frame_with_its_object(stream):
    frame = stream.next(PATIENCE)
    plane = frame.plane(0)
    assert plane.__array_interface__["data"][1] is True
    with pytest.raises(BufferError, match="1 array exists"):
        frame.release()
    del plane
    frame.release()


def test_probed_plane_is_named_and_costs_nothing_once_dropped(processes, stream):
    frame = stream.next(PATIENCE)
    plane = frame.plane(0)
    assert hasattr(plane, "__array_interface__") and hasattr(plane, "__array_interface__")
    with pytest.raises(BufferError, match=r"1 array exists.*__array_interface__ was read, as by hasattr\(\)"):
        frame.release()
    del plane
    frame.release()
    until(lambda: held_by_exporter(processes.path()) == 0)


def test_views_keep_content_of_dropped_frame(processes, stream):
    frame = stream.next(PATIENCE)
    array = numpy.asarray(frame.plane(0))
    sequence, before = frame.sequence, checksum(array.ctypes.data)
    del frame
    while stream.next(PATIENCE).sequence < sequence + 60:
        pass
    assert checksum(array.ctypes.data) == before
    until(lambda: held_by_exporter(processes.path()) == 1)
    del array
    until(lambda: held_by_exporter(processes.path()) == 0)


def test_released_memory_gets_other_content(stream):
    """Negative control: without the lease the address shows another frame."""
    frame = stream.next(PATIENCE)
    address = numpy.asarray(frame.plane(0)).ctypes.data
    sequence, before = frame.sequence, checksum(address)
    frame.release()
    changed = False
    while not changed and stream.next(PATIENCE).sequence < sequence + 300:
        changed = checksum(address) != before
    assert changed


def test_with_block_releases_frame(processes, stream):
    with stream.next(PATIENCE) as frame:
        assert numpy.asarray(frame.plane(0)).any()
    assert frame.released
    with pytest.raises(BufferError, match="1 array exists"):
        with stream.next(PATIENCE) as frame:
            kept = numpy.asarray(frame.plane(0))
    assert not frame.released
    del kept
    frame.release()
    # An exception is not hidden by the arrays in its traceback.
    with pytest.raises(ZeroDivisionError):
        with stream.next(PATIENCE) as frame:
            kept = numpy.asarray(frame.plane(0))
            _ = 1 // 0
    until(lambda: held_by_exporter(processes.path()) == 1)


def test_garbage_frame_is_released(processes, stream):
    frame = stream.next(PATIENCE)
    reference = weakref.ref(frame)
    until(lambda: held_by_exporter(processes.path()) == 1)
    del frame
    gc.collect()
    assert reference() is None
    until(lambda: held_by_exporter(processes.path()) == 0)


def test_frames_outlive_closed_stream(stream):
    frame = stream.next(PATIENCE)
    array = numpy.asarray(frame.plane(0))
    before = checksum(array.ctypes.data)
    stream.close()
    assert checksum(array.ctypes.data) == before == checksum(numpy.asarray(frame.plane(0)).ctypes.data)


def test_frames_refuse_to_be_pickled(stream):
    frame = stream.next(PATIENCE)
    for thing in (frame, frame.plane(0)):
        for use in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="cannot be pickled: their memory is the exporter's"):
                use(thing)
    with pytest.raises(TypeError, match=r"frame\.clone\(\)"):
        copy.copy(frame)


@pytest.mark.parametrize("use", ["junk", None, 1.5, object()])
def test_used_on_refuses_other_objects_on_the_host(stream, use):
    frame = stream.next(PATIENCE)
    with pytest.raises(TypeError, match="is no CUDA stream"):
        frame.used_on(use)
    with pytest.raises(TypeError, match="is no CUDA stream"):
        frame.clone().used_on(use)


def test_used_on_takes_streams_on_the_host(stream):
    frame = stream.next(PATIENCE)
    frame.used_on(0)
    frame.used_on(type("Stream", (), {"cuda_stream": 7})())
    with pytest.raises(ValueError, match="stream is -7"):
        frame.used_on(-7)


def test_thread_of_log_is_no_thread_that_releases_frames(processes):
    """Python lists it as soon as it has passed on a record."""
    processes.publish()
    program = """
import logging, signal, sys, time
import frameshare

class Records(logging.Handler):
    seen = []

    def emit(self, record):
        self.seen.append((record.threadName, record.getMessage()))

logging.getLogger("frameshare").addHandler(Records())
signal.alarm(60)
stream = frameshare.open(sys.argv[1], max_held=64)
while not Records.seen:
    time.sleep(0.01)
assert Records.seen[0][0] == "frameshare-log" and "instead of 64" in Records.seen[0][1], Records.seen
held = [stream.next(60) for _ in range(stream.stats.max_held)]
try:
    stream.next()
except frameshare.HeldError as error:
    print(error)
"""
    assert "this process holds 16 frames" in run_well(program, processes.path())


def test_single_thread_with_all_frames_gets_held_error(stream):
    held = [numpy.asarray(stream.next(PATIENCE).plane(0)) for _ in range(4)]
    with pytest.raises(frameshare.HeldError, match=r"holds 4 frames of .* \d+ \(1 array\), .*max_held"):
        stream.next()
    with pytest.raises(frameshare.TimeoutError, match="within 0.1 s: this process holds 4 frames"):
        stream.next(0.1)
    held.pop()
    assert stream.next(PATIENCE).sequence


def test_thread_that_can_release_is_waited_for(stream):
    held = [stream.next(PATIENCE) for _ in range(4)]
    warned = threading.Event()

    def release():
        warned.wait()
        held.pop(0).release()

    thread = threading.Thread(target=release)
    thread.start()

    def show(message, category, *_):
        assert category is RuntimeWarning and "waiting for a frame while this process holds 4" in str(message)
        warned.set()

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        assert stream.next().sequence > held[-1].sequence
    thread.join()


def test_numpy_refuses_writes(stream):
    plane = stream.next(PATIENCE).plane(0)
    for array in (numpy.asarray(plane), numpy.from_dlpack(plane)):
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True
    view = memoryview(plane)
    assert view.readonly
    with pytest.raises(TypeError, match="read-only"):
        view[0, 0] = 1
    with pytest.raises(TypeError, match="not writable"):
        ctypes.c_char.from_buffer(plane)


READ_OR_WRITE = """
import ctypes, sys, frameshare, numpy
with frameshare.open(sys.argv[1]) as stream:
    frame = stream.next(60)
    plane = {plane}
    address = plane.__array_interface__["data"][0]
    print(ctypes.string_at(address, 1) is not None, flush=True)
    {write}
    print("alive")
"""


def test_write_past_the_flag_faults_in_the_writer_alone(processes, stream):
    write = "ctypes.memset(address, 1, 1)"
    status, output = run(READ_OR_WRITE.format(plane="frame.plane(0)", write=write), processes.path())
    assert faults(status) and "True" in output and "alive" not in output, output
    assert stream.next(PATIENCE).sequence
    # Negative controls: reading, and writing a copy.
    assert "alive" in run_well(READ_OR_WRITE.format(plane="frame.plane(0)", write="pass"), processes.path())
    assert "alive" in run_well(READ_OR_WRITE.format(plane="frame.clone().plane(0)", write=write), processes.path())


WRITES = {
    "numpy": "numpy.asarray(plane)[0, 0] = 1",
    "numpy-dlpack": "numpy.from_dlpack(plane)[0, 0] = 1",
    "torch": "import torch; torch.from_dlpack(plane).fill_(1)",
    "jax": "import jax; jax.numpy.from_dlpack(plane)[0, 0] = 1",
}


@pytest.mark.parametrize(
    ("library", "result"),
    [
        ("numpy", "ValueError: assignment destination is read-only"),
        ("numpy-dlpack", "ValueError: assignment destination is read-only"),
        ("torch", "fault"),
        ("jax", "JAX arrays are immutable"),
    ],
)
def test_write_by_library_is_refused_or_faults(processes, stream, library, result):
    """PyTorch takes no notice of the flag: only the mapping stops it."""
    pytest.importorskip(library.split("-")[0])
    program = READ_OR_WRITE.format(plane="frame.plane(0)", write=WRITES[library])
    status, output = run(program, processes.path())
    assert "alive" not in output, output
    assert faults(status) if result == "fault" else result in output, output
    # A copy may be written, but not as an array of JAX, nor by DLPack and NumPy before 2.1.
    if library not in ("jax", "numpy-dlpack"):
        copied = READ_OR_WRITE.format(plane="frame.clone().plane(0)", write=WRITES[library])
        assert "alive" in run_well(copied, processes.path())
    assert stream.next(PATIENCE).sequence


def test_clone_is_writable_and_holds_nothing(processes, stream):
    frame = stream.next(PATIENCE)
    original = numpy.asarray(frame.plane(0))
    clone = frame.clone()
    array = numpy.asarray(clone.plane(0))
    assert (array == original).all() and array.ctypes.data != original.ctypes.data
    before = checksum(original.ctypes.data)
    array[:] = 7
    assert (numpy.from_dlpack(clone)[:480] == 7).all() and checksum(original.ctypes.data) == before
    assert clone.sequence == frame.sequence and clone.device == "cpu"
    assert clone.plane(0).__array_interface__["data"][1] is False
    del original
    frame.release()
    until(lambda: held_by_exporter(processes.path()) == 0)
    assert (array == 7).all()


def test_release_during_exports_never_shows_another_frame(processes):
    path = processes.path()
    wait_for(path, processes.start([TARGET / "examples" / "engine-export", path]))
    seen = []

    def export(frame, number, kept):
        try:
            for _ in range(20):
                with memoryview(frame) as view:
                    seen.append((number, view[0, 0]))
                kept.append(memoryview(frame))
                time.sleep(0)
        except frameshare.ReleasedError:
            pass

    with frameshare.open(path, policy="lossless", reconnect=False) as stream:
        for number, frame in enumerate(stream):
            kept = [[], []]
            threads = [threading.Thread(target=export, args=(frame, number, views)) for views in kept]
            for thread in threads:
                thread.start()
            while not frame.released:
                try:
                    frame.release()
                except BufferError:
                    for views in kept:
                        views.clear()
            for thread in threads:
                thread.join()
            # A view that won the race against the release holds the lease.
            seen += [(number, view[0, 0]) for views in kept for view in views]
    assert number == 89 and len(seen) > 90
    assert all(number == value for number, value in seen)


LEAKS = """
import os, sys, frameshare, numpy

def measure():
    pages = int(open("/proc/self/statm").read().split()[1])
    return pages * 4096, len(os.listdir("/proc/self/fd")), len(open("/proc/self/maps").readlines())

with frameshare.open(sys.argv[1], policy="lossless", reconnect=False) as stream:
    for count, frame in enumerate(stream, 1):
        arrays = [numpy.asarray(frame.plane(0)), numpy.from_dlpack(frame), memoryview(frame.plane(1))]
        capsules = [frame.plane(0).__dlpack__(max_version=(1, 0)), frame.plane(1).__dlpack__(copy=True)]
        frame.plane(1).__array_interface__
        if count == 5_000:
            before = measure()
    after = measure()
    assert after[0] - before[0] < 4 << 20 and after[1:] == before[1:], (before, after)
    print(count)
"""


def test_twenty_thousand_frames_leak_nothing(processes):
    processes.publish("--size", "64x48", "--rate", "5000", "--count", "20000", "--readers", "1")
    assert run_well(LEAKS, processes.path()) == "20000\n"
