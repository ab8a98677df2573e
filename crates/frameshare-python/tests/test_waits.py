# SPDX-License-Identifier: MIT OR Apache-2.0

"""Waits: Ctrl-C, threads, and many frames."""

import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import frameshare
import pytest

from support import PATIENCE, Publish, Run, publish, run, runtime_folder

WAITS = """
import collections, frameshare, sys
name, call = sys.argv[1:]
def frames():
    # Some may come before the exporter is stopped.
    while True:
        stream.next()
waits = {
    "open": lambda: frameshare.open("missing", connection_timeout=None),
    "next": frames,
    "iterate": lambda: collections.deque(stream, maxlen=0),
    "items": lambda: collections.deque(stream.items(), maxlen=0),
    "many": lambda: frameshare.open_many(["missing"]).next(),
    "watch": lambda: [change for change in frameshare.watch_streams()],
}
stream = frameshare.open(name)
stream.next()
try:
    print("waits", flush=True)
    waits[call]()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize("call", ["open", "next", "iterate", "items", "many", "watch"])
def test_ctrl_c_ends_wait(call: str, publish: Publish, tmp_path: Path) -> None:
    exporter = publish("cam0")
    program = tmp_path / "waits.py"
    program.write_text(WAITS)
    waiting = subprocess.Popen([sys.executable, str(program), "cam0", call], stdout=subprocess.PIPE, text=True)
    assert waiting.stdout is not None
    assert waiting.stdout.readline() == "waits\n"
    exporter.send_signal(signal.SIGSTOP)
    waiting.send_signal(signal.SIGINT)
    assert waiting.communicate(timeout=PATIENCE)[0] == "interrupted\n"
    assert waiting.returncode == 0


def test_threads_share_a_stream(publish: Publish) -> None:
    publish("cam0", "-n", "400", "-r", "1", rate="2000")
    found: list[int] = []
    with frameshare.open("cam0", policy="lossless", max_held=8, reconnect=False) as stream:

        def read() -> None:
            try:
                for frame in stream:
                    found.append(frame.sequence)
            except frameshare.ClosedError:
                return
            stream.close()

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
    assert sorted(found) == list(range(1, 401))


def test_other_threads_run_during_a_wait(publish: Publish) -> None:
    exporter = publish("cam0")
    with frameshare.open("cam0") as stream:
        exporter.send_signal(signal.SIGSTOP)
        counted = 0
        waiting = threading.Thread(target=lambda: pytest.raises(frameshare.ClosedError, lambda: list(stream)))
        waiting.start()
        while counted < 100_000:
            counted += 1
        stream.close()
        waiting.join(PATIENCE)
        assert not waiting.is_alive()


MANY = """
import frameshare, gc, os
def resident(): # without the frames that others share
    fields = open("/proc/self/statm").read().split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")
with frameshare.open("cam0", policy="lossless", connection_timeout=60) as stream:
    for number in range(100_000):
        frame = stream.next(60)
        view = memoryview(frame.plane(0))
        assert view.nbytes == 256 and len(frame.planes) == 2 and not frame.tags
        del view
        if number == 10_000:
            gc.collect()
            before = resident(), len(os.listdir("/proc/self/fd"))
    gc.collect()
    assert stream.stats.held <= 1 and stream.stats.received == 100_000
    after = resident(), len(os.listdir("/proc/self/fd"))
    print(after[0] - before[0], after[1] - before[1])
"""


def test_memory_and_descriptors_do_not_grow_over_100_000_frames(publish: Publish, run: Run) -> None:
    publish("cam0", rate="100000", size="16x16")
    done = run(MANY)
    assert done.returncode == 0, done.stderr
    memory, descriptors = map(int, done.stdout.split())
    assert memory < 2 << 20 and descriptors == 0, done.stdout


def test_descriptors_do_not_grow_over_openings(publish: Publish) -> None:
    publish("cam0")
    before = None
    for number in range(60):
        with frameshare.open("cam0") as stream:
            assert stream.next(PATIENCE) is not None
        with frameshare.open_many(["cam0", "missing"]) as cameras:
            assert cameras.next(PATIENCE) is not None
        with frameshare.watch_streams() as watch:
            assert watch.next(PATIENCE) is not None
        del stream, cameras, watch
        if number == 10:
            gc.collect()
            before = len(os.listdir("/proc/self/fd"))
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
