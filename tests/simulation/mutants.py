#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Change decisions of core, queue and service one at a time, and see that tests fail (`make mutants`).

    tests/simulation/mutants.py [--shard K/N] [--only TEXT] [--list]

A mutant is a copy of the tree with one change. Generated are changed conditions, operators, match
arms and function bodies, by cargo-mutants, and removed calls, by this script. tests/simulation/
mutants/*.patch are made by hand: the first line is the rule that the patch breaks. Each of these
must be caught by the simulator alone; of the generated ones 95 % must be caught, and the others
must be in tests/simulation/mutants/accepted.txt, one line each: the mutant, "  # " and the reason.

--shard runs every Nth of the generated ones from the Kth on, --only those whose name contains
TEXT, and --list runs none. Cheap tests run first, and dearer ones only against mutants that pass.
"""

import argparse
import collections
import difflib
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = ROOT / "tests/simulation/mutants"
WORK = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "mutants"
TREE = WORK / "tree"
LEAST = 95
CORE, QUEUE = "crates/frameshare-core/src", "crates/frameshare-queue/src"
ENGINE = "crates/frameshare/src/exporter"
FILES = [
    f"{CORE}/**/*.rs",
    f"{QUEUE}/**/*.rs",
    f"{ENGINE}/service/serving.rs",
    f"{ENGINE}/service/links.rs",
    f"{ENGINE}/delivery/publish.rs",
    f"{ENGINE}/delivery/backpressure.rs",
]
# Bodies of functions that decide or act. Other values are mostly of the wrong type.
BODIES = {"()", "true", "false", "None", "Ok(())", "Ok(true)", "Ok(false)", "Ok(None)"}
# A statement on one line that is a call, and the line before it.
CALL = re.compile(r"\s+\w[\w.:<>\[\]&*]*\(.*\)\??;")
BEFORE = re.compile(r"\s*(?://.*|.*[;{}])?")
# A mutant may allocate without end.
MEMORY = 12 << 30

Stage = collections.namedtuple("Stage", "name build run environment")
Mutant = collections.namedtuple("Mutant", "name diff stages")


def tests(name, *arguments, **environment):
    """A stage that runs tests of cargo."""
    command = ["cargo", "test", "--locked", "--quiet", *arguments]
    # The first failure is enough, which stable Rust does not offer yet.
    return Stage(name, [*command, "--no-run"], [*command, "--", "-Zunstable-options", "--fail-fast"], environment)


SIMULATOR = tests("simulator", "-p", "frameshare-simulation")
QUICK = tests("quick", "-p", "frameshare-core", "-p", "frameshare-queue", "-p", "frameshare-simulation")
LOOM = tests("loom", "--release", "-p", "frameshare-queue", "--lib",
             RUSTFLAGS="--cfg loom", CARGO_TARGET_DIR=str(WORK / "loom"))
# Most of these tests sleep most of the time.
ENGINES = tests("engine", "-p", "frameshare", "--lib", "--test", "engine", RUST_TEST_THREADS="16")
# Most mutants fail within a second, and none is made smaller. In this time each outcome is reached many times.
SEEDS = Stage("seeds", ["cargo", "build", "--locked", "--quiet", "-p", "frameshare-simulation", "--bin", "simulate"],
              [WORK / "build/debug/simulate", "seconds", "30", "--seed", "1", "--require-all",
               "--shrink", "0", "--output", WORK], {})


def stages_of(file):
    """The tests that run against mutants of a file, one after the other until one fails."""
    if file.startswith(ENGINE):
        return [ENGINES]
    return [SEEDS, QUICK, LOOM, ENGINES] if file.startswith(QUEUE) else [SEEDS, QUICK, ENGINES]


def hidden(lines):
    """The numbers, from 1, of the lines that are compiled for tests only."""
    numbers, closing = set(), None
    for number, line in enumerate(lines, 1):
        if closing is None and (match := re.match(r'(\s*)#\[cfg\((?:test|feature = "testing")\)\]', line)):
            closing = match[1]
        if closing is not None:
            numbers.add(number)
            # The end of a body, or of an item without one.
            if line == closing + "}" or (line.startswith(closing) and re.match(r"\S.*;$", line[len(closing):])):
                closing = None
    return numbers


def changed_by_cargo():
    """Mutants of cargo-mutants: file, line, what is changed, and the difference."""
    command = ["cargo", "mutants", "--list", "--json", "--diff", "--dir", str(ROOT)]
    for files in FILES:
        command += ["--file", files]
    found = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    for one in json.loads(found):
        is_body = one["genre"] == "FnValue"
        if is_body and one["replacement"] not in BODIES:
            continue
        diff = re.sub(r"\A--- .*\n\+\+\+ .*\n", f"--- a/{one['file']}\n+++ b/{one['file']}\n", one["diff"])
        what = re.sub(r"^.*?:\d+:\d+: ", "", one["name"])
        if not is_body:
            # The number of the line changes too often to name it.
            what += ": " + re.search(r"^-\s*(.*)$", diff.split("\n", 2)[2], re.MULTILINE)[1]
        yield one["file"], one["span"]["start"]["line"], what, diff


def removed_calls():
    """Mutants without one call: the same."""
    for path in sorted({path for files in FILES for path in ROOT.glob(files)}):
        lines, file = path.read_text().splitlines(), str(path.relative_to(ROOT))
        for at in range(1, len(lines)):
            if CALL.fullmatch(lines[at]) and BEFORE.fullmatch(lines[at - 1]):
                without = lines[:at] + lines[at + 1:]
                diff = difflib.unified_diff(lines, without, f"a/{file}", f"b/{file}", lineterm="", n=3)
                yield file, at + 1, f"remove {lines[at].strip()}", "\n".join(diff) + "\n"


def generated():
    """All generated mutants, without those of code that only tests use."""
    texts, seen, mutants = {}, collections.Counter(), []
    for file, line, what, diff in [*changed_by_cargo(), *removed_calls()]:
        if file not in texts:
            texts[file] = hidden((ROOT / file).read_text().splitlines())
        if file.endswith("/tests.rs") or line in texts[file]:
            continue
        name = f"{file}: {what}"
        seen[name] += 1
        name += f" ({seen[name]})" if seen[name] > 1 else ""
        mutants.append(Mutant(name, diff, stages_of(file)))
    return mutants


def by_hand():
    """The mutants that are patches."""
    patches = [(path.stem, path.read_text()) for path in sorted(HERE.glob("*.patch"))]
    return [Mutant(f"{stem}: {text.splitlines()[0]}", text, [SEEDS, SIMULATOR]) for stem, text in patches]


def accepted():
    """Names of accepted mutants, and the reasons."""
    path = HERE / "accepted.txt"
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
    parts = [line.rsplit("  # ", 1) for line in lines]
    if wrong := [part for part in parts if len(part) != 2 or not part[1].strip()]:
        sys.exit(f"mutants: {path}: a line is \"MUTANT  # REASON\": {wrong[0][0]}")
    return dict(parts)


def copy_tree():
    """Copies the files that git knows or would add. New times have all crates built anew."""
    shutil.rmtree(TREE, ignore_errors=True)
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.split("\0")
    for name in filter(lambda name: name and (ROOT / name).is_file(), names):
        (TREE / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, TREE / name)


def apply(mutant, *options):
    """Applies a mutant to the copy; returns the error, if there is one."""
    # The copy may be below a repository, to which the paths would be relative.
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(TREE.parent)}
    command = ["git", "apply", *options, "-"]
    done = subprocess.run(command, cwd=TREE, env=environment, input=mutant.diff, text=True, capture_output=True)
    return done.stderr.strip() if done.returncode else None


def execute(command, stage, limit):
    """Runs a command of a stage; returns whether it has succeeded, or None after `limit` seconds, and its output."""
    environment = {"CARGO_PROFILE_DEV_DEBUG": "0", "CARGO_TARGET_DIR": str(WORK / "build"), "RUSTC_BOOTSTRAP": "1"}
    with open(WORK / "output.txt", "w+") as output:
        process = subprocess.Popen(
            command, cwd=TREE, env=os.environ | environment | stage.environment, stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)))
        try:
            passed = process.wait(limit) == 0
        except subprocess.TimeoutExpired:
            passed = None
        finally:
            # Tests may have left processes, also those that were interrupted.
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        output.seek(0)
        return passed, output.read()


def measure(stages):
    """The time of the tests of each stage without a change: they have to pass."""
    times = {}
    for stage in stages:
        for command in (stage.build, stage.run):
            began = time.monotonic()
            passed, output = execute(command, stage, None)
            if not passed:
                sys.exit(f"{output}\nmutants: the {stage.name} tests fail without a change")
        times[stage.name] = time.monotonic() - began
        print(f"unchanged: the {stage.name} tests take {times[stage.name]:.1f} s", flush=True)
    return times


def outcome(mutant, times):
    """Runs the tests against a mutant: "caught by STAGE", "timed out", "unviable" or "missed"."""
    for stage in mutant.stages:
        if not execute(stage.build, stage, None)[0]:
            return "unviable"
        passed, _ = execute(stage.run, stage, 30 + 3 * times[stage.name])
        if not passed:
            return "timed out" if passed is None else f"caught by {stage.name}"
    return "missed"


def run(mutants, times):
    """Yields each mutant with its outcome."""
    for number, mutant in enumerate(mutants, 1):
        files = {file: (TREE / file).read_bytes() for file in re.findall(r"^\+\+\+ b/(\S+)", mutant.diff, re.MULTILINE)}
        began = time.monotonic()
        if error := apply(mutant):
            sys.exit(f"mutants: {mutant.name}: the change does not apply: {error}")
        try:
            found = outcome(mutant, times)
        finally:
            for file, content in files.items():
                (TREE / file).write_bytes(content)
        print(f"{number}/{len(mutants)} {found}, {time.monotonic() - began:.0f} s: {mutant.name}", flush=True)
        yield mutant, found


def report(outcomes, patches, reasons):
    """Prints what was found; returns the reasons why that is not enough."""
    found = {mutant.name: outcome for mutant, outcome in outcomes}
    kinds = collections.Counter(outcome for outcome in found.values())
    survivors = [name for name, outcome in found.items() if outcome == "missed"]
    for name in survivors:
        print(f"missed: {name}  # {reasons[name]}" if name in reasons else f"missed: {name}")
    for name in [name for name, outcome in found.items() if outcome == "timed out"]:
        print(f"timed out: {name}")
    for kind, count in sorted(kinds.items()):
        print(f"{kind}: {count}")
    faults = []
    if viable := len(found) - kinds["unviable"]:
        share = 100 * (viable - len(survivors)) / viable
        print(f"{share:.1f} % of {viable} generated mutants are caught")
        if share < LEAST:
            faults.append(f"fewer than {LEAST} % are caught")
    print(f"{sum(is_caught(outcome) for _, outcome in patches)} of {len(patches)} made by hand are caught")
    if unlisted := [name for name in survivors if name not in reasons]:
        faults.append(f"{len(unlisted)} are missed and not in accepted.txt")
    if stale := [name for name in reasons if found.get(name, "missed") != "missed"]:
        faults.append(f"accepted.txt names mutants that are not missed: {', '.join(stale)}")
    faults += [f"{mutant.name}: made by hand, and {outcome}" for mutant, outcome in patches if not is_caught(outcome)]
    return faults


def is_caught(outcome):
    return outcome.startswith("caught") or outcome == "timed out"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shard", default="0/1", type=lambda text: tuple(map(int, text.split("/"))))
    parser.add_argument("--only", default="")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    (kept, of), every = options.shard, generated()
    patches = [mutant for mutant in by_hand() if options.only in mutant.name]
    mutants = [mutant for mutant in every if options.only in mutant.name][kept::of]
    if options.list:
        print("\n".join(mutant.name for mutant in patches + mutants))
        return
    reasons = accepted()
    if unknown := reasons.keys() - {mutant.name for mutant in every}:
        sys.exit("mutants: accepted.txt names mutants that do not exist:\n" + "\n".join(sorted(unknown)))
    copy_tree()
    broken = [f"{mutant.name}\n{error}" for mutant in by_hand() if (error := apply(mutant, "--check"))]
    if broken:
        sys.exit("mutants: patches of tests/simulation/mutants do not apply any more:\n" + "\n".join(broken))
    stages = dict.fromkeys(stage.name for mutant in patches + mutants for stage in mutant.stages)
    times = measure([stage for stage in (SEEDS, SIMULATOR, QUICK, LOOM, ENGINES) if stage.name in stages])
    made, found = list(run(patches, times)), list(run(mutants, times))
    faults = report(found, made, reasons)
    if faults:
        sys.exit("\n".join(f"mutants: {fault}" for fault in faults))


if __name__ == "__main__":
    main()
