#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Prints the planes of a stream's frames, read in place with NumPy."""

import argparse
import sys

try:
    import numpy as np
except ImportError:
    sys.exit("first_frame.py needs NumPy: pip install numpy")

import frameshare


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stream", help="name of the stream, or path of its socket")
    parser.add_argument("--frames", type=int, default=1, help="number of frames (default: %(default)s)")
    arguments = parser.parse_args()

    with frameshare.open(arguments.stream, device="cpu") as stream:
        for _, frame in zip(range(arguments.frames), stream, strict=False):
            print(f"frame {frame.sequence}: {frame.format} {frame.width}x{frame.height}, {frame.colorimetry}")
            for number, plane in enumerate(frame.planes):
                pixels = np.asarray(plane)  # no copy: read-only, and it keeps the frame
                print(f"  plane {number}: {pixels.shape} {pixels.dtype}, mean {pixels.mean():.1f}")


if __name__ == "__main__":
    main()
