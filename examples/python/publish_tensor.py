#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Publishes a moving pattern that PyTorch draws, on the GPU if there is one, or else NumPy."""

import argparse
import time
from collections.abc import Callable
from typing import Any

import frameshare

WIDTH, HEIGHT = 640, 360


def drawing_with_numpy() -> Callable[[int], Any]:
    import numpy as np

    columns = np.arange(WIDTH, dtype=np.uint8)[None, :, None]
    rows = np.arange(HEIGHT, dtype=np.uint8)[:, None, None]
    phases = np.array([0, 85, 170], np.uint8)
    return lambda number: columns + rows + phases + np.uint8(number % 256)


def drawing_with_torch(torch: Any, device: str) -> Callable[[int], Any]:
    columns = torch.arange(WIDTH, device=device)[None, :, None]
    rows = torch.arange(HEIGHT, device=device)[:, None, None]
    phases = torch.tensor([0, 85, 170], device=device)
    return lambda number: ((columns + rows + phases + number) % 256).to(torch.uint8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stream", help="name of the stream, or path of its socket")
    parser.add_argument("--frames", type=int, default=300, help="number of frames (default: %(default)s)")
    arguments = parser.parse_args()

    try:
        import torch
    except ImportError:
        device, draw = "cpu", drawing_with_numpy()
    else:
        device = "cuda:0" if torch.cuda.is_available() else "cpu"
        draw = drawing_with_torch(torch, device)

    with frameshare.create(
        arguments.stream, format="RGB", width=WIDTH, height=HEIGHT, rate=30, device=device
    ) as exporter:
        print(exporter, flush=True)
        exporter.wait_for_reader()
        for number in range(arguments.frames):
            # One copy, on the tensor's device and behind the work that draws it.
            exporter.publish(draw(number), metas={"pattern": {"number": number}})
            time.sleep(1 / 30)
        exporter.end()
        exporter.drain(timeout=5)


if __name__ == "__main__":
    main()
