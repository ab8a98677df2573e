# SPDX-License-Identifier: MIT OR Apache-2.0
"""An exporter of the suite: peers.py NAME [KEY=VALUE]...; ends when its input does.

Frames are GRAY8, and filled with their number modulo 251, on the GPU by CUDA's driver alone. With slow_ms, every other
frame is written on a second stream, behind work of this length.
"""

import os
import sys
import threading
import time

import frameshare
from support import Driver

OPTIONS = {"width": 640, "height": 360, "memory": "vmm", "pause_us": 0, "frames": -1, "slow_ms": 0}


def main(name, *arguments):
    options = dict(OPTIONS)
    for argument in arguments:
        key, value = argument.split("=", 1)
        options[key] = type(OPTIONS[key])(value)
    ended = threading.Event()
    threading.Thread(target=lambda: (os.read(0, 1), ended.set()), daemon=True).start()
    is_host = options["memory"] == "host"
    driver = None if is_host else Driver()
    second = driver.new_stream() if options["slow_ms"] else None
    size = options["width"], options["height"]
    exporter = frameshare.create(
        name,
        format="GRAY8",
        width=size[0],
        height=size[1],
        device="cpu" if is_host else 0,
        memory=None if is_host else options["memory"],
    )
    number = 0
    while not ended.is_set() and number != options["frames"]:
        if exporter.readers == 0:
            time.sleep(0.005)
            continue
        number += 1
        value = number % 251
        if is_host:
            with exporter.acquire() as slot:
                view = memoryview(slot.planes[0]).cast("B")
                view[:] = bytes([value]) * len(view)
        else:
            stream = second if second and number % 2 else driver.stream
            if stream is second:
                driver.stall(second, options["slow_ms"])
            with exporter.acquire(stream=stream.value) as slot:
                pointer = slot.planes[0].__cuda_array_interface__["data"][0]
                # The first half, then the second: a frame that is read meanwhile is torn.
                plane = slot.planes[0]
                total = plane.stride * (plane.height - 1) + plane.width
                driver.fill(pointer, value, total // 2, stream)
                driver.fill(pointer + total // 2, value, total - total // 2, stream)
        if options["pause_us"]:
            time.sleep(options["pause_us"] / 1e6)
    if not ended.is_set():
        exporter.drain(timeout=30)


if __name__ == "__main__":
    main(*sys.argv[1:])
