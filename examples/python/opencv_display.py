#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Shows a stream in a window of OpenCV, or saves its newest frame. The key q ends it."""

import argparse
import sys
from typing import Any

try:
    import cv2
    import numpy as np
except ImportError:
    sys.exit("opencv_display.py needs OpenCV and NumPy: pip install opencv-python")

import frameshare


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stream", help="name of the stream, or path of its socket")
    parser.add_argument("--frames", type=int, help="number of frames (default: until the stream ends)")
    parser.add_argument("--save", metavar="FILE", help="write each frame to this file, without a window")
    arguments = parser.parse_args()

    bgr = np.empty((0, 0, 3), np.uint8)
    with frameshare.open(arguments.stream, device="cpu") as stream:
        for number, frame in enumerate(stream, 1):
            with frame:
                if bgr.shape[:2] != (frame.height, frame.width):
                    bgr = np.empty((frame.height, frame.width, 3), np.uint8)
                frame.rgb(bgr[:, :, ::-1])  # OpenCV's order of channels: the view of BGR is RGB
            if arguments.save:
                if not cv2.imwrite(arguments.save, bgr):
                    sys.exit(f"cannot write {arguments.save}")
            elif not show(arguments.stream, bgr):
                break
            if number == arguments.frames:
                break


def show(title: str, bgr: Any) -> bool:
    """Shows an image; returns whether the window stays."""
    try:
        cv2.imshow(title, bgr)
        return bool(cv2.waitKey(1) != ord("q"))
    except cv2.error as error:
        sys.exit(f"OpenCV opens no window ({error.err}): use --save, or install opencv-python with a display")


if __name__ == "__main__":
    main()
