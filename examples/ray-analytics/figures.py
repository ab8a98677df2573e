#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Measures a cluster of three nodes on this machine: frames read, and bytes that cross nodes."""

import argparse
import os
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
os.environ["PYTHONPATH"] = str(HERE)  # of the workers

from frameshare_ray import Figures, Placement, nodes
from frameshare_ray.local import LocalCluster
from frameshare_ray.traffic import Traffic


def read_for(placement: Placement, seconds: float) -> list[Figures]:
    """Takes results for some time; returns the counters of the readers."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        placement.results(1)
    return placement.figures(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cameras", type=int, default=2, help="cameras of each node (default: %(default)s)")
    parser.add_argument("--size", default="1280x720", help="of a frame (default: %(default)s)")
    parser.add_argument("--rate", type=int, default=30, help="frames per second (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=20, help="duration (default: %(default)s)")
    parser.add_argument("--tool", default="frameshare", help="the command (default: %(default)s)")
    options = parser.parse_args()

    with LocalCluster(3) as cluster:
        for number, node in enumerate(cluster.nodes):
            for camera in range(options.cameras):
                node.publish(
                    f"cam{number}-{camera}",
                    "--size",
                    options.size,
                    "--rate",
                    str(options.rate),
                    tool=options.tool,
                )
        with Placement(["cam*"]) as placement:
            cameras = 3 * options.cameras
            while len(before := read_for(placement, 1)) < cameras or any(one.frames == 0 for one in before):
                pass
            before, traffic, begin = placement.figures(60), Traffic(cluster.nodes), time.monotonic()
            after = read_for(placement, options.seconds)
            took, crossed = time.monotonic() - begin, traffic.between_nodes()
            idle = measure_idle(placement, cluster, options.seconds)
        nodes.stop()

    print(f"{cameras} cameras of {options.size} at {options.rate} frames/s, {took:.0f} s")
    print("node frames/s MB/s-read-in-place lost")
    for number, node in enumerate(cluster.nodes):
        frames, size, lost = (
            difference(before, after, node.id, name) for name in ("frames", "bytes", "lost")
        )
        print(f"{number} {frames / took:.1f} {size / took / 1e6:.1f} {lost}")
    print(f"between nodes: {crossed / took / 1e3:.1f} kB/s; without readers: {idle / 1e3:.1f} kB/s")


def measure_idle(placement: Placement, cluster: LocalCluster, seconds: float) -> float:
    """Returns the bytes a second that cross nodes without readers: directory, agents and Ray."""
    placement.close()
    traffic, begin = Traffic(cluster.nodes), time.monotonic()
    time.sleep(seconds)
    return traffic.between_nodes() / (time.monotonic() - begin)


def difference(before: list[Figures], after: list[Figures], node: str, name: str) -> int:
    """Returns by how much a counter of a node's readers has grown."""
    total = [sum(getattr(one, name) for one in figures if one.node == node) for figures in (before, after)]
    return total[1] - total[0]


if __name__ == "__main__":
    main()
