#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Negative controls of the random programs: each removes one ordering call, or one fix, and must be found.

    tests/programs/controls.py list                        prints all ordering calls, with their numbers
    tests/programs/controls.py run [--seconds N] WHAT...   removes each in turn; WHAT is a number, seed:N for ten
                                                           numbers that the seed chooses, the name of a fix, or fixes
                                                           for all of them

The sources are copied to target/controls, built there, and run for 300 s at most. For each control it prints FOUND with
the time, MISSED, or NOT BUILT if the sources do not build without the call.
"""

import argparse
import pathlib
import random
import re
import shutil
import subprocess
import time

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
PLACE = REPOSITORY / "target/controls"
SOURCES = [
    "crates/frameshare-cuda/src",
    *(f"crates/frameshare/src/{folder}" for folder in ("fence", "exporter", "reader", "gpu")),
    "crates/frameshare-python/src",
]
# Calls that make one piece of work wait for another, or keep a resource until work is done.
CALLS = (
    r"(stream|all)\.wait|signal_ready|signal_released|record|record_uncaptured|record_context|drop_behind"
    r"|drop_when_idle|drop_after|wait_on|used_on_stream|used_on|for_publication|anywhere|on|only_on|check_uncaptured"
    r"|delay_release|pin|expose|wait_ready"
)
STATEMENT = re.compile(rf"^\s*(return |let _ = )?([\w.&:]|\(\))*\b({CALLS})\(.*\)(\.map_err\(.*\))?\??;\s*$")
EXPORTER, READER, PYTHON = "crates/frameshare/src/exporter", "crates/frameshare/src/reader", "crates/frameshare-python/src"
# Fixes that are more than one call: a name, a file, what stands there, and what stood there before.
FIXES = {
    "slots-wait-for-their-write": (
        f"{EXPORTER}/state/publications.rs",
        "!self.is_adopted(&publication.slot) && publication.writing.as_ref().is_some_and(is_writing)",
        "publication.writing.as_ref().is_some_and(is_writing) && false",
    ),
    "abandoned-slots-wait": (
        f"{EXPORTER}/state/publications.rs",
        "_ if frame.slot.as_ptr().is_some() || self.is_adopted(frame.slot) => {",
        "_ => {",
    ),
    "python-keeps-streams": (f"{PYTHON}/lease.rs", "streams[index].keep(&mut name.object);", "drop(name.object.take());"),
    "python-frees-slots-behind-captures": (f"{PYTHON}/publish/slot.rs", "drop_behind(gpu, None, slot)", "drop((gpu, slot))"),
    "python-frees-sources-behind-captures": (
        f"{PYTHON}/publish/shared.rs",
        "drop_behind(stream.context(), None, what);",
        "drop(what);",
    ),
    "python-frees-copies-behind-streams": (
        f"{PYTHON}/memory.rs",
        "let done = self.streams.iter().filter_map(behind).chain(ended).collect();",
        "let done = self.streams.iter().filter_map(behind).chain(ended).take(0).collect();",
    ),
    "ended-uses-are-waited-for": (
        f"{READER}/lease/release.rs",
        "self.done.push(Event::behind(stream, context)?);",
        "drop(Event::behind(stream, context)?);",
    ),
}



def commands(*words, **options):
    return subprocess.run(words, cwd=PLACE / "source", **options)


def calls():
    """Return (file, line number, text) of each ordering call outside of tests."""
    found = []
    for folder in SOURCES:
        for file in sorted((REPOSITORY / folder).rglob("*.rs")):
            if file.name in ("tests.rs", "probe.rs"):
                continue
            for number, line in enumerate(file.read_text().splitlines()):
                if line.startswith("#[cfg(test)]"):
                    break
                if STATEMENT.match(line):
                    found.append((file.relative_to(REPOSITORY), number, line.strip()))
    return found


def fresh_copy():
    source = PLACE / "source"
    source.mkdir(parents=True, exist_ok=True)
    files = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, check=True, stdout=subprocess.PIPE).stdout
    for name in filter(None, files.decode().split("\0")):
        theirs, ours = REPOSITORY / name, source / name
        if not ours.exists() or ours.read_bytes() != theirs.read_bytes():
            # Cargo sees by the time of a file that it has changed.
            ours.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(theirs, ours)
            shutil.copymode(theirs, ours)


def remove(what, every):
    """Remove a call or a fix from the copy; return its description, and whether it was there."""
    if what in FIXES:
        file, now, before = FIXES[what]
        text = (PLACE / "source" / file).read_text()
        (PLACE / "source" / file).write_text(text.replace(now, before))
        return f"{what} {file}", text.count(now) == 1
    file, number, text = every[int(what)]
    lines = (PLACE / "source" / file).read_text().splitlines(keepends=True)
    lines[number] = "\n"
    (PLACE / "source" / file).write_text("".join(lines))
    return f"{what} {file}:{number + 1}: {text}", True


def control(what, every, seconds):
    fresh_copy()
    description, is_removed = remove(what, every)
    packages = [word for name in ("gpu-programs", "frameshare-c", "frameshare-python") for word in ("--package", name)]
    build = ["cargo", "build", "--quiet", "--locked", *packages, "--lib", "--bin", "gpu-programs"]
    log = (PLACE / f"{what}.log").open("w")
    environment = {"RUSTFLAGS": "--cap-lints=warn", "CARGO_TARGET_DIR": str(PLACE / "build")}
    is_built = is_removed and commands("env", *(f"{k}={v}" for k, v in environment.items()), *build, stdout=log, stderr=log)
    if not is_built or is_built.returncode:
        return f"NOT BUILT  {description}"
    begin = time.monotonic()
    program = str(PLACE / "build/debug/gpu-programs")
    driver = f"LD_LIBRARY_PATH={REPOSITORY / 'target/simcuda'}"
    running = subprocess.Popen(
        ["env", driver, program, "time", str(seconds)], stdout=subprocess.PIPE, stderr=log, text=True
    )
    # The first failure counts; the time to make its program small does not.
    result = next((line.split()[0] for line in running.stdout if line.startswith(("PASS", "FAIL"))), "ENDED")
    running.terminate()
    running.wait()
    found = {"PASS": "MISSED", "FAIL": "FOUND"}.get(result, result)
    return f"{found} in {time.monotonic() - begin:.0f} s  {description}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["list", "run"])
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("what", nargs="*")
    arguments = parser.parse_intermixed_args()
    every = calls()
    if arguments.action == "list":
        for number, (file, line, text) in enumerate(every):
            print(number, f"{file}:{line + 1}", text)
        return
    for what in arguments.what:
        if what == "fixes":
            chosen = FIXES
        elif what.startswith("seed:"):
            chosen = random.Random(int(what.removeprefix("seed:"))).sample(range(len(every)), 10)
        else:
            chosen = [what]
        for one in chosen:
            print(control(str(one), every, arguments.seconds), flush=True)


if __name__ == "__main__":
    main()
