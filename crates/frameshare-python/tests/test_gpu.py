# SPDX-License-Identifier: MIT OR Apache-2.0

"""Frames in GPU memory, on the simulated driver: addresses, streams, order, release.

Each test runs a program in a process of its own, since the driver is found by LD_LIBRARY_PATH.
`tests/simcuda/install.sh target/simcuda` writes the driver.
"""

import pytest
from conftest import GPU_EXPORT, run_well, wait_for
from support import simulated_driver

SIZE = 640 * 540  # NV12, 640x360
PRELUDE = f"""
import os, sys, time
import frameshare, numpy
from consumer import *
SIZE = {SIZE}
PATH = sys.argv[1]

def says(error, text, use):
    try:
        use()
    except error as found:
        assert text in str(found), found
    else:
        raise AssertionError("no " + error.__name__)
"""


@pytest.fixture
def gpu(processes, tmp_path):
    """Returns a function that runs a program on frames of `gpu-export`, which fills frame n with n - 1."""
    violations = tmp_path / "violations"
    both = {
        **simulated_driver(),
        "SIMCUDA_ERRORS": str(violations),
        "SIMCUDA_SEED": "7",
    }

    def run(program, exporters=None, **own):
        # The exporter of a test's program before may still be there.
        path = processes.path(f"stream{len(processes.running)}")
        exporter = processes.start([GPU_EXPORT, path], **both, **(exporters or {}))
        wait_for(path, exporter)
        output = run_well(PRELUDE + program, path, exporter.pid, **{**both, **own})
        assert not violations.exists(), violations.read_text()
        return output

    return run


def test_pointers_are_the_imported_slot(gpu):
    """DLPack, the interface and every plane name one import, which no copy is made of."""
    gpu("""
cuda = Cuda()
named = cuda.stream()
stream = frameshare.open(PATH)
slots = set()
for _ in range(20):
    frame = take(stream)
    luma, chroma = frame.planes
    assert frame.device == "cuda:0" and luma.__dlpack_device__() == (CUDA, 0)
    assert not hasattr(luma, "__array_interface__")
    whole = Imported(frame.__dlpack__(stream=named, max_version=(1, 1)))
    tensors = [whole]
    for argument in (None, 1, 2, named, -1):
        for plane, offset in ((luma, 0), (chroma, 640 * 360)):
            tensor = Imported(plane.__dlpack__(stream=argument, max_version=(1, 1)))
            assert (tensor.device, tensor.flags, tensor.byte_offset) == ((CUDA, 0), READ_ONLY, 0)
            assert tensor.data == whole.data + offset, argument
            assert (tensor.shape, tensor.strides) == (plane.shape, plane.strides)
            tensors.append(tensor)
    assert whole.shape == (540, 640)
    found = luma.__cuda_array_interface__
    assert type(found) is dict and len(found["data"]) == 2 and found["version"] == 3
    assert found["data"] == (whole.data, True) == tuple(found["data"])
    assert (found["shape"], found["typestr"], found["strides"]) == ((360, 640), "|u1", (640, 1))
    base, size = c_uint64(), ctypes.c_size_t()
    try:
        cuda.call("cuMemGetAddressRange_v2", byref(base), byref(size), c_uint64(whole.data))
        assert base.value <= whole.data and whole.data + SIZE <= base.value + size.value
    except AssertionError as error:
        assert "returned 500" in str(error)  # memory of VMM
    slots.add(whole.data)
    says(BufferError, f"{len(tensors) + 1} arrays exist", frame.release)
    for tensor in tensors:
        tensor.free()
    del luma, plane
    frame.release()
# The same imports again and again.
assert len(slots) < 10, slots
print(len(slots))
""")


def count(output, call):
    return output.count(f": {call} = 0\n")


STEPS = """
cuda = Cuda()
named, other = cuda.stream(), cuda.stream()
Object = type("Stream", (), {{"cuda_stream": named}})
stream = frameshare.open(PATH)
for _ in range(3):
    frame = take(stream)
# The GPU of the exporter writes the frame meanwhile.
time.sleep(0.1)
os.write(2, b"-- export\\n")
{export}
os.write(2, b"-- release\\n")
{release}
os.write(2, b"-- end\\n")
"""
RELEASE = "tensor.free(); del frame"


@pytest.mark.parametrize(
    ("export", "release", "records", "context"),
    [
        # Streams that were named, each once: an event for each, and none of the whole context.
        ("tensor = Imported(frame.__dlpack__(stream=named))", RELEASE, 1, 0),
        ("tensor = Imported(frame.__dlpack__())", RELEASE, 1, 0),
        ("tensor = Imported(frame.__dlpack__(stream=named)); frame.used_on(other)", RELEASE, 2, 0),
        ("tensor = Imported(frame.__dlpack__(stream=named)); frame.used_on(named)", RELEASE, 1, 0),
        (
            "tensor = Imported(frame.__dlpack__(stream=named)); frame.used_on(Object()); frame.used_on(Object())",
            RELEASE,
            1,
            0,
        ),
        ("tensor = Imported(frame.__dlpack__(stream=named)); frame.done_on(named)", RELEASE, 0, 0),
        # Without a stream, the whole context.
        ("tensor = Imported(frame.__dlpack__(stream=-1))", RELEASE, 0, 1),
        ("tensor = Imported(frame.__dlpack__(stream=2))", RELEASE, 0, 1),
        ("plane = frame.plane(0); plane.__cuda_array_interface__['data'][0]", "del plane, frame", 0, 1),
        ("plane = frame.plane(0); address, _ = plane.__cuda_array_interface__['data']", "del plane, frame", 0, 1),
        # A probe for the interface, which reads no address.
        ("plane = frame.plane(0); assert hasattr(plane, '__cuda_array_interface__')", "del plane, frame", 0, 0),
        # An unused frame.
        ("pass", "del frame", 0, 0),
    ],
)
def test_release_follows_the_named_streams_only(gpu, export, release, records, context):
    output = gpu(STEPS.format(export=export, release=release), SIMCUDA_TRACE="1")
    released = output.split("-- release\n")[1].split("-- end\n")[0]
    found = (count(released, "cuEventRecord"), count(released, "cuCtxRecordEvent"))
    assert found == (records, context), released
    exported = output.split("-- export\n")[1].split("-- release\n")[0]
    assert count(exported, "cuCtxSynchronize") == count(exported, "cuStreamSynchronize") == 0
    assert "cuMemcpy" not in exported + released


@pytest.mark.parametrize(
    "export",
    [
        "copied = frame.clone(); tensor = Imported(copied.__dlpack__(stream=named)); del copied",
        "tensor = Imported(frame.__dlpack__(stream=named, copy=True))",
    ],
)
def test_copy_is_freed_behind_its_streams(gpu, export):
    output = gpu(STEPS.format(export=export, release="tensor.free(); del frame"), SIMCUDA_TRACE="1")
    assert count(output, "cuCtxRecordEvent") == count(output, "cuCtxSynchronize") == 0, output
    assert count(output.split("-- release\n")[1], "cuEventRecord") > 0, output


# The exporter's GPU writes long after the publication.
SLOW = {"SIMCUDA_DELAY_US": "60000"}


def test_copies_keep_their_stream(gpu):
    output = gpu(
        """
stream = frameshare.open(PATH)
for mark in (b"-- first\\n", b"-- again\\n"):
    os.write(2, mark)
    for _ in range(3):
        frame = take(stream)
        plane = frame.plane(0)
        plane.__cuda_array_interface__
        copies = frame.clone(), copy_on_host(frame)
        del copies, plane, frame
os.write(2, b"-- end\\n")
""",
        SLOW,
        SIMCUDA_TRACE="1",
    )
    first, again = output.split("-- first\n")[1].split("-- end\n")[0].split("-- again\n")
    assert count(first, "cuStreamCreate") > 0
    assert count(again, "cuStreamCreate") == count(again, "cuStreamDestroy_v2") == 0, again


ORDER = """
cuda = Cuda()
named = cuda.stream()
stream = frameshare.open(PATH, policy="lossless")
wrong = 0
for _ in range(20):
    frame = take(stream)
    tensor = Imported(frame.__dlpack__(stream={argument}))
    copied = cuda.memory(SIZE)
    cuda.copy(copied, tensor.data, SIZE, named)
    tensor.free()
    number = frame.sequence - 1
    del frame
    cuda.wait(named)
    wrong += cuda.read(copied, SIZE) != bytes([number]) * SIZE
print(wrong)
"""


def test_consumer_stream_waits_for_the_frame(gpu):
    assert gpu(ORDER.format(argument="named"), SLOW, SIMCUDA_DELAY_US="0") == "0\n"


def test_stream_that_was_not_named_reads_too_early(gpu):
    """Negative control: -1 asks for no order at all, and gets none."""
    assert int(gpu(ORDER.format(argument="-1"), SLOW, SIMCUDA_DELAY_US="0", SIMCUDA_STRICT="off")) > 0


LATE = """
import threading
cuda = Cuda()
named, other = cuda.stream(), cuda.stream()
# A reader of its own sees the time pass: a release that waits holds up the later ones.
stream, watch = frameshare.open(PATH), frameshare.open(PATH)
gate = threading.Event()
Function = ctypes.CFUNCTYPE(None, c_void_p)
closed = Function(lambda _: gate.wait())
frame = take(stream)
number = frame.sequence - 1
tensor = Imported(frame.__dlpack__(stream={stream}))
copied = cuda.memory(SIZE)
# The reads on this stream begin when the gate opens, long after the frame was dropped.
cuda.call("cuLaunchHostFunc", c_void_p(named), closed, None)
cuda.copy(copied, tensor.data, SIZE, named)
{used}
tensor.free()
del frame
while take(watch).sequence < number + 25:
    pass
gate.set()
cuda.call("cuCtxSynchronize")
print(cuda.read(copied, SIZE) == bytes([number]) * SIZE)
"""


@pytest.mark.parametrize(
    ("named", "used"),
    [
        ("named", ""),
        ("other", "frame.plane(0).__cuda_array_interface__['data'][0]"),
        ("named", "frame.done_on(named); cuda.call('cuStreamDestroy_v2', c_void_p(named))"),
        ("other", "frame.done_on(named)"),
        ("named", "frame.done_on(other); frame.used_on(other)"),
        ("other", "frame.used_on(named)"),
        ("other", "frame.used_on(type('Stream', (), {'cuda_stream': named})())"),
        ("other", "frame.used_on(type('Stream', (), {'ptr': named})())"),
        ("other", "frame.used_on(type('Stream', (), {'handle': c_void_p(named)})())"),
        ("other", "frame.used_on(type('Stream', (), {'__cuda_stream__': lambda self: (0, named)})())"),
    ],
)
def test_slot_is_reused_after_the_last_use_on_each_stream(gpu, named, used):
    assert gpu(LATE.format(stream=named, used=used)) == "True\n"


def test_release_before_the_last_use_is_caught(gpu):
    """Negative control: the stream that reads is not the one that was named."""
    assert gpu(LATE.format(stream="other", used=""), SIMCUDA_STRICT="off") == "False\n"


def test_work_after_the_end_of_use_is_caught(gpu):
    """Negative control: the reads are queued after `done_on`."""
    program = LATE.replace("copied = ", "frame.done_on(named)\ncopied = ").format(stream="named", used="")
    assert gpu(program, SIMCUDA_STRICT="off") == "False\n"


def test_stream_that_is_destroyed_before_the_release_is_caught(gpu):
    """Negative control: without `done_on`, another stream has the handle by the time of the release."""
    used = "cuda.call('cuStreamDestroy_v2', c_void_p(named)); others = [cuda.stream() for _ in range(8)]"
    program = LATE.format(stream="named", used=used)
    assert gpu(program, SIMCUDA_STRICT="off", SIMCUDA_ADVERSARY="1") == "False\n"


ENDED = """
import gc, threading, types
cuda = Cuda()

class Stream:
    # As CuPy's: it is destroyed with its object, and named by number.
    def __init__(self):
        self.ptr = cuda.stream()
    def __del__(self):
        cuda.call("cuStreamDestroy_v2", c_void_p(self.ptr))
        ended.append(self.ptr)

current, ended = Stream(), []
named = current.ptr
sys.modules["cupy"] = types.SimpleNamespace(cuda=types.SimpleNamespace(get_current_stream=lambda: current))
stream, watch = frameshare.open(PATH), frameshare.open(PATH)
gate = threading.Event()
Function = ctypes.CFUNCTYPE(None, c_void_p)
closed = Function(lambda _: gate.wait())
frame = take(stream)
number = frame.sequence - 1
{used}
copied = cuda.memory(SIZE)
cuda.call("cuLaunchHostFunc", c_void_p(named), closed, None)
cuda.copy(copied, {address}, SIZE, named)
current = None
gc.collect()
assert ended == []
{free}
while take(watch).sequence < number + 25:
    pass
# The object has ended with the release, and the reader goes on.
assert ended == [named]
take(stream).release()
gate.set()
cuda.call("cuCtxSynchronize")
print(cuda.read(copied, SIZE) == bytes([number]) * SIZE)
"""


@pytest.mark.parametrize(
    ("used", "address", "free"),
    [
        ("tensor = Imported(frame.__dlpack__(stream=named))", "tensor.data", "tensor.free(); del frame"),
        # The deleter runs on a thread without the GIL.
        (
            "tensor = Imported(frame.__dlpack__(stream=named))",
            "tensor.data",
            "del frame; ending = threading.Thread(target=tensor.free); ending.start(); ending.join()",
        ),
        (
            "tensor = Imported(frame.__dlpack__(stream=1)); frame.used_on(named)",
            "tensor.data",
            "tensor.free(); del frame",
        ),
    ],
)
def test_stream_of_cupy_lives_until_the_release(gpu, used, address, free):
    assert gpu(ENDED.format(used=used, address=address, free=free)) == "True\n"


@pytest.mark.parametrize("is_captured", [True, False])
def test_stream_object_outlives_a_deferred_release(gpu, is_captured):
    """A stream that is being captured is needed until its frame is released, after the end of the capture."""
    gpu(f"""
import gc
cuda = Cuda()

class Named:
    def __init__(self):
        self.cuda_stream = cuda.stream()
    def __del__(self):
        ended.append(self.cuda_stream)

named, ended = Named(), []
handle = named.cuda_stream
stream = frameshare.open(PATH, max_held=2)
frame = take(stream)
frame.used_on(named)
if {is_captured}:
    cuda.call("cuStreamBeginCapture_v2", c_void_p(handle), 2)
del named, frame
gc.collect()
assert ended == ([] if {is_captured} else [handle]), ended
if {is_captured}:
    cuda.call("cuStreamEndCapture", c_void_p(handle), byref(c_void_p()))
for _ in range(50):
    take(stream).release()
assert ended == [handle], ended
""")


@pytest.mark.parametrize(
    "protocol",
    [
        "cuda_stream = property(lambda self: self.handle)",
        # An integer, too.
        "__index__ = lambda self: self.handle",
    ],
)
def test_named_stream_object_lives_until_the_release(gpu, protocol):
    gpu("""
import gc, threading, weakref
cuda = Cuda()

class Named:
    def __init__(self):
        self.handle = cuda.stream()
    """ + protocol + """

stream = frameshare.open(PATH)
frame, named = take(stream), Named()
tensor, seen = Imported(frame.__dlpack__(stream=1)), weakref.ref(named)
frame.used_on(named)
del named, frame
gc.collect()
assert seen() is not None
# The deleter drops the object on a thread without the GIL: Python frees it later.
thread = threading.Thread(target=tensor.free)
thread.start()
thread.join()
take(stream).release()
assert seen() is None
""")


@pytest.mark.parametrize(
    "name_it",
    [
        "slot = exporter.acquire(stream=named)",
        "current = named; slot = exporter.acquire(stream=named.handle.value); del current",
        "slot = exporter.acquire(); slot.used_on(named)",
        "slot = exporter.acquire(); Imported(slot.plane(0).__dlpack__(stream=named)).free()",
    ],
)
def test_slot_keeps_named_stream_object_until_it_is_dropped(gpu, name_it):
    gpu("""
import gc, types, weakref
cuda = Cuda()

class Named:
    def __init__(self):
        self.handle = c_void_p(cuda.stream())

exporter = frameshare.create(PATH + ".own", format="GRAY8", width=64, height=48, device=0)
named = Named()
seen = weakref.ref(named)
# CuPy, whose streams come as numbers.
sys.modules["cupy"] = types.SimpleNamespace(cuda=types.SimpleNamespace(get_current_stream=lambda: current))
""" + name_it + """
del named
gc.collect()
assert seen() is not None
assert slot.publish() == 1
del slot
gc.collect()
assert seen() is None
""")


@pytest.mark.parametrize("is_announced", [True, False])
def test_discarded_slot_stays_out_of_use_until_it_is_written(gpu, is_announced):
    """With an announced capture, the end of unnamed work is known after the announcement only."""
    gpu(f"""
import contextlib, threading, time
cuda = Cuda()
named = cuda.stream()
gate = threading.Event()
Function = ctypes.CFUNCTYPE(None, c_void_p)
closed = Function(lambda _: gate.wait())
exporter = frameshare.create(PATH + ".own", format="GRAY8", width=640, height=480, device=0)

def acquired():
    slot = exporter.acquire()
    return slot, slot.plane(0).__cuda_array_interface__["data"][0]

with frameshare.announce_capture() if {is_announced} else contextlib.nullcontext():
    slot, address = acquired()
    cuda.call("cuLaunchHostFunc", c_void_p(named), closed, None)
    cuda.call("cuMemsetD8Async", c_uint64(address), c_uint8(1), ctypes.c_size_t(640 * 480), c_void_p(named))
    slot.discard()
    for _ in range(5):
        other, elsewhere = acquired()
        assert elsewhere != address
        time.sleep(0.02)
gate.set()
cuda.wait(named)
""")


def test_slot_discarded_during_a_capture_stays_out_of_use(gpu):
    """No event follows the work that writes the slot while its stream is captured."""
    gpu("""
import threading, time
cuda = Cuda()
named = cuda.stream()
gate = threading.Event()
Function = ctypes.CFUNCTYPE(None, c_void_p)
closed = Function(lambda _: gate.wait())
exporter = frameshare.create(PATH + ".own", format="GRAY8", width=640, height=480, device=0)

def acquired():
    slot = exporter.acquire(stream=named)
    return slot, slot.plane(0).__cuda_array_interface__["data"][0]

slot, address = acquired()
cuda.call("cuLaunchHostFunc", c_void_p(named), closed, None)
cuda.call("cuMemsetD8Async", c_uint64(address), c_uint8(1), ctypes.c_size_t(640 * 480), c_void_p(named))
with frameshare.announce_capture():
    cuda.call("cuStreamBeginCapture_v2", c_void_p(named), 1)
    slot.discard()
    for _ in range(5):
        other, elsewhere = acquired()
        assert elsewhere != address
        time.sleep(0.02)
    cuda.call("cuStreamEndCapture", c_void_p(named), byref(c_void_p()))
gate.set()
cuda.wait(named)
""")


def test_publication_on_a_captured_stream_leaves_the_capture_intact(gpu):
    output = gpu(
        """
cuda = Cuda()
# A stream whose captures the driver does not report.
named, pointer = cuda.stream(), cuda.memory(64 * 48)

class Array:
    __cuda_array_interface__ = {
        "version": 3, "shape": (48, 64), "strides": None, "typestr": "|u1", "data": (pointer, False), "stream": named
    }

exporter = frameshare.create(PATH + ".own", format="GRAY8", width=64, height=48, device=0)
cuda.call("cuStreamBeginCapture_v2", c_void_p(named), 1)
says(frameshare.Error, "is being captured into a CUDA graph", lambda: exporter.publish(Array()))
cuda.call("cuStreamEndCapture", c_void_p(named), byref(c_void_p()))
assert exporter.publish(Array()) == 1
""",
        SIMCUDA_TRACE="1",
    )
    # The graph has no copy.
    assert count(output, "cuMemcpy2DAsync_v2") == 1, output


def test_published_array_is_dropped_once_it_is_copied(gpu):
    gpu("""
import gc, threading, time, weakref
cuda = Cuda()
named, pointer = cuda.stream(), cuda.memory(64 * 48)
gate = threading.Event()
Function = ctypes.CFUNCTYPE(None, c_void_p)
closed = Function(lambda _: gate.wait())

class Array:
    __cuda_array_interface__ = {
        "version": 3, "shape": (48, 64), "strides": None, "typestr": "|u1", "data": (pointer, False), "stream": named
    }

exporter = frameshare.create(PATH + ".own", format="GRAY8", width=64, height=48, device=0)
cuda.call("cuLaunchHostFunc", c_void_p(named), closed, None)
array = Array()
seen = weakref.ref(array)
exporter.publish(array)
del array
for _ in range(5):
    time.sleep(0.05)
    assert exporter.readers == 0 and seen() is not None
gate.set()
end = time.monotonic() + 60
while seen() is not None:
    assert time.monotonic() < end
    time.sleep(0.01)
    # Python drops it in the next call.
    exporter.readers
""")


def test_tensor_keeps_its_frame_on_the_gpu(gpu):
    gpu("""
cuda = Cuda()
named = cuda.stream()
stream = frameshare.open(PATH)
frame = take(stream)
number, tensor = frame.sequence - 1, Imported(frame.__dlpack__(stream=named))
del frame
while take(stream).sequence < number + 40:
    pass
copied = cuda.memory(SIZE)
cuda.copy(copied, tensor.data, SIZE, named)
cuda.wait(named)
assert cuda.read(copied, SIZE) == bytes([number]) * SIZE
stream.close()
tensor.free()
""")


def test_copies_are_complete_and_private(gpu):
    gpu("""
cuda = Cuda()
named = cuda.stream()
stream = frameshare.open(PATH)
for _ in range(10):
    frame = take(stream)
    number = frame.sequence - 1
    for plane in (frame, *frame.planes):
        assert (copy_on_host(plane) == number).all()
    tensor = Imported(frame.plane(1).__dlpack__(dl_device=(1, 0), max_version=(1, 0)))
    assert (tensor.device, tensor.flags, tensor.strides) == ((CPU, 0), IS_COPIED, (640, 2, 1))
    tensor.free()
    for argument in (None, 1, 2, named, -1):
        copied = Imported(frame.__dlpack__(stream=argument, copy=True, max_version=(1, 0)))
        assert (copied.device, copied.flags) == ((CUDA, 0), IS_COPIED)
        cuda.wait(named)
        # The legacy default stream waits for all that wait for it.
        cuda.call("cuCtxSynchronize")
        assert cuda.read(copied.data, SIZE) == bytes([number]) * SIZE
        copied.free()
    clone = frame.clone()
    found = clone.plane(0).__cuda_array_interface__
    assert found["data"][1] is False and found["stream"] is None and clone.device == "cuda:0"
    shown = Imported(clone.__dlpack__(stream=named, max_version=(1, 0)))
    assert shown.flags == 0 and cuda.read(shown.data, SIZE) == bytes([number]) * SIZE
    shown.free()
    del plane
    frame.release()
    assert (copy_on_host(clone) == number).all()
""")


def test_copy_lives_until_a_stream_that_was_not_named_has_read_it(gpu):
    output = gpu("""
import threading, time
cuda = Cuda()
named, target = cuda.stream(), cuda.memory(SIZE)
gate = threading.Event()
Function = ctypes.CFUNCTYPE(None, c_void_p)
closed = Function(lambda _: gate.wait())
stream = frameshare.open(PATH)
frame = take(stream)
number, copied = frame.sequence - 1, frame.clone()
address = copied.plane(0).__cuda_array_interface__["data"][0]
cuda.call("cuLaunchHostFunc", c_void_p(named), closed, None)
cuda.copy(target, address, SIZE, named)
del copied, frame
time.sleep(0.2)
gate.set()
cuda.wait(named)
print(cuda.read(target, SIZE) == bytes([number]) * SIZE)
""")
    assert output == "True\n"


@pytest.mark.parametrize(
    "copy", ["frame.clone()", "Imported(frame.__dlpack__(copy=True, max_version=(1, 0)))"]
)
def test_copy_is_plain_memory_without_ipc_handle(gpu, copy):
    output = gpu(
        f"""
stream = frameshare.open(PATH)
frame = take(stream)
os.write(2, b"-- copy\\n")
for _ in range(3):
    copied = {copy}
    if isinstance(copied, Imported):
        copied.free()
    del copied
os.write(2, b"-- end\\n")
""",
        SIMCUDA_TRACE="1",
    )
    copied = output.split("-- copy\n")[1].split("-- end\n")[0]
    assert count(copied, "cuMemAlloc_v2") == 3, copied
    for exportable in ("cuIpcGetMemHandle", "cuMemCreate", "cuMemAllocFromPoolAsync"):
        assert count(copied, exportable) == 0, copied


def test_bad_arguments_say_what_to_do(gpu):
    gpu("""
stream = frameshare.open(PATH)
frame = take(stream)
plane = frame.plane(0)
says(ValueError, "stream is 0, which is ambiguous: pass 1", lambda: plane.__dlpack__(stream=0))
says(ValueError, "stream is -7: pass a cudaStream_t", lambda: plane.__dlpack__(stream=-7))
says(TypeError, "str is no CUDA stream", lambda: plane.__dlpack__(stream="x"))
says(TypeError, "object is no CUDA stream", lambda: frame.used_on(object()))
says(frameshare.Error, "CUDA_ERROR_INVALID_HANDLE", lambda: plane.__dlpack__(stream=123456))
says(BufferError, "dl_device is (2, 1), but the frame is on (2, 0)", lambda: plane.__dlpack__(dl_device=(2, 1)))
says(BufferError, "copy is False", lambda: plane.__dlpack__(dl_device=(1, 0), copy=False))
says(ValueError, "on the host: pass None", lambda: plane.__dlpack__(dl_device=(1, 0), stream=1))
says(TypeError, "the frame is in GPU memory: use torch.from_dlpack", lambda: numpy.asarray(plane))
says(BufferError, "the frame is in GPU memory", lambda: memoryview(plane))
says(AttributeError, "__cuda_array_interface__", lambda: plane.__array_interface__)
frame.release()
says(frameshare.ReleasedError, "was released", lambda: plane.__cuda_array_interface__)
""", SIMCUDA_STRICT="log", SIMCUDA_ERRORS="/dev/null")


def test_jax_takes_frames_by_dlpack(gpu):
    """`jax.numpy.asarray` asks for `__jax_array__` before the interfaces."""
    gpu("""
import types
stream = frameshare.open(PATH)
frame = take(stream)
copied = frame.clone()
# The package imports no library.
assert not hasattr(frame.plane(0), "__jax_array__") and "jax" not in sys.modules
sys.modules["jax"] = types.SimpleNamespace(dlpack=types.SimpleNamespace(from_dlpack=lambda array: ("taken", array)))
for array in (frame, *frame.planes, copied, *copied.planes):
    taken = array.__jax_array__()
    assert taken[0] == "taken" and taken[1] is array
# Asking alone uses nothing.
del taken, array
frame.release()
says(frameshare.ReleasedError, "was released", lambda: frame.__jax_array__)
with frameshare.open(PATH, device="cpu") as stream:
    assert not hasattr(take(stream).plane(0), "__jax_array__")
""")


def test_forked_child_leaves_copies_in_gpu_memory_to_its_parent(gpu):
    output = gpu(
        """
stream = frameshare.open(PATH)
frame = take(stream)
copied = frame.clone()
capsule = frame.__dlpack__(copy=True)
child = os.fork()
if child == 0:
    del copied, capsule
    time.sleep(0.2)
    # No poller was started.
    os._exit(len(os.listdir("/proc/self/task")))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
assert (copy_on_host(copied) == frame.sequence - 1).all()
print("child", child)
""",
        SIMCUDA_TRACE="1",
    )
    child = output.split("child ")[1].split()[0]
    assert f"simcuda[{child}]" not in output, output


def test_device_is_chosen_by_number_and_uuid(gpu):
    gpu("""
def place(**arguments):
    with frameshare.open(PATH, **arguments) as stream:
        return take(stream).device

uuid = "GPU-5f51c0da-7e57-4a11-8000-6672616d6573"
assert [place(device=device) for device in (None, 0, "0", "cuda:0", uuid, "cpu")] == 5 * ["cuda:0"] + ["cpu"]
text = "use an ordinal or a UUID of these: 0 is Simulated GPU 0"
for absent in (1, "cuda:1", uuid[:-1] + "0"):
    says(frameshare.UnsupportedError, text, lambda: place(device=absent))
""")


def test_mig_instance_is_named_as_nvidia_smi_names_it(gpu):
    gpu("""
uuid = "5f51c0da-7e57-4a11-8000-6672616d6573"
says(frameshare.UnsupportedError, f"0 is Simulated GPU 0 (MIG-{uuid})", lambda: frameshare.open(PATH, device=1))
assert take(frameshare.open(PATH, device=f"MIG-{uuid}")).device == "cuda:0"
""", SIMCUDA_MIG="1")


TWO = {"SIMCUDA_DEVICES": "2", "SIMCUDA_NO_PEERS": "1"}


def test_gpu_out_of_reach_is_an_error(gpu):
    gpu("""
text = 'cannot read: open the stream with device="GPU-5f51c0da-7e57-4a11-8000-6672616d6573", or take copies'
says(frameshare.UnsupportedError, text, lambda: take(frameshare.open(PATH, device=1)))
assert take(frameshare.open(PATH)).device == "cuda:0"
assert take(frameshare.open(PATH, device="cpu")).device == "cpu"
""", TWO, **TWO)


HOST = """
stream = frameshare.open(PATH{device}, policy="lossless")
for _ in range(20):
    frame = take(stream)
    assert frame.device == "cpu", frame.device
    assert set(numpy.asarray(frame.plane(0)).flat) == {{(frame.sequence - 1) % 256}}
"""


def test_default_device_takes_host_frames_where_no_fence_works(gpu):
    # 64-bit memory operations and interprocess events.
    withheld = {"SIMCUDA_WITHHOLD": "122,125"}
    gpu(HOST.format(device=""), withheld, **withheld)
    program = """
says(frameshare.Error, "no kind of fence in common", lambda: frameshare.open(PATH, device=0))
"""
    gpu(program, withheld, **withheld)


def test_host_frames_need_no_registered_memory(gpu):
    # cuMemHostRegister.
    withheld = {"SIMCUDA_WITHHOLD": "99,113"}
    gpu(HOST.format(device=', device="cpu"'), withheld, **withheld)


def test_driver_is_loaded_for_streams_on_a_gpu_only(processes):
    processes.publish()
    program = PRELUDE + """
def is_loaded():
    return "libcuda.so" in open("/proc/self/maps").read()

assert not is_loaded()
with frameshare.open(PATH) as stream:
    numpy.from_dlpack(take(stream).plane(0))
assert not is_loaded()
frameshare.open(PATH, device=0)
assert is_loaded()
"""
    run_well(program, processes.path(), **simulated_driver())


def test_captures_of_other_code_stay_intact(gpu):
    gpu("""
cuda = Cuda()
captured, free = cuda.stream(), cuda.stream()
stream = frameshare.open(PATH)
held = Imported(take(stream).__dlpack__(stream=captured))
# CU_STREAM_CAPTURE_MODE_GLOBAL: the driver refuses much on all threads.
cuda.call("cuStreamBeginCapture_v2", c_void_p(captured), 0)
for _ in range(10):
    frame = take(stream)
    says(frameshare.Error, "is being captured into a CUDA graph", lambda: frame.__dlpack__(stream=captured))
    tensor = Imported(frame.__dlpack__(stream=free))
    tensor.free()
    frame.release()
# The release of this frame waits for the end of the capture.
held.free()
graph = c_void_p()
cuda.call("cuStreamEndCapture", c_void_p(captured), byref(graph))
for _ in range(10):
    take(stream).release()
""")


ANNOUNCED = """
import contextlib
cuda = Cuda()
# A stream whose captures the driver does not report.
captured = cuda.stream()
stream = frameshare.open(PATH, max_held=2)
with {announced}:
    cuda.call("cuStreamBeginCapture_v2", c_void_p(captured), 1)
    frame = take(stream)
    plane = frame.plane(0)
    assert plane.__cuda_array_interface__["data"][0] != 0
    del plane, frame
    graph = c_void_p()
    print(cuda.driver.cuStreamEndCapture(c_void_p(captured), byref(graph)))
# The release comes after the announcement.
for _ in range(20):
    take(stream).release()
"""


def test_announced_capture_stays_intact(gpu):
    assert gpu(ANNOUNCED.format(announced="frameshare.announce_capture()")) == "0\n"
    assert gpu(ANNOUNCED.format(announced="frameshare.announce_capture() as one, one")) == "0\n"


def test_capture_without_announcement_is_invalidated(gpu):
    """Negative control: the release follows all work of the context."""
    output = gpu(ANNOUNCED.format(announced="contextlib.nullcontext()"), SIMCUDA_STRICT="off")
    assert output == "901\n"


def test_threads_take_export_and_free(gpu):
    gpu("""
import queue, threading
cuda = Cuda()
stream = frameshare.open(PATH, policy="lossless", max_held=8)
tensors, errors, numbers = queue.SimpleQueue(), [], []

def read():
    try:
        mine = Cuda().stream()
        for _ in range(15):
            frame = take(stream)
            tensors.put((frame.sequence - 1, Imported(frame.plane(0).__dlpack__(stream=mine))))
            del frame
    except Exception as error:
        errors.append(error)
    finally:
        tensors.put(None)

readers = [threading.Thread(target=read) for _ in range(3)]
for reader in readers:
    reader.start()
ended = 0
while ended < len(readers):
    found = tensors.get()
    if found is None:
        ended += 1
        continue
    number, tensor = found
    # The legacy default stream does not wait for those of the readers, whose frames may be unwritten.
    tensor.free()
    numbers.append(number)
assert errors == [] and len(set(numbers)) == 45
""")


def test_killed_exporter_raises_and_frames_stay(gpu):
    gpu("""
import signal
cuda = Cuda()
stream = frameshare.open(PATH, reconnect=False)
frame = take(stream)
number, tensor = frame.sequence - 1, Imported(frame.__dlpack__())
os.kill(int(sys.argv[2]), signal.SIGKILL)

def until_the_end():
    while True:
        take(stream)

says(frameshare.ClosedError, "connection to the exporter lost", until_the_end)
assert cuda.read(tensor.data, SIZE) == bytes([number]) * SIZE
tensor.free()
""")


PENDING = """
import threading
cuda = Cuda()
named = cuda.stream()
stream = frameshare.open(PATH, max_held=2)
gate = threading.Event()
Function = ctypes.CFUNCTYPE(None, c_void_p)
closed = Function(lambda _: gate.wait())
first, second = take(stream), take(stream)
cuda.call("cuLaunchHostFunc", c_void_p(named), closed, None)
for frame in (first, second):
    frame.used_on(named)
del frame, {dropped}
"""


@pytest.mark.parametrize("dropped", ["first, second", "first"])
def test_pending_release_on_the_gpu_is_waited_for(gpu, dropped):
    gpu(PENDING.format(dropped=dropped) + """
# Longer than a wait with all frames held lasts.
says(frameshare.TimeoutError, "within 1.5 s", lambda: stream.next(1.5))
gate.set()
take(stream)
""")


def test_frames_in_use_raise_held_error(gpu):
    """Negative control: no release is pending, and this program holds all frames."""
    gpu("""
stream = frameshare.open(PATH, max_held=2)
held = [take(stream), take(stream)]
says(frameshare.HeldError, "this process holds 2 frames", lambda: stream.next(60))
""")
