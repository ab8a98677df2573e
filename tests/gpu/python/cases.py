# SPDX-License-Identifier: MIT OR Apache-2.0
"""The cases of the suite `python`. A case raises, or returns its figures."""

import contextlib
import gc
import os
import subprocess
import sys
import threading
import time

import support
from support import Driver, decoded, figures, needs, publisher, sum_of, sums_of

#: Name of each case, in the order of the suite.
CASES = {}
#: Time limits in seconds of those that need more than a minute.
LIMITS = {}
#: Cases that run alone: they measure times, or memory of the GPU.
ALONE = ("killed-exporter", "leaks", "leaks-torch")


def case(name, limit=60):
    def add(function):
        CASES[name] = function
        LIMITS[name] = limit
        return function

    return add


def opened(name, **options):
    """Open a stream, whose exporter has perhaps just been started, on the GPU."""
    import frameshare

    return frameshare.open(name, connection_timeout=30, **{"device": 0, **options})


def expected_value(frame):
    return frame.sequence % 251


# 1. Every frame of the decoder.


def decoded_frames(library, clip, sink="", decoder=""):
    """Compare every frame of a clip with the decoder's output, and every address with the imported slot's."""
    library = support.LIBRARIES[library]()
    wanted = sums_of(clip)
    path, exporter = decoded(clip, f"python-{os.getpid()}.sock", sink, decoder)
    found, addresses = [], set()
    with exporter, opened(path, policy="lossless", reconnect=False) as stream:
        for frame in stream:
            arrays = [library.of(plane) for plane in frame.planes]
            slots = [plane.__cuda_array_interface__["data"][0] for plane in frame.planes]
            is_copied = [library.pointer(array) for array in arrays] != slots
            if is_copied and not library.needs_copies:
                raise AssertionError(
                    f"frame {frame.sequence} was copied: its arrays are not at the slot's address"
                )
            addresses.update(slots[:1])
            del arrays
            found.append(sum_of(library, frame))
            del frame
            gc.collect(0)
    if found != wanted:
        differ = [index for index, pair in enumerate(zip(found, wanted, strict=False)) if pair[0] != pair[1]][
            :5
        ]
        raise AssertionError(f"{len(found)} frames of {len(wanted)}, different: {differ}")
    return {"frames": len(found), "slots": len(addresses)}


for _library in support.LIBRARIES:
    case(f"decoded-{_library}", 120)(lambda name=_library: decoded_frames(name, "hd.h264"))
for _memory in ("pool", "legacy"):
    case(f"decoded-torch-{_memory}", 120)(
        lambda kind=_memory: decoded_frames("torch", "hd.h264", f"export=copy memory={kind}")
    )
case("decoded-torch-in-place", 120)(
    lambda: decoded_frames("torch", "hd.h264", "export=in-place", "num-output-surfaces=0")
)
case("decoded-torch-uhd", 120)(lambda: decoded_frames("torch", "uhd.h264"))


@case("imports-are-zero-copy")
def imports_are_zero_copy():
    torch = support.Torch()
    with (
        publisher("zero", width=3840, height=2160, pause_us=2000),
        opened("zero", policy="lossless") as stream,
    ):
        pointers, before = set(), torch.allocated()
        for _ in range(300):
            frame = stream.next(20)
            tensor = torch.of(frame.plane(0))
            slot = frame.plane(0).__cuda_array_interface__["data"][0]
            assert tensor.data_ptr() == slot, "the tensor is not at the slot's address"
            pointers.add(tensor.data_ptr())
            del tensor, frame
        assert torch.allocated() == before, "PyTorch has allocated memory"
    # Many frames arrive in few slots, each of which is imported once.
    assert len(pointers) < 30, f"{len(pointers)} addresses"
    return {"frames": 300, "slots": len(pointers)}


@case("compact-planes-of-jax-are-zero-copy")
def compact_planes_of_jax_are_zero_copy():
    jax = support.Jax()
    with publisher("jax", width=640, height=360, pause_us=2000), opened("jax", policy="lossless") as stream:
        for _ in range(100):
            frame = stream.next(20)
            array = jax.jax.dlpack.from_dlpack(frame.plane(0))
            slot = frame.plane(0).__cuda_array_interface__["data"][0]
            assert jax.pointer(array) == slot, "the array is not at the slot's address"
            assert bool((array == expected_value(frame)).all()), f"frame {frame.sequence} has another content"
            del array, frame
    return {"frames": 100}


def read_by_interface(library, take):
    """Take planes through `__cuda_array_interface__`, and compare addresses and content."""
    driver = Driver()
    with publisher("interface", pause_us=2000), opened("interface", policy="lossless") as stream:
        for _ in range(50):
            frame = stream.next(20)
            array = take(frame.plane(0))
            assert library.pointer(array) == driver.import_of(frame.plane(0))[0], "the plane was copied"
            assert set(library.bytes(array)) == {expected_value(frame)}
            del array, frame
    return {"frames": 50}


@case("interface-cupy")
def interface_cupy():
    library = support.Cupy()
    return read_by_interface(library, library.cupy.asarray)


@case("interface-numba")
def interface_numba():
    library = support.Numba()
    return read_by_interface(library, library.of)


@case("interface-jax")
def interface_jax():
    """JAX asks for `__jax_array__` first, which is an import by DLPack."""
    library = support.Jax()
    return read_by_interface(library, library.jax.numpy.asarray)


# 2. Writers that reuse slots.


def torn(torch, stream, frames, read):
    """Read frames behind a delay of the GPU, and return the number of those with another content."""
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    queue = torch.cuda.Stream()
    with torch.cuda.stream(queue):
        for _ in range(frames):
            frame = stream.next(20)
            value = expected_value(frame)
            read(frame, value, wrong)
            del frame
    queue.synchronize()
    return int(wrong)


@case("reused-slots-torch", 120)
def reused_slots_torch():
    torch = support.Torch().torch

    def read(frame, value, wrong):
        tensor = torch.from_dlpack(frame.plane(0))
        # The frame is dropped long before the GPU reads it.
        torch.cuda._sleep(200_000)
        wrong.add_((tensor != value).any())

    found = {}
    for policy in ("latest", "lossless"):
        with (
            publisher("reuse", width=1920, height=1080),
            opened("reuse", policy=policy, max_held=4) as stream,
        ):
            found[policy] = torn(torch, stream, 2000, read)
    assert not any(found.values()), f"torn frames: {found}"
    return {"frames": 4000, "torn": 0}


@case("reused-slots-cupy", 120)
def reused_slots_cupy():
    cupy = support.Cupy().cupy
    wrong = cupy.zeros((), dtype=cupy.int64)
    with publisher("reuse", width=1920, height=1080), opened("reuse", policy="latest", max_held=4) as stream:
        with cupy.cuda.Stream(non_blocking=True) as queue:
            for _ in range(2000):
                frame = stream.next(20)
                array = cupy.from_dlpack(frame.plane(0))
                for _ in range(4):
                    wrong += (array != expected_value(frame)).any()
                del array, frame
            queue.synchronize()
    assert int(wrong) == 0, f"{int(wrong)} reads of torn frames"
    return {"frames": 2000, "torn": 0}


@case("reused-slots-jax", 120)
def reused_slots_jax():
    """JAX names a stream for readiness alone, and computes on another one, here long after the drop."""
    jax = support.Jax().jax
    numpy = jax.numpy
    busy = jax.jit(lambda matrix: jax.lax.fori_loop(0, 60, lambda _, x: x @ matrix * 1e-3, matrix))
    # It reads the frame behind the long work, on which it depends.
    check = jax.jit(lambda work, frame, value: (frame != value).any() | (work[0, 0] == 12345.0))
    matrix = numpy.ones((8192, 8192), numpy.bfloat16)
    results, longest = [], 0
    with (
        publisher("reuse", width=1920, height=1080, pause_us=2000),
        opened("reuse", policy="latest", max_held=4) as stream,
    ):
        for number in range(60):
            frame = stream.next(20)
            value, work = numpy.uint8(expected_value(frame)), busy(matrix)
            array = jax.dlpack.from_dlpack(frame.plane(0))
            results.append(check(work, array, value))
            if number == 0:
                # Compiled by now.
                results[0].block_until_ready()
            begin = time.monotonic()
            del array, frame, work
            gc.collect()
            longest = max(longest, time.monotonic() - begin)
        wrong = sum(map(bool, results))
    assert wrong == 0, f"{wrong} of {len(results)} frames were torn"
    return {"frames": len(results), "torn": 0, "longest_drop_ms": round(1000 * longest)}


@case("reused-slots-by-address", 120)
def reused_slots_by_address():
    """The same by CUDA's driver alone, through `__cuda_array_interface__`."""
    driver = Driver()
    wrong = 0
    with publisher("reuse", width=640, height=360), opened("reuse", policy="latest", max_held=4) as stream:
        for _ in range(300):
            frame = stream.next(20)
            data = set(driver.host(frame.plane(0)))
            wrong += data != {expected_value(frame)}
            del frame
    assert wrong == 0, f"{wrong} torn frames"
    return {"frames": 300, "torn": 0}


class Raw:
    """An address that holds nothing."""

    def __init__(self, address, shape):
        self.__cuda_array_interface__ = {
            "version": 2,
            "shape": shape,
            "strides": None,
            "typestr": "|u1",
            "data": (address, False),
        }


@case("early-release-is-caught", 120)
def early_release_is_caught():
    """Negative control: the address is read after the release, and the check of the cases above finds it."""
    torch = support.Torch().torch

    def read(frame, value, wrong):
        plane = frame.plane(0)
        address, shape = plane.__cuda_array_interface__["data"][0], tuple(plane.shape)
        del plane
        frame.release()
        # Nothing that frameshare can see holds the frame from here on.
        torch.cuda._sleep(20_000_000)
        tensor = torch.as_tensor(Raw(address, shape), device="cuda")
        wrong.add_((tensor != value).any())

    with publisher("early", width=640, height=360), opened("early", policy="latest", max_held=4) as stream:
        found = torn(torch, stream, 200, read)
    assert found > 0, "a release before the read was not noticed: the cases above show nothing"
    return {"frames": 200, "torn": found}


# 3. Captures of CUDA graphs beside a reader.


@contextlib.contextmanager
def taker(name, frames, use):
    """Take and drop frames in a thread; the block runs meanwhile. Yields the state of the thread."""
    state = {"taken": 0, "error": None}

    def take():
        try:
            with opened(name, policy="latest") as stream:
                for _ in range(frames):
                    frame = stream.next(30)
                    use(frame)
                    del frame
                    state["taken"] += 1
        except BaseException as error:
            state["error"] = error

    thread = threading.Thread(target=take)
    thread.start()
    state["is_alive"] = thread.is_alive
    yield state
    thread.join(120)
    if state["error"] is not None:
        raise state["error"]


def captured_beside(use):
    torch = support.Torch().torch
    captures = 0
    source = torch.ones(1 << 16, device="cuda")
    source.mul_(2)
    torch.cuda.synchronize()
    with publisher("graph", width=640, height=360, pause_us=100), taker("graph", 10_000, use) as state:
        while state["taken"] == 0 and state["is_alive"]():
            time.sleep(0.01)
        while state["is_alive"]():
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                target = source * 3
                time.sleep(0.002)
                target = target + 1
            graph.replay()
            torch.cuda.current_stream().synchronize()
            assert bool((target == 7).all()), "the graph computed something else"
            captures += 1
            del graph, target
    assert state["taken"] == 10_000 and captures > 10, (state["taken"], captures)
    return {"frames": state["taken"], "captures": captures}


@case("captures", 180)
def captures():
    """Frames are taken, exported by DLPack on a stream of the reader and dropped."""
    driver = Driver()
    return captured_beside(
        lambda frame: frame.plane(0).__dlpack__(stream=driver.stream.value, max_version=(1, 1))
    )


@case("captures-torch", 180)
def captures_torch():
    """The same with tensors of PyTorch, on which the reader's thread queues work."""
    torch = support.Torch().torch
    queue = torch.cuda.Stream()
    target = torch.zeros((360, 640), dtype=torch.uint8, device="cuda")

    def use(frame):
        with torch.cuda.stream(queue):
            target.copy_(torch.from_dlpack(frame.plane(0)), non_blocking=True)

    return captured_beside(use)


@case("compile-reduce-overhead", 240)
def compile_reduce_overhead():
    torch = support.Torch().torch
    needs("triton")

    def model(data):
        return (data.float() * 2 + 1).relu().sum(dim=1)

    compiled = torch.compile(model, mode="reduce-overhead")
    driver = Driver()
    data = torch.ones((64, 1024), dtype=torch.uint8, device="cuda")
    runs = 0
    use = lambda frame: frame.plane(0).__dlpack__(stream=driver.stream.value, max_version=(1, 1))  # noqa: E731
    with publisher("compile", width=640, height=360, pause_us=100), taker("compile", 10_000, use) as state:
        while state["taken"] == 0 and state["is_alive"]():
            time.sleep(0.01)
        while state["is_alive"]() or runs < 100:
            torch.compiler.cudagraph_mark_step_begin()
            result = compiled(data)
            assert bool((result == 3 * 1024).all()), "the compiled model computed something else"
            runs += 1
            if runs % 50 == 0:
                # Capture again.
                torch._dynamo.reset()
    assert state["taken"] == 10_000, state["taken"]
    return {"frames": state["taken"], "runs": runs}


# 4. Exporters that die.


@case("killed-exporter")
def killed_exporter():
    import frameshare

    driver = Driver()
    waits = []
    for _ in range(5):
        with (
            publisher("killed", width=640, height=360) as exporter,
            opened("killed", reconnect=False) as stream,
        ):
            for _ in range(20):
                frame = stream.next(20)
            killed = exporter.kill()
            try:
                while True:
                    frame = stream.next(5)
            except frameshare.TimeoutError:
                raise AssertionError("no error within 5 s of the kill") from None
            except frameshare.Error as error:
                waits.append(time.monotonic() - killed)
                text = str(error)
            # The frame that is held stays readable; its exporter may have died while writing it.
            assert len(driver.host(frame.plane(0))) == 640 * 360
            del frame
        # The process reads the next one.
        with publisher("killed", width=640, height=360), opened("killed", policy="lossless") as stream:
            frame = stream.next(20)
            assert set(driver.host(frame.plane(0))) == {expected_value(frame)}
            del frame
    assert max(waits) < 1, f"raised after {max(waits):.2f} s"
    return {"kills": len(waits), "slowest_s": round(max(waits), 3), "text": text}


# 5. Writes into frames.

WRITER = """
import sys, frameshare, {library} as library
with frameshare.open("write", device=0, connection_timeout=30) as stream:
    frame = stream.next(20)
    array = library.from_dlpack(frame.plane(0))
    array += 1
    library.cuda.{synchronize}
print("written")
"""


def written_into(kind, library):
    """Write into a frame from a process of its own, and return its output and whether others were disturbed."""
    driver = Driver()
    needs(library)
    synchronize = "synchronize()" if library == "torch" else "Device().synchronize()"
    program = WRITER.format(library=library, synchronize=synchronize)
    with publisher("write", memory=kind, width=640, height=360, pause_us=1000), opened("write") as stream:
        stream.next(20)
        process = subprocess.run(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=50,
            check=False,
        )
        for _ in range(100):
            frame = stream.next(20)
            data = set(driver.host(frame.plane(0)))
            if kind == "vmm":
                assert data == {expected_value(frame)}, "another reader got a changed frame"
            del frame
    return process.returncode, process.stdout.decode(errors="replace")


def faults(kind, library):
    status, output = written_into(kind, library)
    assert status != 0 and "written" not in output, f"the write went through: {output}"
    # Not an error of the import, which would show nothing.
    assert "illegal" in output.lower(), output
    last = output.strip().splitlines()[-1:] or [""]
    return {"status": status, "error": last[0][:200]}


def goes_through(kind, library):
    status, output = written_into(kind, library)
    assert status == 0 and "written" in output, output
    return {"status": status}


for _library in ("torch", "cupy"):
    case(f"write-faults-vmm-{_library}", 90)(lambda name=_library: faults("vmm", name))
    for _memory in ("pool", "legacy"):
        case(f"write-{_memory}-{_library}-goes-through", 90)(
            lambda kind=_memory, name=_library: goes_through(kind, name)
        )

HOST_WRITER = """
import ctypes, frameshare, numpy
with frameshare.open("write", device="cpu", connection_timeout=30) as stream:
    frame = stream.next(20)
    array = numpy.asarray(frame.plane(0))
    try:
        array[0] = 1
    except ValueError as error:
        print("refused:", error, flush=True)
    ctypes.memset(frame.plane(0).__array_interface__["data"][0], 1, 1)
print("written")
"""


@case("write-faults-host")
def write_faults_host():
    needs("numpy")
    with publisher("write", memory="host", width=640, height=360, pause_us=1000):
        process = subprocess.run(
            [sys.executable, "-c", HOST_WRITER],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=60,
            check=False,
        )
    output = process.stdout.decode(errors="replace")
    assert "refused:" in output and "written" not in output, output
    assert process.returncode == -11, f"status {process.returncode}: {output}"
    return {"status": process.returncode}


@case("private-copies")
def private_copies():
    """`clone` and `copy=True` give memory that may be written."""
    torch = support.Torch().torch
    with (
        publisher("copies", width=640, height=360, pause_us=1000),
        opened("copies", policy="lossless") as stream,
    ):
        frame = stream.next(20)
        value = expected_value(frame)
        copy = torch.from_dlpack(frame.plane(0), copy=True)
        assert copy.data_ptr() != frame.plane(0).__cuda_array_interface__["data"][0]
        del frame
        copy.add_(1)
        assert bool((copy == value + 1).all())
    return {}


# 6. Leaks.


@case("leaks", 300)
def leaks():
    driver = Driver()
    frames, warm_up = 100_000, 10_000
    with publisher("leaks", width=640, height=360), opened("leaks", policy="latest") as stream:
        for _ in range(warm_up):
            frame = stream.next(30)
            frame.plane(0).__dlpack__(stream=driver.stream.value, max_version=(1, 1))
            del frame
        before = figures(driver)
        begin = time.monotonic()
        for _ in range(frames):
            frame = stream.next(30)
            frame.plane(0).__dlpack__(stream=driver.stream.value, max_version=(1, 1))
            del frame
        seconds = time.monotonic() - begin
        after = figures(driver)
    grown = {name: after[name] - before[name] for name in before}
    assert grown["resident_kib"] < 8192, grown
    assert grown["descriptors"] <= 0, grown
    assert grown["gpu_free_kib"] > -65536, grown
    return {"frames": frames, "frames_per_s": round(frames / seconds), **grown}


@case("leaks-torch", 300)
def leaks_torch():
    torch = support.Torch().torch
    driver = Driver()
    with publisher("leaks", width=640, height=360), opened("leaks", policy="latest") as stream:

        def read(frames):
            total = torch.zeros((), dtype=torch.int64, device="cuda")
            for _ in range(frames):
                frame = stream.next(30)
                total += torch.from_dlpack(frame.plane(0))[0, 0]
                del frame
            torch.cuda.synchronize()

        read(5000)
        before = figures(driver)
        read(20_000)
        after = figures(driver)
    grown = {name: after[name] - before[name] for name in before}
    assert grown["resident_kib"] < 16384 and grown["descriptors"] <= 0 and grown["gpu_free_kib"] > -65536, (
        grown
    )
    return {"frames": 20_000, **grown}


# 7. Publishing.


def created(name, **options):
    import frameshare

    return frameshare.create(name, **{"format": "GRAY8", "width": 640, "height": 360, "device": 0, **options})


READER = """
import sys, frameshare
sys.path.insert(0, {here!r})
from support import Driver
driver = Driver()
with frameshare.open(sys.argv[1], policy="lossless", device=0, connection_timeout=30, reconnect=False) as stream:
    print("ready", flush=True)
    for frame in stream:
        data = driver.host(frame.plane(0))
        print(frame.sequence, " ".join(str(value) for value in sorted(set(data))), flush=True)
        del frame
"""


def read_back(name, publish):
    """Publish frames with a reader in another process, and return the values that it has found in each."""
    program = READER.format(here=support.HERE)
    with created(name) as exporter:
        process = subprocess.Popen([sys.executable, "-c", program, name], stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout.readline() == "ready\n", "the reader did not start"
            publish(exporter)
            exporter.end()
            exporter.drain(timeout=20)
            # Not `communicate`, which does not see what `readline` has buffered.
            output = process.stdout.read()
            process.wait(30)
        finally:
            process.kill()
    return [tuple(map(int, line.split()[1:])) for line in output.splitlines()]


@case("publish-torch")
def publish_torch():
    """A tensor may be changed right after its publication: the copy is on its stream."""
    torch = support.Torch().torch

    def publish(exporter):
        queue = torch.cuda.Stream()
        with torch.cuda.stream(queue):
            tensor = torch.zeros((360, 640), dtype=torch.uint8, device="cuda")
            for value in range(200):
                torch.cuda._sleep(100_000)
                tensor.fill_(value)
                exporter.publish(tensor)
                tensor.fill_(255)
        padded = torch.full((360, 700), 200, dtype=torch.uint8, device="cuda")[:, :640]
        exporter.publish(padded)

    found = read_back("pubtorch", publish)
    assert found == [(value,) for value in range(201)], found[:10]
    return {"frames": len(found)}


@case("publish-on-a-wrong-stream-is-caught")
def publish_on_a_wrong_stream_is_caught():
    """Negative control: the frame is ready behind a stream that does not write it."""
    torch = support.Torch().torch

    def publish(exporter):
        queue, other = torch.cuda.Stream(), torch.cuda.Stream()
        with torch.cuda.stream(queue):
            for value in range(50):
                with exporter.acquire(stream=other) as slot:
                    address = slot.plane(0).__cuda_array_interface__["data"][0]
                    torch.cuda._sleep(10_000_000)
                    torch.as_tensor(Raw(address, (360, 640)), device="cuda").fill_(value)

    found = read_back("pubwrong", publish)
    wrong = sum(values != (value,) for value, values in enumerate(found))
    assert wrong > 0, "a frame of another stream was right: the cases of publishing show nothing"
    return {"frames": len(found), "wrong": wrong}


@case("publish-in-place-torch")
def publish_in_place_torch():
    torch = support.Torch().torch

    def publish(exporter):
        queue = torch.cuda.Stream()
        with torch.cuda.stream(queue):
            for value in range(200):
                with exporter.acquire() as slot:
                    tensor = torch.from_dlpack(slot.plane(0))
                    torch.cuda._sleep(100_000)
                    tensor.fill_(value)
                    assert tensor.data_ptr() == slot.plane(0).__cuda_array_interface__["data"][0]
                    del tensor

    found = read_back("pubplace", publish)
    assert found == [(value,) for value in range(200)], found[:10]
    return {"frames": len(found)}


@case("publish-cupy")
def publish_cupy():
    cupy = support.Cupy().cupy

    def publish(exporter):
        with cupy.cuda.Stream(non_blocking=True):
            array = cupy.zeros((360, 640), dtype=cupy.uint8)
            for value in range(100):
                array.fill(value)
                exporter.publish(array)
                array.fill(255)
            for value in range(100, 200):
                with exporter.acquire() as slot:
                    cupy.from_dlpack(slot.plane(0)).fill(value)

    found = read_back("pubcupy", publish)
    assert found == [(value,) for value in range(200)], found[:10]
    return {"frames": len(found)}


@case("publish-jax")
def publish_jax():
    jax = support.Jax().jax

    def publish(exporter):
        for value in range(50):
            exporter.publish(jax.numpy.full((360, 640), value, dtype=jax.numpy.uint8))

    found = read_back("pubjax", publish)
    assert found == [(value,) for value in range(50)], found[:10]
    return {"frames": len(found)}


@case("publish-numba")
def publish_numba():
    import numpy

    cuda = support.Numba().cuda

    def publish(exporter):
        for value in range(50):
            array = cuda.to_device(numpy.full((360, 640), value, dtype=numpy.uint8))
            exporter.publish(array)
            array.copy_to_device(numpy.full((360, 640), 255, dtype=numpy.uint8))

    found = read_back("pubnumba", publish)
    assert found == [(value,) for value in range(50)], found[:10]
    return {"frames": len(found)}


@case("publish-driver")
def publish_driver():
    """The same by CUDA's driver alone: in place, and a copy by `__cuda_array_interface__`."""
    driver = Driver()
    pointer = driver.allocate(640 * 360)

    class Array:
        __cuda_array_interface__ = {
            "version": 3,
            "shape": (360, 640),
            "strides": None,
            "typestr": "|u1",
            "data": (pointer, False),
            "stream": driver.stream.value,
        }

    def publish(exporter):
        for value in range(50):
            driver.fill(pointer, value, 640 * 360)
            exporter.publish(Array())
            driver.fill(pointer, 255, 640 * 360)
        for value in range(50, 100):
            with exporter.acquire(stream=driver.stream.value) as slot:
                driver.fill(slot.plane(0).__cuda_array_interface__["data"][0], value, 640 * 360)
        for value in range(100, 110):
            # Streams that nothing names: the frame is ready behind the whole context.
            with exporter.acquire() as slot:
                driver.fill(slot.plane(0).__cuda_array_interface__["data"][0], value, 640 * 360)

    found = read_back("pubdriver", publish)
    assert found == [(value,) for value in range(110)], found[:10]
    return {"frames": len(found)}


@case("publish-driver-errors")
def publish_driver_errors():
    """Arrays that a stream on the GPU refuses, and the discarded slot of an exception."""
    driver = Driver()
    pointer = driver.allocate(640 * 360)

    class Array:
        def __init__(self, **fields):
            self.__cuda_array_interface__ = {
                "version": 3,
                "shape": (360, 640),
                "strides": None,
                "typestr": "|u1",
                "data": (pointer, False),
                **fields,
            }

    texts = {
        "are uint8 (360, 640)": (Array(typestr="<f4"), Array(shape=(36, 640)), [Array(), Array()]),
        "rows on a GPU in ascending order": (Array(strides=(0, 1)), Array(strides=(-640, 1))),
        "in host memory: frames of errors are on cuda:0": (bytearray(640 * 360),),
    }
    with created("errors") as exporter:
        for text, arrays in texts.items():
            for array in arrays:
                try:
                    exporter.publish(array)
                except ValueError as error:
                    assert text in str(error), error
                else:
                    raise AssertionError(f"an array was published, in place of an error: {text}")
        try:
            with exporter.acquire(stream=driver.stream.value) as slot:
                driver.fill(slot.plane(0).__cuda_array_interface__["data"][0], 9, 640 * 360)
                raise KeyError
        except KeyError:
            pass
        assert slot.sequence is None
        assert exporter.publish(Array()) == 1
    for options in ({"memory": "host"}, {"device": 99}, {"device": "GPU-none"}):
        try:
            created("errors", **options)
        except Exception as error:
            texts[str(error)] = ()
        else:
            raise AssertionError(f"{options} were accepted")
    return {"texts": list(texts)[3:]}


@case("publish-errors")
def publish_errors():
    torch = support.Torch().torch
    texts = []
    with created("errors", format="RGB") as exporter:
        good = torch.zeros((360, 640, 3), dtype=torch.uint8, device="cuda")
        exporter.publish(good)
        for bad in (good.float(), good.permute(2, 0, 1), good.cpu(), good[:100], good[:, ::2], good[::2]):
            try:
                exporter.publish(bad)
            except (ValueError, TypeError) as error:
                texts.append(str(error))
            else:
                raise AssertionError(f"{tuple(bad.shape)} {bad.dtype} was published")
    assert all("640x360" in text or "cuda:0" in text for text in texts), texts
    return {"texts": texts}


# 8. Streams of DLPack.


@case("dlpack-streams")
def dlpack_streams():
    torch = support.Torch().torch
    own = torch.cuda.Stream().cuda_stream
    with (
        publisher("streams", width=640, height=360, pause_us=1000),
        opened("streams", policy="lossless") as stream,
    ):
        for number in (None, 1, 2, own, -1):
            frame = stream.next(20)
            frame.plane(0).__dlpack__(stream=number, max_version=(1, 1))
            del frame
        frame = stream.next(20)
        try:
            frame.plane(0).__dlpack__(stream=0)
        except ValueError:
            pass
        else:
            raise AssertionError("stream 0 was accepted")
        tensor = torch.from_dlpack(frame.plane(0))
        try:
            frame.release()
        except BufferError as error:
            text = str(error)
        else:
            raise AssertionError("a frame with a live tensor was released")
        value = expected_value(frame)
        del frame
        # The tensor keeps the lease: the exporter does not write the slot.
        for _ in range(100):
            stream.next(20)
        assert bool((tensor == value).all()), "a tensor's frame was overwritten"
    return {"text": text}


@case("downloads")
def downloads():
    """Frames on the GPU are read on the host with device="cpu"."""
    import numpy

    with (
        publisher("host", width=640, height=360, pause_us=1000),
        opened("host", device="cpu", policy="lossless") as stream,
    ):
        for _ in range(100):
            frame = stream.next(20)
            assert frame.device == "cpu"
            assert (numpy.asarray(frame.plane(0)) == expected_value(frame)).all()
            del frame
    return {"frames": 100}


@case("sums-of-a-downloaded-clip", 120)
def sums_of_a_downloaded_clip():
    """The decoder's frames in host memory, through NumPy."""
    import numpy

    class Host:
        of = staticmethod(numpy.asarray)
        bytes = staticmethod(lambda array: numpy.ascontiguousarray(array).tobytes())

    wanted = sums_of("hd.h264")
    path, exporter = decoded("hd.h264", f"python-{os.getpid()}.sock")
    with exporter, opened(path, policy="lossless", reconnect=False, device="cpu") as stream:
        found = []
        for frame in stream:
            found.append(sum_of(Host, frame))
            del frame
    assert found == wanted, f"{len(found)} frames of {len(wanted)}"
    return {"frames": len(found)}
