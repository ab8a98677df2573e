#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Prints the files that cuda-calls.c and the benchmark write for a prefix: CUDA calls of each process, a frame."""

import sys
from pathlib import Path

FEWEST = 0.05  # calls a frame; rarer ones are not part of each frame


def table(prefix: Path) -> list[str]:
    lines = []
    for measured in sorted(prefix.parent.glob(f"{prefix.name}.*.*")):
        pid, side = measured.name.removeprefix(f"{prefix.name}.").split(".")
        frames, cpu = (int(word) for word in measured.read_text().split())
        if not frames:
            continue
        lines.append(f"\n{side} {pid}: {frames} frames, CPU time {cpu / frames / 1e3:.1f} µs a frame\n")
        lines += ["| caller | function | calls a frame | µs a frame |", "| --- | --- | --- | --- |"]
        counts = [line.split() for line in prefix.with_name(f"{prefix.name}.{pid}").read_text().splitlines()]
        for caller in ("frameshare", "others"):
            own = [(int(ns), int(calls), name) for who, name, calls, ns in counts if who == caller]
            for ns, calls, name in sorted(own, reverse=True):
                if calls >= FEWEST * frames:
                    lines.append(f"| {caller} | {name} | {calls / frames:.2f} | {ns / frames / 1e3:.2f} |")
            calls, ns = sum(one[1] for one in own), sum(one[0] for one in own)
            lines.append(f"| {caller} | all | {calls / frames:.2f} | {ns / frames / 1e3:.2f} |")
    return lines


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} PREFIX")
    found = table(Path(sys.argv[1]))
    if not found:
        sys.exit(f"there are no counts at {sys.argv[1]}.*: was the benchmark run with cuda-calls.c?")
    print("\n".join(found))
