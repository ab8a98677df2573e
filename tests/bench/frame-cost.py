#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Count instructions and cache lines of code that one frame in host memory takes, and compare them with the last count.

  tests/bench/frame-cost.py          counts, and fails if figures of frame-cost.json are exceeded: instructions by more
                                     than 3 %, lines by more than 10 %, since they depend on where functions begin
  tests/bench/frame-cost.py write    counts, and writes frame-cost.json

The program `crates/frameshare/benches/frame_cost.rs` runs under callgrind, so the load of the machine changes nothing. A
line is counted if every frame executes it: between two frames a core sleeps and loses these lines from its caches. The
C library is not counted, which has other code for other processors. Figures of another compiler are not compared. Needs
valgrind; the release build of the program takes a minute.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLE = ROOT / "tests/bench/frame-cost.json"
# Frames of a run: those that count, after some to warm up.
FRAMES, WARM_UP = 300, 50
LINE = 64
MORE = {"instructions": 1.03, "lines": 1.1}

# The functions of each step, and whether its readers sleep until a frame comes.
STEPS = {
    "acquire": ("awake", ["frameshare::exporter::Exporter::acquire*"]),
    "publish": ("awake", ["frameshare::exporter::Exporter::publish*"]),
    "publish to sleepers": ("asleep", ["frameshare::exporter::Exporter::publish*"]),
    "take and release": (
        "awake",
        ["frameshare::reader::Reader::try_next*", "core::ptr::drop_in_place<frameshare::reader::item::Item>*"],
    ),
}


def build() -> str:
    """Builds the program; returns its path."""
    command = ["cargo", "build", "--release", "--locked", "--package=frameshare", "--bench=frame_cost"]
    command.append("--message-format=json-render-diagnostics")
    built = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    messages = map(json.loads, built.splitlines())
    return next(message["executable"] for message in messages if message.get("executable"))


def count(program: str, functions: list[str], readers: int, state: str) -> dict[str, int]:
    """Returns the instructions a frame, and the lines that each frame executes, with so many readers in this state."""
    with tempfile.TemporaryDirectory() as folder:
        found = pathlib.Path(folder) / "callgrind"
        collect = ["--collect-atstart=no", *(f"--toggle-collect={name}" for name in functions)]
        form = ["--dump-instr=yes", "--compress-pos=no", "--compress-strings=no", f"--callgrind-out-file={found}"]
        command = ["valgrind", "--tool=callgrind", *form, *collect, program, str(readers), state]
        subprocess.run(command, check=True, capture_output=True)
        instructions, lines, object_file, is_call = 0, {}, "", False
        for text in found.read_text().splitlines():
            if text.startswith("ob="):
                object_file = text
            elif text.startswith("calls="):
                # The next line has the cost of the called function, which is counted there.
                is_call = True
            elif text.startswith("0x"):
                if not is_call and object_file == f"ob={program}":
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
    program = build()
    found = {
        f"{step}, {readers} reader{'s' if readers > 1 else ''}": count(program, functions, readers, state)
        for readers in (1, 8)
        for step, (state, functions) in STEPS.items()
    }
    compiler = subprocess.run(["rustc", "--version"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    table = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    before, worse = table.get("figures", {}), []
    for name, figures in found.items():
        last = before.get(name, {})
        print(f"{name}: " + ", ".join(f"{value} {what} ({last.get(what, 'new')})" for what, value in figures.items()))
        worse += [f"{name}: {what}" for what, value in figures.items() if value > MORE[what] * last.get(what, value)]
    if sys.argv[1:] == ["write"]:
        TABLE.write_text(json.dumps({"compiler": compiler, "figures": found}, indent=2) + "\n")
    elif table.get("compiler") != compiler:
        print(f"SKIP frame-cost: counted with {compiler}, and before with {table.get('compiler')}")
    elif worse:
        sys.exit(f"FAIL frame-cost: above tests/bench/frame-cost.json: {'; '.join(worse)}")
    else:
        print("PASS frame-cost: no figure is above the last one")


if __name__ == "__main__":
    main()
