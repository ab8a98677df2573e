# SPDX-License-Identifier: MIT OR Apache-2.0
"""Cases: the order of GPU work of several writers, GPUs and threads, beside captures, and after an early end."""

import contextlib
import ctypes
import gc
import threading
import time

import support
from cases import Raw, case, created, expected_value, opened, taker
from support import Driver, publisher

SIZE = 640 * 360

# 1. Streams that are destroyed before the frame is dropped, and those of green contexts.


def read_late(name, read):
    """Read frames on streams that are busy until after the release; `read` returns a function for the bytes."""
    driver, torn, frames = Driver(), 0, 20
    with (
        publisher(name, pause_us=2000),
        opened(name, policy="latest", max_held=4, reconnect=False) as stream,
    ):
        for _ in range(frames):
            frame = stream.next(20)
            expected, result = expected_value(frame), read(driver, frame)
            del frame
            # Longer than the stream takes; the exporter writes all its slots meanwhile.
            time.sleep(0.2)
            driver.call("cuCtxSynchronize")
            torn += set(result()) != {expected}
    assert torn == 0, f"{torn} of {frames} frames were released before they were read"
    return {"frames": frames, "torn": 0}


def read_and_destroy(driver, frame, others=0):
    """Read a frame on a stream that is destroyed at once; `others` are made then, and can get its handle."""
    queue, target = driver.new_stream(), driver.allocate(SIZE)
    driver.stall(queue, 100)
    pointer, *_ = driver.import_of(frame.plane(0), queue)
    driver.copy(target, pointer, SIZE, queue)
    frame.done_on(queue.value)
    driver.call("cuStreamDestroy_v2", queue)
    for _ in range(others):
        driver.new_stream()
    return lambda: driver.bytes_at(target, SIZE)


case("ended-stream")(lambda: read_late("ended", read_and_destroy))
case("ended-stream-of-reused-handle")(
    lambda: read_late("ended", lambda driver, frame: read_and_destroy(driver, frame, 8))
)


@case("ended-stream-cupy")
def ended_stream_cupy():
    """CuPy names its current stream by number, and destroys it with its object."""
    cupy = support.Cupy().cupy

    def read(driver, frame):
        with cupy.cuda.Stream(non_blocking=True) as queue:
            driver.stall(ctypes.c_void_p(queue.ptr), 100)
            copy = cupy.from_dlpack(frame.plane(0)).copy()
        del queue
        return lambda: copy.get().tobytes()

    return read_late("ended", read)


@case("ended-stream-numba")
def ended_stream_numba():
    """Numba names no stream: the release follows all work of the context, that of destroyed streams, too."""
    cuda = support.Numba().cuda

    def read(driver, frame):
        queue, target = cuda.stream(), cuda.device_array((360, 640), "uint8")
        driver.stall(ctypes.c_void_p(int(queue.handle)), 100)
        target.copy_to_device(cuda.as_cuda_array(frame.plane(0)), stream=queue)
        del queue
        return lambda: target.copy_to_host().tobytes()

    return read_late("ended", read)


@case("green-context-reader")
def green_context_reader():
    """The stream belongs to a green context of the frame's GPU."""
    queue = Driver().green_stream()

    def read(driver, frame):
        target = driver.allocate(SIZE)
        driver.stall(queue, 100)
        pointer, *_ = driver.import_of(frame.plane(0), queue)
        driver.copy(target, pointer, SIZE, queue)
        frame.used_on(queue.value)
        return lambda: driver.bytes_at(target, SIZE)

    return read_late("green", read)


@case("green-context-writer")
def green_context_writer():
    driver = Driver()
    queue = driver.green_stream()

    def publish(exporter):
        with exporter.acquire(stream=queue.value) as slot:
            driver.stall(queue, 500)
            driver.fill(slot.plane(0).__cuda_array_interface__["data"][0], 0x11, 1920 * 1080, queue)

    return published_late("green", publish)


# 2. Sources that are dropped while their copy waits.


def published_late(name, publish, gpu=0):
    """Publish a frame of 0x11 on a stalled stream, and read it; sources get 0x22 when they are freed."""
    import numpy

    with created(name, width=1920, height=1080, device=gpu) as exporter:
        with opened(name, device="cpu", policy="lossless") as stream:
            exporter.wait_for_reader(10)
            later = publish(exporter)
            found = set(numpy.unique(numpy.asarray(stream.next(20).plane(0))).tolist())
            del later
    assert found == {0x11}, f"the frame has {sorted(found)}"
    return {}


def freed_torch(is_side):
    """The tensor is of the current stream, or of a side stream that the current one waits for."""
    torch = support.Torch().torch

    def full(value):
        return torch.full((1080, 1920), value, dtype=torch.uint8, device="cuda")

    def publish(exporter):
        queue, own = torch.cuda.Stream(), torch.cuda.Stream() if is_side else torch.cuda.current_stream()
        torch.cuda.empty_cache()
        Driver().stall(ctypes.c_void_p(queue.cuda_stream), 1000)
        with torch.cuda.stream(own):
            tensor = full(0x11)
        queue.wait_stream(own)
        exporter.publish(tensor, stream=queue)
        del tensor
        gc.collect()
        with torch.cuda.stream(own):
            return [full(0x22) for _ in range(64)]

    return published_late("freedtorch", publish)


case("freed-source-torch")(lambda: freed_torch(is_side=False))
case("freed-source-torch-side")(lambda: freed_torch(is_side=True))


@case("freed-source-cupy")
def freed_source_cupy():
    cupy = support.Cupy().cupy

    def publish(exporter):
        queue = cupy.cuda.Stream(non_blocking=True)
        Driver().stall(ctypes.c_void_p(queue.ptr), 1000)
        array = cupy.full((1080, 1920), 0x11, cupy.uint8)
        cupy.cuda.get_current_stream().synchronize()
        exporter.publish(array, stream=queue)
        del array
        return [cupy.full((1080, 1920), 0x22, cupy.uint8) for _ in range(64)]

    return published_late("freedcupy", publish)


@case("freed-source-jax")
def freed_source_jax():
    jax = support.Jax().jax

    def full(value):
        return jax.numpy.full((1080, 1920), value, jax.numpy.uint8).block_until_ready()

    def publish(exporter):
        full(0x11)
        # The legacy default stream, which JAX's do not wait for.
        Driver().stall(ctypes.c_void_p(1), 1000)
        array = full(0x11)
        exporter.publish(array)
        del array
        gc.collect()
        return [full(0x22) for _ in range(64)]

    return published_late("freedjax", publish)


@case("freed-source-numba")
def freed_source_numba():
    """Memory of PyTorch's pool that is published through `__cuda_array_interface__` of a wrapper."""
    torch = support.Torch().torch
    cuda = support.Numba().cuda

    def publish(exporter):
        queue = torch.cuda.Stream()
        Driver().stall(ctypes.c_void_p(queue.cuda_stream), 1000)
        array = cuda.as_cuda_array(torch.full((1080, 1920), 0x11, dtype=torch.uint8, device="cuda"))
        torch.cuda.current_stream().synchronize()
        exporter.publish(array, stream=queue)
        del array
        gc.collect()
        return [torch.full((1080, 1920), 0x22, dtype=torch.uint8, device="cuda") for _ in range(64)]

    return published_late("freednumba", publish)


@case("freed-source")
def freed_source():
    """By CUDA's driver alone: an array whose end overwrites its memory."""
    driver, size = Driver(), 1920 * 1080
    pointer, queue = driver.allocate(size), driver.new_stream()
    driver.fill(pointer, 0x11, size)
    driver.synchronize()

    class Array:
        __cuda_array_interface__ = {
            "version": 3,
            "shape": (1080, 1920),
            "strides": None,
            "typestr": "|u1",
            "data": (pointer, False),
            "stream": queue.value,
        }

        def __del__(self):
            driver.fill(pointer, 0x22, size)

    def publish(exporter):
        driver.stall(queue, 1000)
        exporter.publish(Array())

    return published_late("freed", publish)


# 3. Captures that nothing announces, in threads beside a reader.


def captures_intact_beside(use, frames, announce=contextlib.nullcontext):
    """Capture a stream that does not wait for the default stream, in the thread-local mode, beside a reader."""
    driver, captures, broken = Driver(), 0, 0
    queue, memory = driver.new_stream(), driver.allocate(1 << 20)

    def used(frame):
        # The contexts of threads are their own.
        driver.call("cuCtxSetCurrent", driver.context)
        use(driver, frame)

    with publisher("capture", pause_us=500), taker("capture", frames, used) as state:
        while state["taken"] == 0 and state["is_alive"]():
            time.sleep(0.01)
        while state["is_alive"]():
            graph = ctypes.c_void_p()
            with announce():
                driver.call("cuStreamBeginCapture_v2", queue, 1)
                time.sleep(0.005)
                driver.cuda.cuMemsetD8Async(
                    ctypes.c_uint64(memory), ctypes.c_ubyte(1), ctypes.c_size_t(1 << 20), queue
                )
                broken += driver.cuda.cuStreamEndCapture(queue, ctypes.byref(graph)) != 0
            captures += 1
            if graph.value:
                driver.call("cuGraphDestroy", graph)
            # Announced captures follow each other with a pause: releases wait for it.
            time.sleep(0.002)
    assert captures > 10, captures
    assert broken == 0, f"{broken} of {captures} captures were invalidated"
    return {"frames": frames, "captures": captures}


def probe(_, frame):
    """All that code does to find out which interfaces a plane has."""
    plane = frame.plane(0)
    assert hasattr(plane, "__cuda_array_interface__")


def clone(driver, frame):
    copied, value = frame.clone(), expected_value(frame)
    assert driver.bytes_at(copied.plane(0).__cuda_array_interface__["data"][0], 8) == bytes([value]) * 8


def copy(driver, frame):
    capsule = frame.plane(0).__dlpack__(stream=driver.stream.value, max_version=(1, 1), copy=True)
    pointer, *_ = support.parse_capsule(capsule)
    assert driver.bytes_at(pointer, 8) == bytes([expected_value(frame)]) * 8


def export(driver, frame):
    driver.import_of(frame.plane(0))


def download(_, frame):
    assert frame.plane(0).__dlpack__(dl_device=(1, 0), max_version=(1, 1), copy=True)


def address(driver, frame):
    plane = frame.plane(0)
    # The frame may be unwritten, and the interface names the stream that waits for it.
    interface = plane.__cuda_array_interface__
    if interface["stream"]:
        driver.call("cuStreamSynchronize", ctypes.c_void_p(interface["stream"]))
    assert driver.bytes_at(interface["data"][0], 8) == bytes([expected_value(frame)]) * 8


for _use, _frames in ((probe, 1000), (clone, 300), (copy, 300), (export, 1000), (download, 300)):
    case(f"captures-{_use.__name__}", 120)(lambda use=_use, count=_frames: captures_intact_beside(use, count))


@case("captures-announced", 120)
def captures_announced():
    """An address without a stream makes the release follow all work of the context, after the captures."""
    import frameshare

    return captures_intact_beside(address, 300, frameshare.announce_capture)


# 4. Writers and readers on several streams and GPUs.


def leased_frames(name, gpu, frames, held=1, **exporter):
    """Compare frames that change while they are held, if their slots are written meanwhile."""
    driver, wrong = Driver(gpu), 0
    with publisher(name, **exporter), opened(name, device=gpu, policy="latest", max_held=held) as stream:
        for _ in range(frames):
            frame = stream.next(20)
            pointer, *_, capsule = driver.import_of(frame.plane(0))
            time.sleep(0.03)
            wrong += set(driver.bytes_at(pointer, SIZE)) != {expected_value(frame)}
            del capsule, frame
    assert wrong == 0, f"{wrong} of {frames} frames are wrong, max_held={held}"
    return {"frames": frames}


@case("double-buffered-writer")
def double_buffered_writer():
    """A writer with two streams, one of which is slow: most of its frames are late, and no reader gets them."""
    for held in (1, 2):
        figures = leased_frames("double", 0, 100, held, pause_us=10_000, slow_ms=15)
    return figures


@case("two-gpus")
def two_gpus():
    """The reader is on the second GPU, which reads memory of the first one."""
    return leased_frames("peers", 1, 100, pause_us=2000)


@case("two-gpus-cupy")
def two_gpus_cupy():
    """CuPy's array and its current stream are of the second GPU, while the first one is current."""
    cupy = support.Cupy().cupy
    driver, other = Driver(), Driver(1)
    with cupy.cuda.Device(1):
        queue = cupy.cuda.Stream(non_blocking=True)
        queue.use()
        array = cupy.zeros((1080, 1920), cupy.uint8)
        other.stall(ctypes.c_void_p(queue.ptr), 1000)
        array.fill(0x11)
    driver.call("cuCtxSetCurrent", driver.context)

    def publish(exporter):
        exporter.publish(array)

    return published_late("peers", publish, gpu=1)


# 5. The default stream of each thread.


@case("slot-of-another-thread")
def slot_of_another_thread():
    """A slot is written on the default stream of one thread, and published by another."""
    import numpy

    driver = Driver()
    own = ctypes.c_void_p(2)
    with created("perthread") as exporter, opened("perthread", device="cpu") as stream:
        exporter.wait_for_reader(10)
        slot = exporter.acquire()

        def write():
            driver.call("cuCtxSetCurrent", driver.context)
            capsule = slot.plane(0).__dlpack__(stream=2, max_version=(1, 1))
            driver.stall(own, 500)
            driver.fill(support.parse_capsule(capsule)[0], 0x11, SIZE, own)

        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
        slot.publish()
        found = set(numpy.unique(numpy.asarray(stream.next(20).plane(0))).tolist())
    assert found == {0x11}, f"the frame has {sorted(found)}"
    return {}


# 5. Work of another context than the exporter's.


@case("published-from-another-context")
def published_from_another_context():
    """Slots and copies that late work of another context writes, on a stream of it."""
    import numpy

    driver, own, other = Driver(), ctypes.c_void_p(), ctypes.c_void_p()
    driver.call("cuCtxGetCurrent", ctypes.byref(own))
    driver.call("cuCtxCreate_v2", ctypes.byref(other), 0, driver.device)
    queue = driver.new_stream()
    with (
        created("elsewhere") as exporter,
        opened("elsewhere", device="cpu", policy="lossless") as host,
        opened("elsewhere", device=0, policy="lossless") as stream,
    ):
        exporter.wait_for_reader(10)
        for value, is_copied in enumerate([False, True] * 4, 0x11):
            if is_copied:
                source = driver.allocate(SIZE)
                driver.stall(queue, 100)
                driver.fill(source, value, SIZE, queue)
                exporter.publish(Raw(source, (360, 640)), stream=queue.value)
            else:
                slot = exporter.acquire()
                capsule = slot.plane(0).__dlpack__(stream=queue.value, max_version=(1, 1))
                driver.stall(queue, 100)
                driver.fill(support.parse_capsule(capsule)[0], value, SIZE, queue)
                slot.publish()
            found = set(numpy.unique(numpy.asarray(host.next(20).plane(0))).tolist())
            assert found == {value}, f"the frame has {sorted(found)} instead of {value}"
            driver.call("cuCtxSetCurrent", own)
            found = set(driver.host(stream.next(20).plane(0)))
            assert found == {value}, f"on the GPU the frame has {sorted(found)} instead of {value}"
            driver.call("cuCtxSetCurrent", other)
    driver.call("cuCtxSetCurrent", own)
    return {}
