#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Makes a data set of Ray Data from the next frames of streams, each read in place by a task at a node that has it.

    python3 ray_data.py cam0 cam1 --frames 100

A data set is finite and its rows are copies: for results of endless streams use frameshare_ray.
"""

import argparse
from collections.abc import Iterator
from typing import Any

import frameshare


def rows(stream: Any, name: str, count: int, size: tuple[int, int] | None) -> Iterator[dict[str, Any]]:
    """A row for each of the next `count` frames, fewer if the stream ends: its key and its image as RGB."""
    while count > 0 and (frame := stream.next()) is not None:
        with frame:
            image = frame.rgb(like="numpy", layout="hwc", size=size)
            yield {"stream": name, "session": frame.session, "sequence": frame.sequence, "image": image}
        count -= 1


def read(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Reads the stream that a row names; for `flat_map`, at the node of the task."""
    with frameshare.open(row["open"], device="cpu") as stream:
        size = (row["width"], row["height"]) if row["width"] else None
        return list(rows(stream, row["open"], row["count"], size))


def dataset(names: list[str], count: int, size: tuple[int, int] | None = None) -> Any:
    """A data set of the next `count` frames of each stream."""
    import ray.data

    width, height = size or (0, 0)
    wanted = [{"open": name, "count": count, "width": width, "height": height} for name in names]
    return ray.data.from_items(wanted, override_num_blocks=len(wanted)).flat_map(read)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("streams", nargs="+")
    parser.add_argument("--frames", type=int, default=100)
    arguments = parser.parse_args()

    import numpy as np

    def brightness(batch: dict[str, Any]) -> dict[str, Any]:
        means = [float(np.asarray(image).mean()) for image in batch["image"]]
        return {"stream": batch["stream"], "sequence": batch["sequence"], "brightness": means}

    for row in dataset(arguments.streams, arguments.frames, (320, 180)).map_batches(brightness).iter_rows():
        print(row["stream"], row["sequence"], f"{row['brightness']:.1f}")


if __name__ == "__main__":
    main()
