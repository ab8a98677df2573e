# SPDX-License-Identifier: MIT OR Apache-2.0
"""Interpreter of the calls of one process, over the Python package: see mod.rs, which has the same rules."""

import ctypes
import os
import signal
import sys
import threading
import time
import traceback

import frameshare

WIDTH, SMALLEST = 4096, 4
WAIT = 0.3
PER_THREAD = 2
# Errors of streams that are full.
BUSY = ("refused by the exporter", "readers have no room", "slots are in use")
failed = threading.Event()
driver = ctypes.CDLL("libcuda.so.1")
void, number64, size = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t


def report(what):
    failed.set()
    print("REPORT", what, file=sys.stderr, flush=True)


def call(name, *arguments):
    """Call the driver with its own context current, and in the mode that leaves captures of others intact."""
    code = getattr(driver, name)(*arguments)
    if code:
        report(f"{name} returned {code}")
    return code == 0


def push(context):
    mode = ctypes.c_int(2)
    driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    driver.cuCtxSetCurrent(context)


def byte_of(content):
    return 1 + content % 229


def fill(stream, start, length, byte):
    push(stream.context)
    half = length // 2
    for start, length in ((start, half), (start + half, length - half)):
        call("cuMemsetD8Async", number64(start), ctypes.c_uint8(byte), size(length), stream.handle)
    push(primary)


class Queue:
    """A stream. Its owner destroys it, when no frame or slot has it any more."""

    def __init__(self, kind):
        self.kind, self.context, self.handle, self.capture = kind, primary, void(), None
        if kind == "perthread":
            self.handle = void(PER_THREAD)
        elif kind != "legacy":
            self.context = other if kind == "other" else primary
            push(self.context)
            call("cuStreamCreate", ctypes.byref(self.handle), 0 if kind == "blocking" else 1)
            push(primary)

    def __cuda_stream__(self):
        return (0, self.number())

    def number(self):
        """The number by which array libraries name it."""
        return self.handle.value or 1

    def __del__(self):
        if self.kind not in ("legacy", "perthread") and self.handle.value:
            push(primary)
            call("cuStreamDestroy_v2", self.handle)


class Event:
    def __init__(self, stream):
        self.handle = void()
        push(stream.context)
        call("cuEventCreate", ctypes.byref(self.handle), 2)
        call("cuEventRecord", self.handle, stream.handle)
        push(primary)

    def wait_on(self, stream):
        call("cuStreamWaitEvent", stream.handle, self.handle, 0)

    def is_done(self):
        code = driver.cuEventQuery(self.handle)
        if code not in (0, 600):
            report(f"cuEventQuery returned {code}")
        return code != 600


class Tensor(ctypes.Structure):
    _fields_ = [("data", void), ("device", ctypes.c_int32 * 2), ("rest", ctypes.c_uint64 * 4)]


class Versioned(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32 * 2), ("context", void), ("deleter", void), ("flags", number64), ("tensor", Tensor)]


def pointer_of(capsule):
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = void, [ctypes.py_object, ctypes.c_char_p]
    return Versioned.from_address(get(capsule, b"dltensor_versioned")).tensor.data


class Array:
    """An array of a library that frees it as early as real ones do: see arrays.rs."""

    def __init__(self, library, stream, length, content, cache, own):
        # JAX computes on a stream of its own.
        stream = own if library == "jax" else stream
        self.library, self.stream, self.cache, self.own = library, stream, cache, own
        self.length, self.start = length, None
        for index, (start, room, queue) in enumerate(cache):
            if library == "torch" and room == length and queue is stream:
                self.start = cache.pop(index)[0]
                break
        if self.start is None:
            start = number64()
            call("cuMemAlloc_v2", ctypes.byref(start), size(length))
            self.start = start.value
        fill(stream, self.start, length, byte_of(content))

    @property
    def __cuda_array_interface__(self):
        shape = (self.length // WIDTH, WIDTH)
        return {"shape": shape, "typestr": "|u1", "data": (self.start, False), "version": 3, "stream": self.stream.number()}

    def __del__(self):
        push(primary)
        if self.library == "numba":
            call("cuMemFree_v2", number64(self.start))
            return
        if self.library == "jax":
            fill(self.own, self.start, self.length, 0xEE)
        self.cache.append((self.start, self.length, self.stream))


class Held:
    def __init__(self, frame, is_mortal):
        self.frame, self.is_mortal, self.arrays = frame, is_mortal, []


class Thread:
    def __init__(self, calls):
        self.calls = calls
        self.streams, self.slots, self.frames, self.readers, self.reads = {}, {}, {}, {}, []
        self.cache, self.own = [], None

    def run(self):
        try:
            push(primary)
            for line in self.calls:
                self.line = line
                name, *words = line.split()
                # The package does not have all calls of the engine.
                if call := getattr(self, "call_" + name.replace("-", "_"), None):
                    call(*words)
            for stream in self.streams.values():
                self.end_capture(stream)
            self.slots.clear()
            self.verify()
            self.frames.clear()
            for stream in self.readers.values():
                stream[0].close()
        except Exception:
            report(f"{self.line}: {traceback.format_exc()}")

    def attempt(self, function, *expected):
        """Return the result of a call, or nothing after an error that it may end with."""
        try:
            return function()
        except expected:
            return None
        except Exception as error:
            if not any(text in str(error) for text in BUSY) and not (has_captures and "captur" in str(error)):
                report(f"{self.line}: {type(error).__name__}: {error}")
            return None

    def stream(self, name):
        stream = self.streams.get(name)
        return stream if stream and not stream.capture else None

    def any_stream(self, name):
        stream = self.streams.get(name)
        return stream if stream and stream.kind != "perthread" else None

    def call_stream(self, name, kind):
        if not (name in self.streams and self.streams[name].capture):
            self.streams.pop(name, None)
            self.streams[name] = Queue(kind)

    def call_destroy(self, name):
        if self.stream(name):
            del self.streams[name]

    def call_sync(self, name):
        if stream := self.stream(name):
            call("cuStreamSynchronize", stream.handle)

    def call_pause(self, us):
        time.sleep(int(us) / 1e6)

    def call_die(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def call_capture(self, name, mode):
        stream = self.streams.get(name)
        if stream and not stream.capture and (stream.kind == "nonblocking" or stream.kind == "blocking" and not uses_legacy):
            announced = frameshare.announce_capture()
            announced.__enter__()
            if call("cuStreamBeginCapture_v2", stream.handle, ["global", "thread-local", "relaxed"].index(mode)):
                stream.capture = announced
            else:
                announced.__exit__(None, None, None)

    def call_end_capture(self, name):
        if name in self.streams:
            self.end_capture(self.streams[name])

    def end_capture(self, stream):
        if stream.capture:
            graph = void()
            if call("cuStreamEndCapture", stream.handle, ctypes.byref(graph)):
                call("cuGraphDestroy", graph)
            stream.capture.__exit__(None, None, None)
            stream.capture = None

    # Calls of an exporter.

    def acquire(self):
        busy = (frameshare.TimeoutError, frameshare.ClosedError)
        return self.attempt(lambda: exporter.acquire(timeout=WAIT), *busy)

    def call_acquire(self, name):
        if exporter and name not in self.slots and (slot := self.acquire()):
            self.slots[name] = [slot, None, None]

    def call_write(self, name, stream):
        slot, stream = self.slots.get(name), self.stream(stream)
        if slot and stream and slot[1] in (None, stream):
            content = next_content()
            plane = slot[0].plane(0)
            if content % 4 == 0 and stream.context is primary:
                start = plane.__cuda_array_interface__["data"][0]
            else:
                slot[0].used_on(stream)
                start = pointer_of(plane.__dlpack__(stream=stream.number(), max_version=(1, 1)))
            fill(stream, start, plane.stride * plane.height, byte_of(content))
            slot[0].pts, slot[1], slot[2] = content, stream, content

    def call_publish(self, name, how):
        slot = self.slots.get(name)
        if exporter and slot and slot[1]:
            del self.slots[name]
            self.attempt(lambda: slot[0].publish(timeout=WAIT), frameshare.TimeoutError, frameshare.ClosedError)

    def call_discard(self, name):
        if slot := self.slots.pop(name, None):
            slot[0].discard()

    call_fail = call_discard

    def call_drop(self, name):
        self.slots.pop(name, None)
        self.frames.pop(name, None)

    def call_array(self, library, stream):
        if exporter and (stream := self.stream(stream)) and stream.context is primary and stream.kind != "perthread":
            self.own = self.own or Queue("nonblocking")
            content = next_content()
            array = Array(library, stream, WIDTH * SMALLEST, content, self.cache, self.own)
            self.attempt(
                lambda: exporter.publish(array, pts=content, timeout=WAIT), frameshare.TimeoutError, frameshare.ClosedError
            )

    def call_await(self, count):
        until = time.monotonic() + 0.2
        while exporter and not exporter.closed and time.monotonic() < until:
            readers = self.attempt(lambda: exporter.readers, frameshare.ClosedError)
            if readers is None or readers >= int(count):
                break
            time.sleep(0.001)

    def call_drain(self):
        if exporter:
            self.attempt(lambda: exporter.drain(WAIT), frameshare.TimeoutError, frameshare.ClosedError)

    def call_end(self):
        if exporter:
            self.attempt(exporter.end, frameshare.ClosedError)

    def call_close(self):
        if exporter:
            exporter.close()

    # Calls of a reader.

    def call_open(self, name, process, policy, held, place):
        self.call_leave(name)
        options = {"device": "cpu"} if place == "host" else {"device": 0}
        path = os.path.join(folder, f"{process}.sock")

        def opened():
            return frameshare.open(
                path, policy=policy, max_held=int(held), reconnect=False, connection_timeout=WAIT, **options
            )

        if stream := self.attempt(opened, frameshare.NotFoundError):
            is_complete = policy == "lossless" and complete.get(int(process), False)
            self.readers[name] = stream, is_complete, mortal[int(process)]

    def call_leave(self, name):
        if reader := self.readers.pop(name, None):
            reader[0].close()

    def call_take(self, name, reader):
        if reader not in self.readers:
            return
        stream, is_complete, is_mortal = self.readers[reader]
        try:
            frame = stream.next(0.03)
        except (frameshare.TimeoutError, frameshare.HeldError):
            return
        except frameshare.Error as error:
            del self.readers[reader]
            is_lost = "lost" in str(error) and not is_mortal
            # Two readers of a process cannot both have memory of these kinds.
            is_shared = "already imported in this process" in str(error)
            if is_lost or not (isinstance(error, frameshare.ClosedError) or is_shared):
                report(f"{self.line}: {type(error).__name__}: {error}")
            return
        if frame is not None:
            if is_complete and frame.lost_before:
                report(f"{self.line}: a lossless reader lost {frame.lost_before} frames")
            self.frames[name] = Held(frame, is_mortal)

    def read(self, held, stream, start):
        frame = held.frame
        what = f"read of frame {frame.sequence} with content {frame.pts}"
        length = frame.plane(0).stride * frame.height
        # A dead exporter may leave frames unwritten, and Python has no call that tells.
        if held.is_mortal:
            return
        host = void()
        push(stream.context)
        call("cuMemHostAlloc", ctypes.byref(host), size(length), 1)
        call("cuMemcpyDtoHAsync_v2", host, number64(start), size(length), stream.handle)
        self.reads.append((what, Event(stream), host, length, byte_of(frame.pts)))
        push(primary)

    def check_host(self, held):
        if not held.is_mortal:
            check(bytes(memoryview(held.frame.plane(0))), byte_of(held.frame.pts), f"host read of frame {held.frame.sequence}")

    def call_read(self, name, stream):
        held, stream = self.frames.get(name), self.any_stream(stream)
        if held and stream:
            if held.frame.device == "cpu":
                return self.check_host(held)
            # The object keeps the stream, whose number alone does not.
            held.frame.used_on(stream)
            plane = held.frame.plane(0)
            capsule = self.attempt(lambda: plane.__dlpack__(stream=stream.number(), max_version=(1, 1)))
            if capsule is not None and not stream.capture:
                self.read(held, stream, pointer_of(capsule))
                held.arrays.append(capsule)

    def call_plain(self, name, stream):
        held, stream = self.frames.get(name), self.stream(stream)
        if held and stream and stream.context is primary and stream.kind != "perthread":
            if held.frame.device == "cpu":
                return self.check_host(held)
            found = self.attempt(lambda: held.frame.plane(0).__cuda_array_interface__)
            if found is None:
                return
            if found.get("stream"):
                queue = void(0 if found["stream"] == 1 else found["stream"])
                event = void()
                call("cuEventCreate", ctypes.byref(event), 2)
                call("cuEventRecord", event, queue)
                call("cuStreamWaitEvent", stream.handle, event, 0)
            self.read(held, stream, found["data"][0])

    def call_used(self, name, stream):
        held, stream = self.frames.get(name), self.any_stream(stream)
        if held and stream:
            self.attempt(lambda: held.frame.used_on(stream))

    def call_done(self, name, stream):
        held, stream = self.frames.get(name), self.any_stream(stream)
        if held and stream:
            self.attempt(lambda: held.frame.done_on(stream))

    def call_release(self, name, stream):
        if held := self.frames.pop(name, None):
            held.arrays.clear()
            held.frame.release()

    def call_clone(self, name):
        if held := self.frames.get(name):
            if clone := self.attempt(held.frame.clone):
                self.frames[name] = Held(clone, held.is_mortal)

    def call_hand(self, name):
        if held := self.frames.pop(name, None):
            handed.append(held)

    def call_fetch(self, name):
        if name not in self.frames and handed:
            try:
                self.frames[name] = handed.pop()
            except IndexError:
                pass

    def verify(self):
        until = time.monotonic() + 5
        for what, event, host, length, byte in self.reads:
            while not event.is_done():
                if time.monotonic() > until:
                    return report(f"{what} does not end")
                time.sleep(0.0002)
            check(ctypes.string_at(host, length), byte, what)


def check(found, byte, what):
    if wrong := len(found) - found.count(byte):
        report(f"{what}: {wrong} of {len(found)} bytes are wrong, such as {set(found)} instead of {byte:#04x}")


contents, contents_lock, handed = [0], threading.Lock(), []


def next_content():
    with contents_lock:
        contents[0] += 1
        return contents[0]


def parse(file, index):
    """Return the options of the stream, the calls of each thread, and which processes die and lose no frames."""
    options, threads, dies, complete, process = None, [], {}, {}, -1
    with open(file) as lines:
        for line in map(str.strip, lines):
            if line.startswith("process "):
                process += 1
                dies[process] = False
            elif line == "die":
                dies[process] = True
            elif line.startswith("export "):
                # Other kinds of memory are imported once in a process; frames of a failed import are lost.
                complete[process] = "memory=auto" in line
            if process != index or not line or line.startswith("process "):
                continue
            if line.startswith("export "):
                options = dict(option.split("=") for option in line.split()[1:])
            elif line == "thread":
                threads.append([])
            else:
                threads[-1].append(line)
    return options, threads, dies, complete


def meet(what):
    print(what, flush=True)
    if not sys.stdin.readline():
        sys.exit(2)


file, index, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
options, threads, mortal, complete = parse(file, index)
has_captures = any(line.startswith("capture ") for calls in threads for line in calls)
uses_legacy = any(line.endswith(" legacy") for calls in threads for line in calls)
primary, other, exporter = void(), void(), None
call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(primary), 0)
call("cuCtxCreate_v2", ctypes.byref(other), 0, 0)
push(primary)
if options:
    memory = options.get("memory", "auto")
    exporter = frameshare.create(
        os.path.join(folder, f"{index}.sock"),
        format="GRAY8",
        width=WIDTH,
        height=SMALLEST,
        device=0,
        memory=None if memory == "auto" else memory,
        max_slots=int(options.get("slots", 16)),
        slow_readers=options.get("slow", "wait"),
        reader_timeout=0.2,
        history=int(options.get("history", 0)),
    )
meet("ready")
running = [threading.Thread(target=Thread(calls).run) for calls in threads]
for thread in running:
    thread.start()
for thread in running:
    thread.join()
handed.clear()
meet("done")
if exporter:
    exporter.close()
sys.exit(failed.is_set())
