#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Feeds a pipeline of NVIDIA DALI from a stream: batches of RGB images by external_source.

    python3 dali_source.py cam0 --batch 8
"""

import argparse
from collections.abc import Iterator
from typing import Any

import frameshare


def batches(stream: Any, size: int, like: str, resize: tuple[int, int] | None = None) -> Iterator[list[Any]]:
    """Lists of `size` images, (height, width, 3) of uint8, until the stream ends; the last one may be incomplete.

    Images are converted copies, so that no frame is held until its batch is complete.
    """
    batch: list[Any] = []
    for frame in stream:
        with frame:
            batch.append(frame.rgb(like=like, layout="hwc", size=resize))
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("stream")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--batches", type=int, default=10)
    arguments = parser.parse_args()

    import cupy  # noqa: F401  rgb() converts by its kernel
    from nvidia.dali import fn, pipeline_def

    with frameshare.open(arguments.stream) as stream:

        @pipeline_def(batch_size=arguments.batch, num_threads=2, device_id=0)
        def pipeline() -> Any:
            images = fn.external_source(batches(stream, arguments.batch, "cupy"), device="gpu", layout="HWC")
            return fn.resize(images, resize_x=224, resize_y=224)

        pipe = pipeline()
        pipe.build()
        for _ in range(arguments.batches):
            (images,) = pipe.run()
            print(images.shape())


if __name__ == "__main__":
    main()
