#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Scores the motion between frames of a stream with NumPy."""

import argparse
import sys

try:
    import numpy as np
except ImportError:
    sys.exit("motion.py needs NumPy: pip install numpy")

import frameshare


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stream", help="name of the stream, or path of its socket")
    parser.add_argument("--frames", type=int, help="number of frames (default: until the stream ends)")
    parser.add_argument("--threshold", type=int, default=12, help="least change (default: %(default)s)")
    arguments = parser.parse_args()

    before = None
    with frameshare.open(arguments.stream, device="cpu") as stream:
        for number, frame in enumerate(stream, 1):
            with frame:  # a small copy is made, and the frame returns to its exporter at once
                image = frame.rgb(like="numpy", size=(160, 90)).astype(np.int16)
            if before is not None and image.shape == before.shape:
                moving = (np.abs(image - before).max(axis=0) > arguments.threshold).mean()
                print(f"frame {frame.sequence}: {moving:4.0%} of the image moves {'#' * round(40 * moving)}")
            before = image
            if number == arguments.frames:
                break


if __name__ == "__main__":
    main()
