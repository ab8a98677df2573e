#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Finds the areas with the most detail in the frames of cameras, and publishes them as results.

    model.py [--device 0] cam0=cam0.model cam1=cam1.model

The model is a fixed convolution, made on the spot: it shows how a model is fed and where its results go, and recognizes
nothing. Replace `Detail` by a trained one. The program ends when its standard input ends, and prints one report a line.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from typing import Any, NamedTuple

import torch

import frameshare

#: Width and height of the model's input, and of its grid of cells.
INPUT = (320, 180)
GRID = (20, 12)
#: A cell has detail from this multiple of the image's mean on.
THRESHOLD = 2.5
MAX_BOXES = 5


class Box(NamedTuple):
    """A cell, in parts of the image's width and height."""

    x: float
    y: float
    width: float
    height: float
    label: str
    score: float


class Detail(torch.nn.Module):
    """Energy of the edges in each cell of a grid: two Sobel filters, squared and averaged. Nothing is trained."""

    filters: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        across = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]])
        self.register_buffer("filters", torch.stack([across, across.T]).unsqueeze(1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the energy of each cell of each image (n, 3, height, width), as (n, rows, columns)."""
        gray = images.mean(dim=1, keepdim=True)
        edges = torch.nn.functional.conv2d(gray, self.filters).square().sum(dim=1, keepdim=True)
        return torch.nn.functional.adaptive_avg_pool2d(edges, (GRID[1], GRID[0])).squeeze(1)


def boxes_of(energy: torch.Tensor) -> list[Box]:
    """Return the cells of one image that stand out, the strongest first."""
    relative = energy / energy.mean().clamp(min=1e-6)
    peak = torch.nn.functional.max_pool2d(relative[None], 3, stride=1, padding=1)[0]
    strong = torch.where(relative == peak, relative, torch.zeros_like(relative)).flatten()
    scores, cells = strong.topk(MAX_BOXES)
    columns, rows = GRID
    return [
        Box(cell % columns / columns, cell // columns / rows, 1 / columns, 1 / rows, "detail", min(score / 10, 1.0))
        for score, cell in zip(scores.tolist(), cells.tolist(), strict=True)
        if score >= THRESHOLD
    ]


def time_of(metas: list[tuple[str, dict[str, Any]]]) -> int:
    """Return the number that identifies a frame in recordings: its capture time in ns since 1970; 0 without one."""
    for name, values in metas:
        if name == "GstReferenceTimestampMeta" and values["reference"] == "timestamp/x-unix":
            return int(values["timestamp"])
    return 0


def report(camera: str, condition: str, text: str, frames: int) -> None:
    """Tell the parent process about a camera."""
    line = {"camera": camera, "condition": condition, "text": text, "values": {"frames": frames}}
    print(json.dumps(line), flush=True)


def end_with_input() -> None:
    """End this process with its parent, which holds the other end of standard input."""
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def run(streams: dict[str, str], device: str | None) -> None:
    """Publish the results of all cameras until the streams end."""
    results = {
        name: frameshare.create_results(target, slow_readers="disconnect") for name, target in streams.items()
    }
    place = torch.device("cpu" if device is None else "cuda")
    torch.set_num_threads(1)
    model = Detail().to(place)
    frames = dict.fromkeys(streams, 0)
    with (
        torch.inference_mode(),
        frameshare.open_many(list(streams), device="cpu" if device is None else device) as cameras,
    ):
        for batch in cameras.batches(len(streams)):
            images = [frame.rgb(like="torch", size=INPUT, dtype="float32") for _, frame in batch]
            found = model(torch.stack(images).to(place)).cpu()
            for (name, frame), energy in zip(batch, found, strict=True):
                with frame:
                    boxes = [box._asdict() for box in boxes_of(energy)]
                    results[name].publish(frame, {"time": time_of(frame.metas), "boxes": boxes})
                frames[name] += 1
                if frames[name] == 1 or frames[name] % 50 == 0:
                    report(name, "running", f"finds detail with a fixed convolution on {place}", frames[name])
        for name, error in cameras.errors.items():
            report(name, "failed", str(error), frames[name])


def main() -> None:
    """Read the arguments and run the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="number or UUID of a GPU (default: the CPU)")
    parser.add_argument("streams", nargs="+", metavar="FRAMES=RESULTS", help="names of two streams")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
    threading.Thread(target=end_with_input, daemon=True).start()
    pairs = (pair.partition("=") for pair in options.streams)
    run({frames: results for frames, _, results in pairs}, options.device)
    sys.exit("all streams have ended")


if __name__ == "__main__":
    main()
