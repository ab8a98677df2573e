# SPDX-License-Identifier: MIT OR Apache-2.0

"""DLPack on the host: each argument and each field, and the life of capsules."""

import ctypes
import threading

import numpy
import pytest
from conftest import TARGET, held_by_exporter, run_well, wait_for
from consumer import CPU, IS_COPIED, READ_ONLY, Imported, copy_on_host
from support import PATIENCE

import frameshare


@pytest.fixture
def frame(processes):
    processes.publish()
    with frameshare.open(processes.path()) as stream:
        yield stream.next(PATIENCE)


@pytest.mark.parametrize(
    ("max_version", "version"),
    [
        (None, None),
        ((0, 8), None),
        ((1, 0), (1, 0)),
        ((1, 1), (1, 1)),
        ((1, 99), (1, 3)),
        ((2, 0), (1, 3)),
    ],
)
@pytest.mark.parametrize("stream", [None, -1])
@pytest.mark.parametrize("dl_device", [None, (1, 0)])
@pytest.mark.parametrize("copy", [None, False, True])
def test_fields_follow_arguments(frame, max_version, version, stream, dl_device, copy):
    plane = frame.plane(1)
    arguments = {"max_version": max_version, "stream": stream, "dl_device": dl_device, "copy": copy}
    tensor = Imported(plane.__dlpack__(**arguments))
    assert (tensor.is_versioned, tensor.version) == (version is not None, version)
    assert tensor.device == plane.__dlpack_device__() == (CPU, 0)
    assert (tensor.dtype, tensor.shape, tensor.strides) == ((1, 8, 1), (240, 320, 2), (640, 2, 1))
    assert tensor.byte_offset == 0
    address = numpy.asarray(plane).ctypes.data
    assert (tensor.data == address) == (copy is not True)
    if version:
        assert tensor.flags == (IS_COPIED if copy else READ_ONLY)
    assert ctypes.string_at(tensor.data, 240 * 640) == ctypes.string_at(address, 240 * 640)
    if copy:
        ctypes.memset(tensor.data, 3, 240 * 640)
        frame.release()
    else:
        with pytest.raises(BufferError, match="1 array exists"):
            frame.release()
    tensor.free()
    frame.release()


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"stream": 0}, ValueError, "stream is given for an array on the host: pass None"),
        ({"stream": 1}, ValueError, "stream is given for an array on the host"),
        ({"stream": "x"}, ValueError, "stream is given for an array on the host"),
        ({"dl_device": (2, 0)}, BufferError, r"dl_device is \(2, 0\), but the frame is on \(1, 0\)"),
        ({"dl_device": (1, 1)}, BufferError, r"dl_device is \(1, 1\), but the frame is on \(1, 0\)"),
        ({"max_version": 1}, TypeError, "max_version"),
        ({"copy": "yes"}, TypeError, "copy"),
    ],
)
def test_bad_argument_is_refused_and_keeps_nothing(frame, arguments, error, text):
    with pytest.raises(error, match=text):
        frame.plane(0).__dlpack__(**arguments)
    frame.release()


def test_arguments_are_keywords(frame):
    with pytest.raises(TypeError):
        frame.plane(0).__dlpack__(None)


@pytest.mark.parametrize(
    ("name", "planes"),
    [
        ("P010_10LE", [(16, (242, 322), (322, 1)), (16, (121, 161, 2), (322, 2, 1))]),
        ("BGRA", [(8, (242, 322, 4), (1288, 4, 1))]),
        ("I420", [(8, (242, 322), (324, 1)), (8, (121, 161), (164, 1)), (8, (121, 161), (164, 1))]),
    ],
)
def test_types_and_padded_rows_are_described(processes, name, planes):
    path = processes.path()
    processes.pipeline(
        f"videotestsrc is-live=true ! video/x-raw,format={name},width=322,height=242 ! framesharesink socket-path={path}"
    )
    with frameshare.open(path) as stream:
        frame = stream.next(PATIENCE)
        for plane, (bits, shape, strides) in zip(frame.planes, planes, strict=True):
            for copy in (None, True):
                tensor = Imported(plane.__dlpack__(max_version=(1, 0), copy=copy))
                assert (tensor.dtype, tensor.shape) == ((1, bits, 1), shape)
                packed = numpy.empty(shape, plane.element)
                expected = tuple(step // packed.itemsize for step in packed.strides) if copy else strides
                assert tensor.strides == expected
                tensor.free()
            assert plane.strides == strides
            assert (copy_on_host(plane) == numpy.asarray(plane)).all()
        frame.release()


def test_capsule_without_consumer_frees_its_view(frame):
    for version in (None, (1, 0)):
        capsule = frame.plane(0).__dlpack__(max_version=version)
        with pytest.raises(BufferError):
            frame.release()
        del capsule
    frame.release()


def test_consumed_capsule_leaves_the_view_to_its_consumer(frame):
    for version in (None, (1, 0)):
        capsule = frame.plane(0).__dlpack__(max_version=version)
        tensor = Imported(capsule)
        del capsule
        with pytest.raises(BufferError):
            frame.release()
        tensor.free()
    frame.release()


def test_deleter_runs_on_other_threads_without_gil(processes, frame):
    tensors = [Imported(frame.plane(0).__dlpack__(max_version=(1, 0))) for _ in range(8)]
    threads = [threading.Thread(target=tensor.free) for tensor in tensors]
    del frame
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


AFTER_FINALIZATION = """
import ctypes, sys, frameshare
from consumer import Imported
libc = ctypes.CDLL(None)
text = ctypes.create_string_buffer(b"the deleters have returned")
# Handlers of exit(3) run after Py_Finalize, the last one first; the text has to outlive Python.
puts = ctypes.cast(libc.puts, ctypes.c_void_p)
copied = libc.strdup; copied.restype = ctypes.c_void_p
at_exit = libc.__cxa_atexit; at_exit.argtypes = [ctypes.c_void_p] * 3
at_exit(puts, copied(text), None)
stream = frameshare.open(sys.argv[1])
for version in (None, (1, 0)):
    frame = stream.next(60)
    capsule = frame.plane(0).__dlpack__(max_version=version)
    tensor = Imported(capsule)
    at_exit(tensor.deleter, tensor.address, None)
    kept = frame.plane(0).__dlpack__(max_version=version)
{end}
"""


@pytest.mark.parametrize("end", ["", "stream.close()", "del stream, frame"])
def test_deleter_runs_after_finalization(processes, end):
    processes.publish()
    output = run_well(AFTER_FINALIZATION.format(end=end), processes.path())
    assert output == "the deleters have returned\n"


def test_dropped_tensors_release_at_the_exporter(processes):
    processes.publish()
    with frameshare.open(processes.path()) as stream:
        tensors = [Imported(stream.next(PATIENCE).plane(0).__dlpack__()) for _ in range(4)]
        while held_by_exporter(processes.path()) != 4:
            pass
        for tensor in tensors:
            tensor.free()
        while held_by_exporter(processes.path()) != 0:
            pass


def test_jax_takes_frames(frame):
    jax = pytest.importorskip("jax")
    array = jax.dlpack.from_dlpack(frame.plane(0))
    assert (numpy.asarray(array) == numpy.asarray(frame.plane(0))).all()


def test_jax_converts_frames_by_its_own_function(frame):
    jax = pytest.importorskip("jax")
    plane = frame.plane(0)
    array = jax.numpy.asarray(plane)
    assert array.dtype == plane.element and (numpy.asarray(array) == numpy.asarray(plane)).all()


def test_bottom_up_planes_are_exported_by_copy_only(processes):
    """PyTorch 1.13 ends the process when it gets negative strides, which an exporter chooses."""
    path = processes.path()
    wait_for(path, processes.start([TARGET / "examples" / "bottom-up-export", path]))
    with frameshare.open(path) as stream:
        frame = stream.next(PATIENCE)
        plane = frame.plane(0)
        expected = numpy.arange(12, dtype="uint8").reshape(3, 4)[::-1]
        assert plane.strides == (-4, 1)
        assert (numpy.asarray(plane) == expected).all()
        for array in (plane, frame):
            for arguments in ({}, {"max_version": (1, 0)}, {"copy": False}):
                with pytest.raises(BufferError, match=r"last row first.*numpy\.asarray.*copy=True.*frame\.rgb"):
                    array.__dlpack__(**arguments)
            for version in (None, (1, 0)):
                tensor = Imported(array.__dlpack__(copy=True, max_version=version))
                assert (tensor.shape, tensor.strides) == ((3, 4), (4, 1))
                assert ctypes.string_at(tensor.data, 12) == expected.tobytes()
                tensor.free()
        del array, plane
        frame.release()
