# SPDX-License-Identifier: MIT OR Apache-2.0

"""Analyzes streams of a Ray cluster at their nodes, and prints a line of JSON for each result."""

import argparse
import json
import logging
import os
import sys

import ray

from . import nodes
from .placement import Options, Placement
from .records import NAMESPACE, Result


def line(result: Result) -> str:
    """Returns a result as docs/python-publish.md defines it, with its stream and node."""
    key = {"session": str(result.session), "sequence": result.sequence}
    return json.dumps({"stream": result.stream, "node": result.node, **key, "value": result.value})


def parse() -> argparse.Namespace:
    defaults = Options()
    parser = argparse.ArgumentParser(prog="python3 -m frameshare_ray", description=__doc__)
    parser.add_argument(
        "stream", nargs="*", default=["*"], help="names or patterns, such as 'cam*' (default: all)"
    )
    parser.add_argument(
        "--address", default="auto", help="address of the cluster (default: the one of this node)"
    )
    parser.add_argument(
        "--analysis", default=defaults.analysis, help="module:function (default: %(default)s)"
    )
    parser.add_argument(
        "--gpus", type=float, default=0, help="share of a GPU for each reader (default: %(default)s)"
    )
    parser.add_argument(
        "--lost-after",
        type=float,
        default=defaults.lost_after,
        metavar="SECONDS",
        help="a node without a report for so long is lost (default: %(default)s)",
    )
    parser.add_argument("--results", type=int, help="number of results (default: until interrupted)")
    parser.add_argument("--stop", action="store_true", help="end the directory and the agents of the cluster")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(address=arguments.address, namespace=NAMESPACE, logging_level=logging.WARNING)
    if arguments.stop:
        nodes.stop()
        return
    options = Options(
        analysis=arguments.analysis,
        lost_after=arguments.lost_after,
        reader={"num_cpus": 0, "num_gpus": arguments.gpus},
    )
    with Placement(arguments.stream, options) as placement:
        for number, result in enumerate(placement, 1):
            print(line(result), flush=True)
            if number == arguments.results:
                break


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
