#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Finds edges and moving pixels of a stream with PyTorch, on the GPU if its frames are there.

The model is a fixed convolutional one: its weights are made here, and nothing was trained.
"""

import argparse
import sys

try:
    import torch
except ImportError:
    sys.exit("edges.py needs PyTorch: pip install torch")

import frameshare


class EdgesAndBackground(torch.nn.Module):
    """Edges by Sobel's kernels, and the difference to a background that follows the image slowly."""

    def __init__(self) -> None:
        super().__init__()
        across = torch.tensor([[1.0, 0.0, -1.0], [2.0, 0.0, -2.0], [1.0, 0.0, -1.0]]) / 8
        self.register_buffer("gray", torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1))
        self.register_buffer("sobel", torch.stack([across, across.T]).unsqueeze(1))
        self.background: torch.Tensor | None = None

    def forward(self, rgb: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gray = torch.nn.functional.conv2d(rgb, self.gray)
        edges = torch.nn.functional.conv2d(gray, self.sobel, padding=1).square().sum(1).sqrt()
        background = self.background
        if background is None or background.shape != gray.shape:
            background = self.background = gray.clone()
        moving = (gray - background).abs()
        background.lerp_(gray, 0.1)
        return edges, moving


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stream", help="name of the stream, or path of its socket")
    parser.add_argument("--frames", type=int, help="number of frames (default: until the stream ends)")
    parser.add_argument("--device", help='"cpu", or the number or UUID of a GPU (default: as the frames lie)')
    arguments = parser.parse_args()

    model = EdgesAndBackground()
    with frameshare.open(arguments.stream, device=arguments.device) as stream:
        for number, frame in enumerate(stream, 1):
            with frame:  # the release follows the conversion, in the order of PyTorch's stream
                rgb = frame.rgb(like="torch", dtype="float32")
            edges, moving = model.to(rgb.device)(rgb.unsqueeze(0))
            shares = [(each > 0.05).float().mean().item() for each in (edges, moving)]
            print(f"frame {frame.sequence} on {rgb.device}: {shares[0]:.1%} edges, {shares[1]:.1%} moving")
            if number == arguments.frames:
                break


if __name__ == "__main__":
    main()
