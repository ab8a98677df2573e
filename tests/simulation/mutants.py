#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Change decisions of core, queue and service one at a time, and see that tests fail (`make mutants`).

    tests/simulation/mutants.py [--shard K/N] [--only TEXT] [--list]

A mutant is one change. Generated are changed conditions, operators, match arms and function bodies,
by cargo-mutants, and removed calls, by this script. tests/simulation/mutants/*.patch are made by
hand: the first line is the rule that the patch breaks. Each of these must be caught by the simulator
alone; of the generated ones 95 % must be caught, and the others must be in
tests/simulation/mutants/accepted.txt, one line each: the mutant, "  # " and the reason.

All mutants are built together, in a copy of the tree where each changed function selects its body by
the number in MUTANT. Each kind of tests runs against those mutants that the kinds before, which take
less time, have not caught. --shard runs every Nth of the generated ones from the Kth on, --only those
whose name contains TEXT, and --list runs none.
"""

import argparse
import collections
import difflib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent import futures

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
# The first line of a function; its body ends with a brace below the first letter.
FUNCTION = re.compile(r"(\s*)(?:pub(?:\([^)]*\))? )?(?:unsafe )?fn \w+")
# A mutant may allocate without end.
MEMORY = 12 << 30
# Wrong code should be caught by assertions, too.
BUILD = {"CARGO_TARGET_DIR": str(WORK / "build"), "RUSTC_BOOTSTRAP": "1", "RUSTFLAGS": "--cap-lints=allow",
         "CARGO_PROFILE_RELEASE_DEBUG": "0", "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16",
         "CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS": "true", "CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS": "true"}
SELECTED = """
/// The number of the mutant that this process runs, or 0.
pub fn selected_mutant() -> u32 {
    static SELECTED: std::sync::LazyLock<u32> =
        std::sync::LazyLock::new(|| std::env::var("MUTANT").map_or(0, |number| number.parse().unwrap()));
    *SELECTED
}
"""

Stage = collections.namedtuple("Stage", "name build run environment jobs")
Mutant = collections.namedtuple("Mutant", "name diff stages")


def tests(name, *arguments, jobs, **environment):
    """A stage that runs tests of cargo."""
    command = ["cargo", "test", "--locked", "--quiet", "--release", *arguments]
    # The first failure is enough, which stable Rust does not offer yet.
    run = [*command, "--", "-Zunstable-options", "--fail-fast"]
    return Stage(name, [*command, "--no-run"], run, environment, jobs)


CORES = len(os.sched_getaffinity(0))
SIMULATOR = tests("simulator", "-p", "frameshare-simulation", jobs=CORES)
QUICK = tests("quick", "-p", "frameshare-core", "-p", "frameshare-queue", "-p", "frameshare-simulation", jobs=CORES)
LOOM = tests("loom", "-p", "frameshare-queue", "--lib", jobs=CORES,
             RUSTFLAGS="--cap-lints=allow --cfg loom", CARGO_TARGET_DIR=str(WORK / "loom"))
# Most of these tests sleep most of the time.
ENGINES = tests("engine", "-p", "frameshare", "--lib", "--test", "engine", jobs=max(1, CORES // 2), RUST_TEST_THREADS="16")
# Most mutants fail within a second, and none is made smaller. In this time each outcome is reached many times.
SEEDS = Stage("seeds", ["cargo", "build", "--locked", "--quiet", "--release", "-p", "frameshare-simulation", "--bin", "simulate"],
              [WORK / "build/release/simulate", "seconds", "60", "--seed", "1", "--threads", "1", "--require-all",
               "--shrink", "0", "--output", WORK], {}, CORES)
STAGES = [QUICK, SEEDS, SIMULATOR, LOOM, ENGINES]


def stages_of(file):
    """The tests that run against mutants of a file."""
    if file.startswith(ENGINE):
        return [ENGINES]
    return [QUICK, SEEDS, LOOM, ENGINES] if file.startswith(QUEUE) else [QUICK, SEEDS, ENGINES]


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


def split(lines):
    """Parts of a file: (False, lines) between the bodies of functions, (True, lines) for each body."""
    parts, at, start = [], 0, 0
    while at < len(lines):
        at += 1
        if not (function := FUNCTION.match(lines[at - 1])):
            continue
        while not lines[at - 1].endswith(("{", "}", ";")):
            at += 1
        if lines[at - 1].endswith("{"):
            end = lines.index(function[1] + "}", at)
            parts += [(False, lines[start:at]), (True, lines[at:end])]
            at = start = end
    return [*parts, (False, lines[start:])]


def places(lines):
    """The numbers, from 1, of the lines where changes are made: bodies of functions that are not for tests only."""
    tested, inside, number = hidden(lines), set(), 1
    for is_body, part in split(lines):
        inside |= set(range(number, number + len(part))) if is_body else set()
        number += len(part)
    return inside - tested


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
    """All generated mutants."""
    texts, seen, mutants = {}, collections.Counter(), []
    for file, line, what, diff in [*changed_by_cargo(), *removed_calls()]:
        if file not in texts:
            texts[file] = places((ROOT / file).read_text().splitlines())
        if file.endswith(("/tests.rs", "/fake.rs")) or line not in texts[file]:
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


def changed_files(mutant):
    """Applies a mutant to the copy and takes it back; returns the lines of the files that it changes."""
    names = re.findall(r"^\+\+\+ b/(\S+)", mutant.diff, re.MULTILINE)
    before = {name: (TREE / name).read_text() for name in names}
    # The copy may be below a repository, to which the paths would be relative.
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(TREE.parent)}
    done = subprocess.run(["git", "apply", "-"], cwd=TREE, env=environment, input=mutant.diff, text=True, capture_output=True)
    if done.returncode:
        sys.exit(f"mutants: {mutant.name}: the change does not apply:\n{done.stderr.strip()}")
    after = {name: (TREE / name).read_text().splitlines() for name in names}
    for name, text in before.items():
        (TREE / name).write_text(text)
    return after


class Combination:
    """A copy of the tree with many mutants, of which the environment selects one when a program runs."""

    def __init__(self, mutants):
        self.numbers = {mutant.name: number for number, mutant in enumerate(mutants, 1)}
        self.unviable = set()
        # For each file its parts, and for each of its bodies the changed ones.
        self.files = {}
        for number, mutant in enumerate(mutants, 1):
            for name, lines in changed_files(mutant).items():
                parts, bodies = self.files.setdefault(name, (split((TREE / name).read_text().splitlines()), {}))
                changed = split(lines)
                different = [at for at, (one, other) in enumerate(zip(parts, changed)) if one != other]
                if len(parts) != len(changed) or not all(parts[at][0] for at in different):
                    sys.exit(f"mutants: {mutant.name}: changes more than bodies of functions")
                for at in different:
                    bodies.setdefault(at, {})[number] = changed[at][1]

    def write(self):
        """Writes the files; returns which lines belong to which mutant."""
        places = {}
        for name, (parts, bodies) in self.files.items():
            text = []
            for at, (_, lines) in enumerate(parts):
                if at not in bodies:
                    text += lines
                    continue
                crate = "crate" if name.startswith(QUEUE) else "frameshare_queue"
                text.append(f"match {crate}::selected_mutant() {{")
                for number, body in bodies[at].items():
                    if number not in self.unviable:
                        places[name, len(text) + 1, len(text) + len(body) + 2] = number
                        text += [f"{number} => {{", *body, "}"]
                text += ["_ => {", *lines, "}", "}"]
            (TREE / name).write_text("\n".join(text) + "\n")
        with open(TREE / QUEUE / "lib.rs", "a") as library:
            library.write(SELECTED)
        return places

    def build(self):
        """Leaves out, turn by turn, the mutants that do not compile."""
        library = (TREE / QUEUE / "lib.rs").read_text()
        while True:
            (TREE / QUEUE / "lib.rs").write_text(library)
            places = self.write()
            check = ["cargo", "check", "--locked", "--quiet", "--message-format=json", "-p", "frameshare"]
            passed, output = execute(check, {}, None)
            if passed:
                return
            wrong = set()
            for line in filter(lambda line: line.startswith("{"), output.splitlines()):
                message = json.loads(line).get("message") or {"level": None}
                if message["level"] == "error":
                    # Of two bodies with different types the error may name the unchanged one first.
                    numbers = [number for span in sorted(message["spans"], key=lambda span: not span["is_primary"])
                               for (name, first, last), number in places.items()
                               if span["file_name"] == name and first <= span["line_start"] <= last]
                    wrong.update(numbers[:1])
            if not wrong:
                sys.exit(f"{output[-10000:]}\nmutants: the changes together do not compile")
            self.unviable |= wrong
            print(f"{len(self.unviable)} mutants do not compile", flush=True)


def execute(command, environment, limit):
    """Runs a command in the copy; returns whether it has succeeded, or None after `limit` seconds, and its output."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            ["prlimit", f"--as={MEMORY}", *command], cwd=TREE, env=os.environ | BUILD | environment,
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
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


def run(stage, mutants, numbers):
    """Runs a stage against each mutant, and yields those that fail with "caught by STAGE" or "timed out"."""
    for command in (stage.build, stage.run):
        began = time.monotonic()
        passed, output = execute(command, stage.environment, None)
        if not passed:
            sys.exit(f"{output}\nmutants: the {stage.name} tests fail without a change")
    usual = time.monotonic() - began
    print(f"{stage.name}: {usual:.1f} s without a change, {len(mutants)} mutants", flush=True)
    with futures.ThreadPoolExecutor(stage.jobs) as pool:
        runs = {pool.submit(execute, stage.run, stage.environment | {"MUTANT": str(numbers[mutant.name])},
                            30 + 3 * usual): mutant for mutant in mutants}
        for number, done in enumerate(futures.as_completed(runs), 1):
            passed, name = done.result()[0], runs[done].name
            found = "timed out" if passed is None else "missed" if passed else f"caught by {stage.name}"
            print(f"{number}/{len(mutants)} {found}: {name}", flush=True)
            if not passed:
                yield name, found


def report(outcomes, patches, reasons):
    """Prints what was found; returns the reasons why that is not enough."""
    kinds = collections.Counter(outcomes.values())
    survivors = [name for name, outcome in outcomes.items() if outcome == "missed"]
    for name in survivors:
        print(f"missed: {name}  # {reasons[name]}" if name in reasons else f"missed: {name}")
    for name in [name for name, outcome in outcomes.items() if outcome == "timed out"]:
        print(f"timed out: {name}")
    for kind, count in sorted(kinds.items()):
        print(f"{kind}: {count}")
    faults = []
    if viable := len(outcomes) - kinds["unviable"]:
        share = 100 * (viable - len(survivors)) / viable
        print(f"{share:.1f} % of {viable} generated mutants are caught")
        if share < LEAST:
            faults.append(f"fewer than {LEAST} % are caught")
    print(f"{sum(is_caught(outcome) for outcome in patches.values())} of {len(patches)} made by hand are caught")
    if unlisted := [name for name in survivors if name not in reasons]:
        faults.append(f"{len(unlisted)} are missed and not in accepted.txt")
    if stale := [name for name in reasons if outcomes.get(name, "missed") != "missed"]:
        faults.append(f"accepted.txt names mutants that are not missed: {', '.join(stale)}")
    faults += [f"{name}: made by hand, and {outcome}" for name, outcome in patches.items() if not is_caught(outcome)]
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
    chosen = patches + mutants
    combination = Combination(chosen)
    combination.build()
    outcomes = {mutant.name: "unviable" for mutant in chosen if combination.numbers[mutant.name] in combination.unviable}
    for stage in STAGES:
        rest = [mutant for mutant in chosen if stage in mutant.stages and mutant.name not in outcomes]
        if rest:
            outcomes |= run(stage, rest, combination.numbers)
    patched, found = ({mutant.name: outcomes.get(mutant.name, "missed") for mutant in kind} for kind in (patches, mutants))
    if faults := report(found, patched, reasons):
        sys.exit("\n".join(f"mutants: {fault}" for fault in faults))


if __name__ == "__main__":
    main()
