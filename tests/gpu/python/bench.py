#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""The suite `python-bench` of tests/gpu/run: cost of a frame that several Python processes read on one GPU.

    bench.py [--readers 1,4,8] [--rounds 3] [--frames 300] [--transports NAME,...] [--no-clips] [--wait spin|sleep]
    bench.py --host ...

1920x1080 NV12 frames lie on the GPU in one process; N others run one kernel of PyTorch that reads each one, and wait
for it: as PyTorch does by default, spinning, which counts as CPU time (`--wait spin`), or asleep (`--wait sleep`).

    frameshare       slots in `vmm` memory, read by DLPack; one copy on the GPU into the slot
    torch            torch.multiprocessing: CUDA tensors through queues; one copy on the GPU into a tensor that stays
    shared-memory    multiprocessing.shared_memory: a copy to the host, and one back to the GPU in each reader; both
                     sides have registered the memory with CUDA, so that the GPU copies it itself
    cuda-core        IPC buffers of cuda.core, if it is installed; one copy on the GPU into the buffer

All but frameshare have 8 slots that are written in turn, a message of `multiprocessing.Pipe` or a queue for each frame
and reader, and one back, without which a slot is not written again. Their producer waits for its copy before it sends
the message; frameshare's does not, the reader's GPU does.

With --host the frames are 320x240 in host memory, and N processes read one row of each with NumPy: what is measured is
the transport. `frameshare` and `shared-memory` both get one copy into a slot, and lose none.

The rounds of all transports alternate, in processes that stay. `fps` is without a pace, all frames read by all
readers; `latency_us` is at 60 frames a second, from before the copy into the slot until the reader's kernel has ended;
`cpu_us` is the time of all processes divided by frames and readers, without a pace, and `cpu_paced_us` at 60 frames a
second. Ratios are those to frameshare in the same round, with their smallest and largest.

Then the CPU time of a clip's frames: decoded once and read by all (frameshare), or decoded in every process (NVIDIA's
decoder by GStreamer without any reader, and OpenCV with a copy to the GPU).
"""

import argparse
import contextlib
import importlib
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
import traceback

WIDTH, HEIGHT = 1920, 1080
SIZE = WIDTH * HEIGHT * 3 // 2
#: Slots of the transports that have no flow control of their own.
RING = 8
PACE = 60


class Missing(Exception):
    """The transport is not installed."""


def torch():
    import torch

    torch.cuda.init()
    return torch


def sources():
    """Return frames on the GPU, to be published."""
    return [torch().full((SIZE,), value, dtype=torch().uint8, device="cuda") for value in range(4)]


#: The wait for the GPU: see --wait.
WAIT = "spin"


def wait_for_gpu():
    if WAIT == "spin":
        torch().cuda.current_stream().synchronize()
    else:
        done = torch().cuda.Event(blocking=True)
        done.record()
        done.synchronize()


def read(tensor):
    """Read all of a frame by a kernel, and wait for it."""
    value = tensor.sum(dtype=torch().int64)
    wait_for_gpu()
    return value


# Transports. A producer has put(number, source, stamp), a reader get() -> stamp.


class FrameshareProducer:
    def __init__(self, links, shared):
        import frameshare

        self.exporter = frameshare.create(
            shared["name"], format="NV12", width=WIDTH, height=HEIGHT, device=0, memory="vmm"
        )
        self.readers = len(links)

    def put(self, number, source, stamp):
        self.exporter.publish(source, stamp)

    def finish(self):
        self.exporter.drain(timeout=20)


class FrameshareReader:
    def __init__(self, link, shared):
        import frameshare

        self.stream = frameshare.open(shared["name"], policy="lossless", device=0, connection_timeout=60, max_held=4)

    def get(self):
        frame = self.stream.next(30)
        # Both planes as one array, for one kernel.
        read(torch().from_dlpack(frame))
        return frame.pts


class Ring:
    """A producer that has slots, and waits for the acknowledgement of each reader before it writes one again."""

    def __init__(self, links, shared):
        self.links, self.acknowledged = links, [0] * len(links)
        self.slots = self.open(shared)

    def put(self, number, source, stamp):
        self.wait(number - RING)
        self.fill(self.slots[number % RING], source)
        for link in self.links:
            self.send(link, number, stamp)

    def wait(self, until):
        for index, link in enumerate(self.links):
            while self.acknowledged[index] < until:
                link.recv_bytes()
                self.acknowledged[index] += 1

    def send(self, link, number, stamp):
        link.send((number, stamp))

    def finish(self):
        # A run's numbers begin anew.
        self.wait(self.count)
        self.acknowledged = [0] * len(self.links)


def shared_memories(shared, create):
    """Return the slots as pinned tensors on the host."""
    from multiprocessing import shared_memory

    # All of them first: memory that is registered must not be unmapped by a retry.
    names = [f"{shared['name']}-{index}" for index in range(RING)]
    memories = [shared_memory.SharedMemory(name, create=create, size=SIZE) for name in names]
    slots = []
    for memory in memories:
        tensor = torch().frombuffer(memory.buf, dtype=torch().uint8, count=SIZE)
        torch().cuda.cudart().cudaHostRegister(tensor.data_ptr(), SIZE, 0)
        tensor.memory = memory
        slots.append(tensor)
    return slots


class SharedMemoryProducer(Ring):
    def open(self, shared):
        return shared_memories(shared, True)

    def fill(self, slot, source):
        slot.copy_(source, non_blocking=True)
        wait_for_gpu()

    def close(self):
        for slot in self.slots:
            with contextlib.suppress(OSError):
                slot.memory.unlink()


class RingReader:
    def __init__(self, link, shared):
        self.link = link
        self.slots = self.open(shared)

    def get(self):
        number, stamp = self.link.recv()
        self.read(number)
        self.link.send_bytes(b"k")
        return stamp

    def read(self, number):
        read(self.tensor(number))


class SharedMemoryReader(RingReader):
    def open(self, shared):
        deadline = time.monotonic() + 60
        while True:
            try:
                slots = shared_memories(shared, False)
            except FileNotFoundError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                self.target = torch().empty(SIZE, dtype=torch().uint8, device="cuda")
                return slots

    def tensor(self, number):
        return self.target.copy_(self.slots[number % RING], non_blocking=True)


class TorchProducer(Ring):
    def open(self, shared):
        self.queues = shared["queues"]
        return [torch().empty(SIZE, dtype=torch().uint8, device="cuda") for _ in range(RING)]

    def fill(self, slot, source):
        slot.copy_(source)
        # The readers' streams know nothing of this one.
        wait_for_gpu()

    def put(self, number, source, stamp):
        self.wait(number - RING)
        slot = self.slots[number % RING]
        self.fill(slot, source)
        for queue in self.queues:
            queue.put((slot, stamp))


class TorchReader:
    def __init__(self, link, shared):
        self.link, self.queue = link, shared["queues"][shared["index"]]

    def get(self):
        tensor, stamp = self.queue.get()
        read(tensor)
        del tensor
        self.link.send_bytes(b"k")
        return stamp


def cuda_core():
    """Return the module: `cuda.core` since 0.5, `cuda.core.experimental` before."""
    for name in ("cuda.core", "cuda.core.experimental"):
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            missing = error
            continue
        if hasattr(module, "DeviceMemoryResourceOptions"):
            return module
        missing = f"{name} has no IPC buffers: cuda.core 0.4 or newer has"
    raise Missing(str(missing))


def cuda_core_buffers():
    core = cuda_core()
    device = core.Device(0)
    device.set_current()
    options = core.DeviceMemoryResourceOptions(max_size=RING * SIZE * 2, ipc_enabled=True)
    resource = core.DeviceMemoryResource(device, options)
    buffers = [resource.allocate(SIZE, stream=device.default_stream) for _ in range(RING)]
    device.default_stream.sync()
    return resource, buffers


class CudaCoreProducer(Ring):
    def open(self, shared):
        self.resource, buffers = cuda_core_buffers()
        for link in self.links:
            link.send(buffers)
        return [torch().from_dlpack(buffer).view(torch().uint8) for buffer in buffers]

    def fill(self, slot, source):
        slot.copy_(source)
        wait_for_gpu()


class CudaCoreReader(RingReader):
    def open(self, shared):
        cuda_core().Device(0).set_current()
        self.buffers = self.link.recv()
        return [torch().from_dlpack(buffer).view(torch().uint8) for buffer in self.buffers]

    def tensor(self, number):
        return self.slots[number % RING]


TRANSPORTS = {
    "frameshare": (FrameshareProducer, FrameshareReader),
    "torch": (TorchProducer, TorchReader),
    "shared-memory": (SharedMemoryProducer, SharedMemoryReader),
    "cuda-core": (CudaCoreProducer, CudaCoreReader),
}


def ends(transport, shared):
    """Return the classes of a transport, and the functions that make frames and read them once."""
    if shared["host"]:
        import bench_host

        return *bench_host.TRANSPORTS[transport], bench_host.sources, bench_host.read
    global WAIT
    WAIT = shared["wait"]
    return *TRANSPORTS[transport], sources, read


def producing(control, transport, links, shared):
    """The process that has the frames."""
    make, _, sources, read = ends(transport, shared)
    producer = make(links, shared)
    frames = sources()
    for source in frames:
        read(source)
    control.send("ready")
    try:
        while (run := control.recv()) is not None:
            count, pace = run
            producer.count = count
            cpu, begin = time.process_time(), time.monotonic()
            for number in range(count):
                if pace:
                    time.sleep(max(0, begin + number / pace - time.monotonic()))
                producer.put(number, frames[number % len(frames)], time.monotonic_ns())
            producer.finish()
            control.send({"cpu": time.process_time() - cpu, "seconds": time.monotonic() - begin})
    finally:
        if hasattr(producer, "close"):
            producer.close()


def consuming(control, transport, link, shared):
    """A reader."""
    _, make, sources, read = ends(transport, shared)
    reader = make(link, shared)
    for source in sources()[:1]:
        read(source)
    control.send("ready")
    while (run := control.recv()) is not None:
        count, _pace = run
        control.send("ready")
        cpu, waits = time.process_time(), []
        for _ in range(count):
            stamp = reader.get()
            waits.append(time.monotonic_ns() - stamp)
        control.send({"cpu": time.process_time() - cpu, "waits": waits})


def guarded(role, control, *arguments):
    try:
        role(control, *arguments)
    except BaseException as error:
        control.send(
            Missing(str(error)) if isinstance(error, Missing) else RuntimeError(traceback.format_exc())
        )


def answer(control, limit=90):
    """Return what a process sends, or raise what it raised."""
    if not control.poll(limit):
        raise RuntimeError(f"a process has not answered for {limit} s")
    try:
        message = control.recv()
    except EOFError:
        raise RuntimeError("a process has died") from None
    if isinstance(message, Exception):
        raise message
    return message


class Team:
    """The processes of a transport."""

    def __init__(self, transport, readers, options):
        context = multiprocessing.get_context("spawn")
        self.transport, self.processes, self.controls = transport, [], []
        shared = {"name": f"bench-{os.getpid()}-{transport}-{readers}"}
        shared.update(host=options.host, wait=options.wait)
        if transport == "torch":
            import torch.multiprocessing

            context = torch.multiprocessing.get_context("spawn")
            shared["queues"] = [context.Queue() for _ in range(readers)]
        pairs = [context.Pipe() for _ in range(readers)]
        # Names of the queues' semaphores have to last until all processes have opened them.
        self.kept = (shared, pairs)
        roles = [(producing, [pair[0] for pair in pairs], shared)]
        roles += [(consuming, pair[1], {**shared, "index": index}) for index, pair in enumerate(pairs)]
        for role, link, known in roles:
            own, other = context.Pipe()
            process = context.Process(target=guarded, args=(role, other, transport, link, known), daemon=True)
            process.start()
            self.processes.append(process)
            self.controls.append(own)

    def wait(self):
        """Wait until all processes are ready."""
        for control in self.controls:
            answer(control)

    def run(self, count, pace):
        producer, readers = self.controls[0], self.controls[1:]
        for control in readers:
            control.send((count, pace))
        for control in readers:
            answer(control)
        producer.send((count, pace))
        made = answer(producer, 120)
        got = [answer(control, 120) for control in readers]
        cpu = made["cpu"] + sum(one["cpu"] for one in got)
        waits = sorted(wait for one in got for wait in one["waits"])
        return {
            "fps": count / made["seconds"],
            "cpu_us": 1e6 * cpu / count / len(readers),
            "latency_us": statistics.median(waits) / 1e3,
            "latency_p99_us": waits[int(0.99 * len(waits))] / 1e3,
        }

    def kill(self):
        for process in self.processes:
            process.kill()

    def stop(self):
        for control in self.controls:
            with contextlib.suppress(OSError):
                control.send(None)
        for process in self.processes:
            process.join(5)
            if process.is_alive():
                process.kill()


def spread(values):
    middle, low, high = (f"{value:.3g}" for value in (statistics.median(values), min(values), max(values)))
    return f"{middle} ({low} to {high})"


def emit(case, **figures):
    print(json.dumps({"suite": "python-bench", "case": case, **figures}), flush=True)


def last_line(error):
    return (str(error).strip() or repr(error)).splitlines()[-1][:200]


def compare(readers, options):
    """Measure all transports with this number of readers."""
    teams = {}
    try:
        # All processes start at once.
        starting = {transport: Team(transport, readers, options) for transport in options.transports}
        for transport, team in starting.items():
            teams[transport] = team
            try:
                team.wait()
            except Missing as error:
                teams.pop(transport).kill()
                emit(f"{transport}-{readers}", result="skip", reason=str(error))
            except Exception as error:
                print(error, flush=True)
                emit(f"{transport}-{readers}", result="fail", reason=last_line(error))
        rounds = {transport: [] for transport in teams}
        for turn in range(options.rounds + 1):
            for transport, team in list(teams.items()):
                try:
                    free = team.run(options.frames, 0)
                    paced = team.run(options.paced_frames, PACE)
                except Exception as error:
                    traceback.print_exc()
                    emit(f"{transport}-{readers}", result="fail", reason=last_line(error))
                    teams.pop(transport).kill()
                    rounds.pop(transport)
                    continue
                # The first round warms up.
                if turn:
                    rounds[transport].append(
                        {
                            "fps": free["fps"],
                            "cpu_us": free["cpu_us"],
                            "cpu_paced_us": paced["cpu_us"],
                            "latency_us": paced["latency_us"],
                            "latency_p99_us": paced["latency_p99_us"],
                        }
                    )
        own = rounds.get("frameshare")
        for transport, found in rounds.items():
            line = {name: spread([one[name] for one in found]) for name in found[0]}
            if own and transport != "frameshare":
                for name in ("fps", "cpu_us", "cpu_paced_us", "latency_us"):
                    ratios = [one[name] / base[name] for one, base in zip(found, own, strict=True)]
                    line[f"{name}_to_frameshare"] = spread(ratios)
            emit(f"{transport}-{readers}", result="pass", rounds=len(found), **line)
    finally:
        for team in teams.values():
            team.stop()


# Frames of a clip.

CLIP, CLIP_FRAMES = "hd.h264", 300
#: Number of times that a pipeline decodes it.
LOOPS = 3

CLIP_READER = """
import sys, time, torch, frameshare
torch.cuda.init()
torch.ones(1, device="cuda").sum().item()
with frameshare.open(sys.argv[1], policy="lossless", device=0, connection_timeout=60, reconnect=False) as stream:
    print("ready", flush=True)
    before, count = time.process_time(), 0
    for frame in stream:
        for plane in frame.planes:
            value = torch.from_dlpack(plane).sum(dtype=torch.int64)
        torch.cuda.current_stream().synchronize()
        del frame, plane
        count += 1
print(count, time.process_time() - before)
"""

CV_READER = """
import sys, time, torch, cv2
torch.cuda.init()
torch.ones(1, device="cuda").sum().item()
capture = cv2.VideoCapture(sys.argv[1])
print("ready", flush=True)
before, count = time.process_time(), 0
while True:
    found, frame = capture.read()
    if not found:
        break
    value = torch.from_numpy(frame).cuda().sum(dtype=torch.int64)
    torch.cuda.current_stream().synchronize()
    count += 1
print(count, time.process_time() - before)
"""


def started(program, argument, readers):
    command = [sys.executable, "-c", program, argument]
    return [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(readers)]


def reports(processes, go):
    """Let processes begin, and return the sums of the frames and of the CPU times that they print, and the seconds."""
    for process in processes:
        if process.stdout.readline() != "ready\n":
            raise RuntimeError("a reader did not start")
    begin = time.monotonic()
    go()
    rows = [process.stdout.read().split() for process in processes]
    seconds = time.monotonic() - begin
    return sum(int(count) for count, _ in rows), sum(float(cpu) for _, cpu in rows), seconds


def cpu_of(process):
    """Return the CPU time of a running process in seconds."""
    with open(f"/proc/{process.pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def settled(processes):
    """Wait until pipelines that wait for their input have started, and return the CPU time that this took."""
    before, deadline = -1.0, time.monotonic() + 20
    while (now := sum(map(cpu_of, processes))) != before:
        if time.monotonic() > deadline:
            raise RuntimeError("a pipeline has not settled for 20 s")
        before = now
        time.sleep(0.3)
    return now


def feed(processes, clip):
    """Write a clip into pipelines, and return their CPU time when they have ended."""
    for _ in range(LOOPS):
        for process in processes:
            process.stdin.write(clip)
    for process in processes:
        process.stdin.close()
    total = 0.0
    for process in processes:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"a pipeline has failed: status {process.returncode}")
        total += usage.ru_utime + usage.ru_stime
    return total


def clip_of():
    from support import RUNTIME

    with open(os.path.join(RUNTIME, "work", CLIP), "rb") as file:
        return file.read()


def pipeline(text):
    from support import in_gst

    return subprocess.Popen(
        in_gst("gst-launch-1.0", "-q", "--no-fault", *text.split()), stdin=subprocess.PIPE
    )


def clip_by_frameshare(readers):
    from support import RUNTIME

    clip, socket = clip_of(), f"/tmp/bench-{os.getpid()}-{readers}.sock"
    exporter = pipeline(f"fdsrc ! h264parse ! nvh264dec ! framesharesink socket-path={socket} sync=false")
    processes = started(CLIP_READER, RUNTIME + socket, readers)
    spent = []

    def go():
        before = settled([exporter])
        spent.append(feed([exporter], clip) - before)

    try:
        frames, cpu, _ = reports(processes, go)
    finally:
        for process in (exporter, *processes):
            if process.returncode is None and process.poll() is None:
                process.kill()
    return frames, cpu + spent[0]


def clip_by_decoders(readers):
    clip = clip_of()
    processes = [pipeline("fdsrc ! h264parse ! nvh264dec ! fakesink sync=false") for _ in range(readers)]
    try:
        before = settled(processes)
        cpu = feed(processes, clip) - before
    finally:
        for process in processes:
            if process.returncode is None and process.poll() is None:
                process.kill()
    return CLIP_FRAMES * LOOPS * readers, cpu


def clip_by_opencv(readers):
    path = f"/tmp/bench-{os.getpid()}.h264"
    with open(path, "wb") as file:
        file.write(clip_of())
    try:
        frames, cpu, _ = reports(started(CV_READER, path, readers), lambda: None)
    finally:
        os.remove(path)
    return frames, cpu


def compare_clips(readers, options):
    """Measure the CPU time of the frames of a clip, without that of any start."""
    ways = {"clip-frameshare": clip_by_frameshare, "clip-decoders": clip_by_decoders}
    try:
        __import__("cv2")
        ways["clip-opencv"] = clip_by_opencv
    except ImportError as error:
        emit(f"clip-opencv-{readers}", result="skip", reason=str(error))
    rounds = {way: [] for way in ways}
    for _ in range(options.clip_rounds):
        for way, run in ways.items():
            try:
                frames, cpu = run(readers)
            except Exception as error:
                traceback.print_exc()
                emit(f"{way}-{readers}", result="fail", reason=last_line(error))
                continue
            rounds[way].append({"frames": frames, "cpu_us": 1e6 * cpu / frames})
    own = rounds["clip-frameshare"]
    for way, found in rounds.items():
        if not found:
            continue
        line = {"frames": found[0]["frames"], "cpu_us": spread([one["cpu_us"] for one in found])}
        if way != "clip-frameshare" and len(own) == len(found):
            ratios = [one["cpu_us"] / base["cpu_us"] for one, base in zip(found, own, strict=True)]
            line["cpu_us_to_frameshare"] = spread(ratios)
        emit(f"{way}-{readers}", result="pass", rounds=len(found), **line)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--readers", default="1,4,8")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--frames", type=int, default=300)
    parser.add_argument("--paced-frames", type=int, default=45)
    parser.add_argument("--clip-rounds", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=180, help="no measurement begins after this time")
    parser.add_argument("--transports")
    parser.add_argument("--no-clips", action="store_true")
    parser.add_argument("--wait", choices=["spin", "sleep"], default="spin")
    parser.add_argument("--host", action="store_true")
    options = parser.parse_args()
    if options.host:
        import bench_host

        options.no_clips = True
    all_transports = bench_host.TRANSPORTS if options.host else TRANSPORTS
    options.transports = options.transports.split(",") if options.transports else list(all_transports)
    try:
        options.host or torch()
    except (ImportError, RuntimeError) as error:
        print(f"PyTorch finds no GPU: {error}")
        return 1
    failed, deadline = False, time.monotonic() + options.seconds
    counts = [int(count) for count in options.readers.split(",")]
    plan = [(compare, readers) for readers in counts]
    if not options.no_clips:
        plan += [(compare_clips, readers) for readers in counts]
    for measure, readers in plan:
        if time.monotonic() > deadline:
            emit(f"{measure.__name__}-{readers}", result="skip", reason=f"after {options.seconds} s")
            continue
        try:
            measure(readers, options)
        except Exception as error:
            traceback.print_exc()
            emit(f"{measure.__name__}-{readers}", result="fail", reason=last_line(error))
            failed = True
    return failed


if __name__ == "__main__":
    sys.exit(main())
