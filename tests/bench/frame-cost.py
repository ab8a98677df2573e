#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Count instructions and cache lines of code that one frame in host memory takes, and compare them with the last count.

  tests/bench/frame-cost.py          counts, and fails if a figure of frame-cost.json is exceeded by more than 3 %
  tests/bench/frame-cost.py write    counts, and writes frame-cost.json

One thread publishes and reads without sleeping, under callgrind, so the load of the machine changes nothing. A line is
counted if every frame executes it: between two frames a core sleeps and loses these lines from its caches. Needs
valgrind and the release build of frameshare-bench, which it makes.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLE = ROOT / "tests/bench/frame-cost.json"
# Frames of a run (`alone.rs`): those that count, after some to warm up.
FRAMES, WARM_UP = 300, 50
LINE = 64
MORE = 1.03

STEPS = {
    "acquire": ["frameshare::exporter::Exporter::acquire*"],
    "publish": ["frameshare::exporter::Exporter::publish*"],
    "take and release": [
        "frameshare::reader::Reader::try_next*",
        "core::ptr::drop_in_place<frameshare::reader::item::Item>*",
    ],
}


def count(program: pathlib.Path, functions: list[str], readers: int) -> dict[str, int]:
    """Returns the instructions a frame, and the lines that each frame executes, with so many readers."""
    with tempfile.TemporaryDirectory() as folder:
        found = pathlib.Path(folder) / "callgrind"
        collect = ["--collect-atstart=no", *(f"--toggle-collect={name}" for name in functions)]
        form = ["--dump-instr=yes", "--compress-pos=no", "--compress-strings=no", f"--callgrind-out-file={found}"]
        command = ["valgrind", "--tool=callgrind", *form, *collect, program, "--cost-of-readers", "1", str(readers)]
        subprocess.run(command, check=True, capture_output=True)
        instructions, lines, object_file, is_call = 0, {}, "", False
        for text in found.read_text().splitlines():
            if text.startswith("ob="):
                object_file = text
            elif text.startswith("calls="):
                # The next line has the cost of the called function, which is counted there.
                is_call = True
            elif text.startswith("0x"):
                if not is_call:
                    address, *_, times = text.split()
                    line = (object_file, int(address, 16) // LINE)
                    lines[line] = max(lines.get(line, 0), int(times))
                    instructions += int(times)
                is_call = False
    if not instructions:
        sys.exit(f"frame-cost: none of {functions} was called: their names have changed")
    return {
        "instructions": round(instructions / (FRAMES + WARM_UP)),
        "lines": sum(times >= FRAMES for times in lines.values()),
    }


def main() -> None:
    if sys.argv[1:] not in ([], ["write"]):
        sys.exit(__doc__)
    subprocess.run(["cargo", "build", "--release", "--locked", "--package=frameshare-bench"], cwd=ROOT, check=True)
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    program = target.resolve() / "release/frameshare-bench"
    found = {
        f"{step}, {readers} reader{'s' if readers > 1 else ''}": count(program, functions, readers)
        for readers in (1, 8)
        for step, functions in STEPS.items()
    }
    before = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    worse = []
    for name, figures in found.items():
        last = before.get(name, {})
        print(f"{name}: " + ", ".join(f"{value} {what} ({last.get(what, 'new')})" for what, value in figures.items()))
        worse += [f"{name}: {what}" for what, value in figures.items() if value > MORE * last.get(what, value)]
    if sys.argv[1:] == ["write"]:
        TABLE.write_text(json.dumps(found, indent=2) + "\n")
    elif worse:
        sys.exit(f"FAIL frame-cost: more than 3 % above tests/bench/frame-cost.json: {'; '.join(worse)}")
    else:
        print("PASS frame-cost: no figure is more than 3 % above the last one")


if __name__ == "__main__":
    main()
