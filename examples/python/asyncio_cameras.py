#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Reads cameras in one event loop: a task for each, and one that reports.

    python3 examples/python/asyncio_cameras.py cam0 cam1 cam2 cam3

A camera that is not there yet, or that ends, is opened again; the others go on meanwhile.
"""

import argparse
import asyncio
import collections

import frameshare


async def read(name: str, counts: collections.Counter[str], frames: int | None) -> None:
    while frames is None or counts[name] < frames:
        try:
            # Waits for the exporter in a thread, so that the other cameras go on.
            stream = await asyncio.to_thread(frameshare.open, name, connection_timeout=1.0)
        except frameshare.NotFoundError:
            continue
        with stream:
            async for frame in stream:
                with frame:
                    counts[name] += 1
                if frames is not None and counts[name] >= frames:
                    return


async def report(counts: collections.Counter[str]) -> None:
    before: collections.Counter[str] = collections.Counter()
    while True:
        await asyncio.sleep(1)
        print("  ".join(f"{name} {counts[name] - before[name]}/s" for name in sorted(counts)), flush=True)
        before = counts.copy()


async def main() -> None:
    parser = argparse.ArgumentParser(description="Reads cameras in one event loop.")
    parser.add_argument("cameras", nargs="+", metavar="CAMERA", help="name of a stream")
    parser.add_argument("--frames", type=int, help="ends after so many frames of each camera")
    options = parser.parse_args()
    counts = collections.Counter(dict.fromkeys(options.cameras, 0))
    reporting = asyncio.create_task(report(counts))
    await asyncio.gather(*(read(name, counts, options.frames) for name in options.cameras))
    reporting.cancel()
    print("  ".join(f"{name} {count} frames" for name, count in sorted(counts.items())))


if __name__ == "__main__":
    asyncio.run(main())
