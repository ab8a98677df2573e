#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Feeds a training loop from a stream by workers: those of PyTorch's DataLoader, or of multiprocessing without PyTorch.

    python3 examples/python/dataloader.py cam0 --workers 2

A worker is a reader of its own, which gets each frame in place and passes on a small copy. Workers that are forked open
the stream again, as do those that get it pickled. Frames on a GPU come as copies in host memory: a forked worker has no
CUDA.
"""

import argparse
import copy
import importlib.util
import multiprocessing
from collections.abc import Iterator
from typing import Any

import frameshare


class Frames:
    """The numbers and the mean brightness of the first row of frames. Workers share the frames by their numbers."""

    def __init__(self, stream: frameshare.Stream, count: int) -> None:
        self.stream = stream
        self.count = count

    def of_worker(self, worker: int, workers: int) -> Iterator[tuple[int, float]]:
        # In a forked worker, the stream of the parent cannot be used: a copy is a stream that is opened here.
        with copy.copy(self.stream) as stream:
            taken = 0
            while taken < self.count and (frame := stream.next()) is not None:
                with frame:
                    if frame.sequence % workers != worker:
                        continue
                    with memoryview(frame.plane(0)) as luma:
                        row = bytes(luma[0, x] for x in range(frame.width))
                yield frame.sequence, sum(row) / len(row)
                taken += 1


if importlib.util.find_spec("torch") is not None:
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    class Dataset(IterableDataset[Any]):
        def __init__(self, frames: Frames) -> None:
            self.frames = frames

        def __iter__(self) -> Iterator[tuple[int, float]]:
            worker = get_worker_info()
            return self.frames.of_worker(worker.id, worker.num_workers) if worker else self.frames.of_worker(0, 1)

    def with_torch(frames: Frames, workers: int, method: str) -> Iterator[tuple[int, float]]:
        context = method if workers else None
        loader = DataLoader(Dataset(frames), batch_size=4, num_workers=workers, multiprocessing_context=context)
        for numbers, means in loader:
            yield from zip(numbers.tolist(), means.tolist())


def work(frames: Frames, worker: int, workers: int, results: Any) -> None:
    for result in frames.of_worker(worker, workers):
        results.put(result)


def with_processes(frames: Frames, workers: int, method: str) -> Iterator[tuple[int, float]]:
    context: Any = multiprocessing.get_context(method)
    results = context.Queue()
    processes = [
        context.Process(target=work, args=(frames, worker, workers, results), daemon=True) for worker in range(workers)
    ]
    for process in processes:
        process.start()
    for _ in range(frames.count * workers):
        yield results.get()
    for process in processes:
        process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description="Feeds a loop from a stream by workers.")
    parser.add_argument("stream", help="name of a stream")
    parser.add_argument("--frames", type=int, default=16, help="frames that each worker takes")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--method", choices=["spawn", "fork"], default="spawn", help="way to start workers")
    options = parser.parse_args()
    has_torch = importlib.util.find_spec("torch") is not None
    print(f"workers of {'PyTorch' if has_torch else 'multiprocessing'}, started by {options.method}")
    feed = with_torch if has_torch else with_processes
    # The policy "latest": a stream that is opened and not read delays no other.
    with frameshare.open(options.stream, device="cpu") as stream:
        for number, mean in feed(Frames(stream, options.frames), options.workers, options.method):
            print(f"frame {number}: mean of the first row {mean:.1f}")


if __name__ == "__main__":
    main()
