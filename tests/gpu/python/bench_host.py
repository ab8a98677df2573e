# SPDX-License-Identifier: MIT OR Apache-2.0
"""The transports of bench.py --host: frames in host memory, of which NumPy reads one row.

A producer has put(number, source, stamp), a reader get() -> stamp.
"""

import contextlib
import time

import numpy
from bench import RING, Ring, RingReader

#: Small ones, whose copy does not hide the rest.
WIDTH, HEIGHT = 320, 240
SIZE = WIDTH * HEIGHT * 3 // 2


def sources():
    """Return frames in host memory, to be published."""
    return [numpy.full((HEIGHT * 3 // 2, WIDTH), value, numpy.uint8) for value in range(4)]


def read(array):
    """Read a row of a frame."""
    return int(array[0].sum())


class FrameshareProducer:
    def __init__(self, links, shared):
        import frameshare

        self.exporter = frameshare.create(shared["name"], format="NV12", width=WIDTH, height=HEIGHT)

    def put(self, number, source, stamp):
        self.exporter.publish(source, stamp)

    def finish(self):
        self.exporter.drain(timeout=20)


class FrameshareReader:
    def __init__(self, link, shared):
        import frameshare

        self.stream = frameshare.open(shared["name"], policy="lossless", connection_timeout=60, max_held=4)

    def get(self):
        frame = self.stream.next(30)
        read(numpy.asarray(frame))
        return frame.pts


def memories(shared, create):
    from multiprocessing import shared_memory

    names = [f"{shared['name']}-{index}" for index in range(RING)]
    return [shared_memory.SharedMemory(name, create=create, size=SIZE) for name in names]


def arrays(memories):
    return [numpy.ndarray((HEIGHT * 3 // 2, WIDTH), numpy.uint8, memory.buf) for memory in memories]


class SharedMemoryProducer(Ring):
    def open(self, shared):
        self.memories = memories(shared, True)
        return arrays(self.memories)

    def fill(self, slot, source):
        slot[:] = source

    def close(self):
        for memory in self.memories:
            with contextlib.suppress(OSError):
                memory.unlink()


class SharedMemoryReader(RingReader):
    def open(self, shared):
        deadline = time.monotonic() + 60
        while True:
            try:
                self.memories = memories(shared, False)
            except FileNotFoundError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return arrays(self.memories)

    def read(self, number):
        read(self.slots[number % RING])


TRANSPORTS = {
    "frameshare": (FrameshareProducer, FrameshareReader),
    "shared-memory": (SharedMemoryProducer, SharedMemoryReader),
}
