#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Records of the long targets of the Makefile, and docs/compatibility.md, which is made from them.

    tools/results.py run TARGET[/PART] COMMAND...   runs COMMAND, records its result, and writes the page
    tools/results.py page                           writes the page
    tools/results.py check                          exit status 1 if the page differs from the records

`--root FOLDER` before these is another checkout. A record is tests/results/TARGET[.PART].json.
Counted are lines "PASS name", "FAIL name" and "SKIP name: reason"; without lines of the first two
kinds, the summaries of libtest and pytest, for which a test that printed the third has passed.
Lines "VERSION name value" say what was tested with. A run in which nothing was tested, or of
selected tests alone (PYTEST), leaves the record as it is.
"""

import datetime
import json
import os
import pathlib
import platform
import re
import subprocess
import sys

MARK = "<!-- made by tools/results.py page -->"
OWN = [":!docs/compatibility.md", ":!tests/results"]
SUMMARIES = {
    "passed": re.compile(r"\b(\d+) passed\b"),
    "failed": re.compile(r"\b(\d+) (?:failed|errors?)\b"),
    "skipped": re.compile(r"\b(\d+) (?:skipped|ignored)\b"),
}


def counts(lines):
    """Numbers of tests by result."""
    words = {"PASS": "passed", "FAIL": "failed", "SKIP": "skipped"}
    found = dict.fromkeys(words.values(), 0)
    for line in lines:
        if match := re.match(r"(PASS|FAIL|SKIP) \S", line):
            found[words[match[1]]] += 1
    if found["passed"] or found["failed"]:
        return found
    skips = found["skipped"]
    for line in lines:
        if re.search(r"test result: |^=* ?\d+ (passed|failed|skipped).* in [\d.]+s", line):
            for name, pattern in SUMMARIES.items():
                found[name] += sum(map(int, pattern.findall(line)))
    found["passed"] = max(found["passed"] - skips, 0)
    return found


def output(*command, cwd):
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def commit(root):
    """The commit; with a plus sign if files beside records and page are changed."""
    name = output("git", "rev-parse", "--short=8", "HEAD", cwd=root)
    if name is None:
        return "no commit"
    return name + ("+" if output("git", "status", "--porcelain", "--", ".", *OWN, cwd=root) else "")


def system():
    """Names and versions of this machine."""
    try:
        name = platform.freedesktop_os_release()
        return f"{name['NAME'].split()[0]} {name.get('VERSION_ID', '')}".strip()
    except (OSError, KeyError):
        return "Linux"


def record_file(root, target):
    return root / "tests/results" / f"{target.replace('/', '.')}.json"


def run(root, target, command):
    """Runs a command, whose output is shown and whose result is recorded; returns its status."""
    before = commit(root)
    lines = []
    try:
        pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
        process = subprocess.Popen(command, cwd=root, **pipe)
    except OSError as error:
        print(f"results: {command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    try:
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    except KeyboardInterrupt:  # The command got the signal, too.
        process.wait()
        print(f"results: {target} is not recorded: it was interrupted")
        return 130
    status = process.wait()
    found = counts(lines)
    if os.environ.get("PYTEST"):
        print(f"results: {target} is not recorded: PYTEST selects tests")
    elif status == 0 and not found["passed"] and found["skipped"]:
        print(f"results: {target} is not recorded: nothing was tested")
    else:
        versions = dict(re.findall(r"^VERSION (\S+) (.+)$", "".join(lines), re.MULTILINE))
        record = {
            "target": target,
            "result": "failed" if status or found["failed"] else "passed",
            **found,
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
            "commit": before,
            "system": f"{system()}, Linux {platform.release().split('-')[0]}, {platform.machine()}",
            "versions": versions,
        }
        file = record_file(root, target)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(record, indent=2) + "\n")
        (root / "docs/compatibility.md").write_text(page(root))
    return status if status >= 0 else 128 - status


def targets(root):
    """Description of each target of the Makefile that is recorded, by its name, and those of its parts."""
    text = (root / "Makefile").read_text()
    rules = re.findall(r"^([a-z0-9-]+):.*? ## (.*)\n((?:\t.*\n)+)", text, re.MULTILINE)
    return {name: about for name, about, recipe in rules if f"results.py run {name}" in recipe}


def read_records(root):
    files = sorted((root / "tests/results").glob("*.json"))
    return [json.loads(file.read_text()) for file in files]


def outcome(numbers):
    """A cell such as "passed (12, 1 skipped)"."""
    details = [str(numbers["passed"])] if numbers["passed"] else []
    details += [f"{numbers[name]} {name}" for name in ("failed", "skipped") if numbers[name]]
    result = "**failed**" if numbers["result"] == "failed" else "passed"
    return f"{result} ({', '.join(details)})" if details else result


def row(*cells):
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def target_rows(root):
    known, records = targets(root), read_records(root)
    for name, about in known.items():
        # Parentheses of a description hold options.
        about = re.sub(r" \([^()]*\)|, some \d+ \S+$", "", about)
        own = [record for record in records if record["target"].split("/")[0] == name]
        if not own:
            yield row(f"`make {name}`", about, "no record", "", "", "")
        for record in own:
            part = record["target"].partition("/")[2]
            versions = ", ".join(f"{key} {value}" for key, value in record["versions"].items())
            told = ", ".join(filter(None, [record["system"], versions]))
            yield row(f"`make {name}`" + (f" {part}" if part else ""), about, outcome(record), record["date"],
                      record["commit"], told)
    if unknown := {record["target"] for record in records if record["target"].split("/")[0] not in known}:
        raise SystemExit(f"results: no target of the Makefile records {', '.join(sorted(unknown))}: "
                         "remove its file in tests/results, or name it in the Makefile")


def gpu_cases(root):
    """The last result of each case of each GPU suite: {suite: {case: (result, date, machine)}}."""
    suites = {}
    dated = re.compile(r"\d{4}-\d\d-\d\d")
    files = [file for file in (root / "tests/gpu/results").glob("*.jsonl") if dated.search(file.name)]
    for file in sorted(files, key=lambda file: (dated.search(file.name)[0], file.name)):
        date = dated.search(file.name)[0]
        machine = "GPU"
        for line in file.read_text().splitlines():
            entry = json.loads(line)
            if "platform" in entry:
                gpus = entry["platform"]["gpus"]
                count = f"{len(gpus)} × " if len(gpus) > 1 else ""
                machine = f"{count}{gpus[0] if gpus else 'no GPU'}, driver {entry['platform']['driver']}"
            result = entry.get("result")
            if "suite" not in entry or result not in ("pass", "fail", "skip"):
                continue
            # A suite with a filter, such as gst-nvdec/new-sizes, is summed up under that name.
            suite, _, selected = entry["suite"].partition("/")
            if not selected:
                suites.setdefault(suite, {})[entry.get("case")] = (result, date, machine)
    for cases in suites.values():
        if len(cases) > 1:
            cases.pop(None, None)
    return suites


def gpu_rows(root):
    for suite, cases in sorted(gpu_cases(root).items()):
        results = [result for result, _, _ in cases.values()]
        numbers = {"passed": results.count("pass"), "failed": results.count("fail"), "skipped": results.count("skip")}
        numbers["result"] = "failed" if numbers["failed"] else "passed"
        if not numbers["passed"] and not numbers["failed"]:
            continue
        failed = ", ".join(sorted(str(case) for case, (result, _, _) in cases.items() if result == "fail" and case))
        machines = "; ".join(sorted({machine for _, _, machine in cases.values()}))
        yield row(f"`{suite}`", outcome(numbers) + (f": {failed}" if failed else ""),
                  max(date for _, date, _ in cases.values()), machines)


def page(root):
    manifest = (root / "Cargo.toml").read_text()
    rust = re.search(r'^rust-version = "(.*)"', manifest, re.MULTILINE)[1]
    lines = [
        "# Compatibility",
        "",
        MARK,
        "",
        "| | supported |",
        "| --- | --- |",
        row("operating system", "Linux; packages for Debian 12, Debian 13 and Ubuntu 24.04 ([install](install.md))"),
        row("architecture", "x86-64; aarch64 (wheels and packages are built; engine and elements are tested on an emulated machine, with pages of 4 and 16 KiB)"),
        row("GStreamer", "1.22 and newer; GPU memory in elements: 1.24 and newer"),
        row("Rust", f"{rust} and newer, to build"),
        row("Python", "3.11 and newer"),
        row("GPU", "NVIDIA, optional, found at run time ([GPU](gpu.md))"),
        "",
        "## Last results",
        "",
        "Each of these targets records its result when it ends, in [tests/results](../tests/results). `make test` is not "
        "among them: hosted CI runs it for each commit. A plus sign: files were changed beside that commit.",
        "",
        "| command | | last result (tests) | date | commit | with |",
        "| --- | --- | --- | --- | --- | --- |",
        *target_rows(root),
        "",
        "## GPU suites",
        "",
        "The last result of each case in [tests/gpu/results](../tests/gpu/results), on whichever day it ran; "
        "[the suites](../tests/gpu/README.md).",
        "",
        "| suite | last result (cases) | last date | GPU |",
        "| --- | --- | --- | --- |",
        *gpu_rows(root),
    ]
    return "\n".join(lines) + "\n"


def main(arguments):
    root = pathlib.Path(__file__).resolve().parent.parent
    if arguments[:1] == ["--root"] and len(arguments) > 1:
        root, arguments = pathlib.Path(arguments[1]).resolve(), arguments[2:]
    match arguments:
        case ["run", target, *command] if command:
            return run(root, target, command)
        case ["page"]:
            (root / "docs/compatibility.md").write_text(page(root))
            return 0
        case ["check"]:
            file = root / "docs/compatibility.md"
            if file.is_file() and file.read_text() == page(root):
                return 0
            print("results: docs/compatibility.md differs from the records: run tools/results.py page", file=sys.stderr)
            return 1
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
