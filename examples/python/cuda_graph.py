#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Captures a model into a CUDA graph once and replays it for each frame of a stream.

A captured graph reads one fixed address, so that each frame is converted into a static tensor. The
stream of frames is no part of the capture.
"""

import argparse
import sys

try:
    import torch
except ImportError:
    sys.exit("cuda_graph.py needs PyTorch: pip install torch")
if not torch.cuda.is_available():
    sys.exit("cuda_graph.py needs a GPU, and PyTorch with CUDA")

import frameshare


def model(rgb: torch.Tensor) -> torch.Tensor:
    """Returns the mean color of each of 16x16 areas."""
    return torch.nn.functional.adaptive_avg_pool2d(rgb, 16)


def capture(rgb: torch.Tensor) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    """Returns the graph of the model on this tensor, and its result."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        model(rgb)  # libraries allocate their memory at the first call, which no capture may contain
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = model(rgb)
    return graph, result


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stream", help="name of the stream, or path of its socket")
    parser.add_argument("--frames", type=int, help="number of frames (default: until the stream ends)")
    parser.add_argument("--device", default="0", help="number or UUID of the GPU (default: %(default)s)")
    arguments = parser.parse_args()

    captured = None
    with frameshare.open(arguments.stream, device=arguments.device) as stream:
        for number, frame in enumerate(stream, 1):
            if frame.device == "cpu":
                sys.exit(f"{arguments.stream} has frames in host memory: this example needs them on the GPU")
            with frame:
                if captured is None or captured[0].shape[2:] != (frame.height, frame.width):
                    torch.cuda.set_device(frame.device)
                    rgb = torch.zeros((1, 3, frame.height, frame.width), device=frame.device)
                    captured = (rgb, *capture(rgb))
                rgb, graph, result = captured
                frame.rgb(rgb[0])
            graph.replay()
            red, green, blue = result.mean(dim=(0, 2, 3)).tolist()
            print(f"frame {frame.sequence}: red {red:.3f}, green {green:.3f}, blue {blue:.3f}")
            if number == arguments.frames:
                break


if __name__ == "__main__":
    main()
