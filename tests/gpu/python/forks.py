# SPDX-License-Identifier: MIT OR Apache-2.0
"""Cases: children that are forked after CUDA was used."""

import logging
import os
import sys
import threading
import time
import traceback

import support
from cases import case, opened
from support import Driver, publisher

HINT = "a child that was forked after CUDA was used cannot use it: start it by exec"


def in_child(check):
    """Run a check in a forked child, which then exits as an interpreter does; return the seconds that the exit took."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            check()
            status = 0
        except BaseException:
            traceback.print_exc()
        os.write(writer, str(time.monotonic()).encode())
        sys.stderr.flush()
        # The functions of atexit(3) run, but not the interpreter's end, which waits for threads of its own.
        support.LIBC.exit(status)
    os.close(writer)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    ended = float(os.read(reader, 100))
    os.close(reader)
    assert status == 0, "the check failed in the child: see above"
    return time.monotonic() - ended


def read_in_child(name):
    """Check that a child gets frames in host memory by default, with a note, and clear errors for a GPU."""
    import frameshare

    def create():
        frameshare.create("own", format="GRAY8", width=64, height=64, device=0)

    def check():
        notes = []
        handler = logging.Handler()
        handler.emit = lambda record: notes.append(record.getMessage())
        logging.getLogger("frameshare").addHandler(handler)
        for device in (None, "cpu"):
            with opened(name, device=device) as stream:
                assert stream.next(20).device == "cpu"
        for use in (lambda: opened(name), create):
            try:
                use()
            except frameshare.UnsupportedError as error:
                assert HINT in str(error), error
            else:
                raise AssertionError("a child used CUDA")
        until = time.monotonic() + 20
        while not notes and time.monotonic() < until:
            time.sleep(0.01)
        assert "frames come in host memory" in notes[0] and HINT in notes[0], notes

    in_child(check)


@case("forked-child-after-another-library")
def forked_child_after_another_library():
    driver = Driver()
    with publisher("forked", pause_us=2000):
        read_in_child("forked")
    driver.synchronize()
    return {}


@case("forked-child-after-frameshare")
def forked_child_after_frameshare():
    with publisher("forked", pause_us=2000), opened("forked") as stream:
        assert stream.next(20).device == "cuda:0"
        read_in_child("forked")
        assert stream.next(20).device == "cuda:0"
    return {}


@case("forked-child-exits-at-once")
def forked_child_exits_at_once():
    """Another thread of the parent is in a call of the driver at the fork."""
    is_over, copied = threading.Event(), 0
    with publisher("exits", pause_us=2000), opened("exits", policy="latest") as stream:
        frame = stream.next(20)

        def copy():
            nonlocal copied
            while not is_over.is_set():
                frame.__dlpack__(dl_device=(1, 0), copy=True, max_version=(1, 1))
                copied += 1

        thread = threading.Thread(target=copy)
        thread.start()
        try:
            exits = [in_child(lambda: time.sleep(0.01)) for _ in range(20)]
        finally:
            is_over.set()
            thread.join()
    assert copied > 0
    # The handler of an exiting process waits for calls for a second.
    slow = sum(seconds > 0.5 for seconds in exits)
    assert slow == 0, f"{slow} of {len(exits)} children took up to {max(exits):.1f} s to exit"
    return {"exits": len(exits), "slowest_ms": round(1000 * max(exits)), "copied": copied}
