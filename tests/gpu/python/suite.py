#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""The suite `python` of tests/gpu/run: the package frameshare with the array libraries of this machine.

    suite.py [CASE]...          all cases, or those whose names begin so
    suite.py --exact CASE...    those of these names
    suite.py --list

Each case is a process of its own with a time limit; a line of JSON gives its result. On the simulated driver or without
GStreamer, the cases that need more are skipped and counted.
"""

import concurrent.futures
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback

import cases
import conversions  # noqa: F401  its cases and those of examples are added to the others
import forks  # noqa: F401
import order  # noqa: F401
from support import Skip

HERE = os.path.dirname(os.path.abspath(__file__))
#: Exit statuses of a case, besides 0 and that of a traceback.
SKIPPED = 77


def run_case(name):
    """Run one case in this process."""
    case = cases.CASES[name]
    try:
        detail = case()
    except Skip as reason:
        print("detail:" + json.dumps(str(reason)), flush=True)
        os._exit(SKIPPED)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    print("detail:" + json.dumps(detail or {}), flush=True)
    # Threads and libraries may keep an interpreter from ending, which is no matter of the case.
    os._exit(0)


def start(name):
    """Run one case in a process of its own, and return the line of its result."""
    begin = time.monotonic()
    limit = cases.LIMITS.get(name, 60)
    with tempfile.TemporaryDirectory(prefix="fs") as folder:
        environment = {
            **os.environ,
            "XDG_RUNTIME_DIR": folder,
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": "1",
        }
        command = [sys.executable, os.path.join(HERE, "suite.py"), "--case", name]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=limit)
            status = process.returncode
        except subprocess.TimeoutExpired:
            # With the exporters that it has started.
            os.killpg(process.pid, 9)
            output, _ = process.communicate()
            status = None
    text = output.decode(errors="replace")
    line = {"suite": "python", "case": name, "result": "pass", "ms": round(1000 * (time.monotonic() - begin))}
    detail, rows = {}, []
    for row in text.splitlines():
        if row.startswith("detail:"):
            detail = json.loads(row.removeprefix("detail:"))
        else:
            rows.append(row)
    if rows:
        print("\n".join([f"--- {name}", *rows]), flush=True)
    if status == 0:
        line.update(detail)
    elif status == SKIPPED:
        line.update(result="skip", reason=detail)
    else:
        last = [row for row in text.strip().splitlines() if row][-1:] or ["no output"]
        why = f"stopped after {limit} s" if status is None else f"status {status}"
        line.update(result="fail", reason=f"{why}: {last[0][:300]}")
    return line


def main(arguments):
    if arguments[:1] == ["--case"]:
        run_case(arguments[1])
    if arguments[:1] == ["--list"]:
        print("\n".join(cases.CASES))
        return 0
    if arguments[:1] == ["--exact"]:
        wanted = [name for name in cases.CASES if name in arguments[1:]]
    else:
        wanted = [name for name in cases.CASES if not arguments or name.startswith(tuple(arguments))]
    if not wanted:
        print(f"no case begins with {' or '.join(arguments)}; --list names them")
        return 2
    counts = {"pass": 0, "fail": 0, "skip": 0}
    # Cases that measure the process or the GPU run alone, after the others.
    beside = [name for name in wanted if name not in cases.ALONE]
    alone = [name for name in wanted if name in cases.ALONE]
    lanes = int(os.environ.get("PYTHON_LANES") or max(4, min(8, len(os.sched_getaffinity(0)) // 2)))
    with concurrent.futures.ThreadPoolExecutor(max_workers=lanes) as pool:
        results = itertools.chain(pool.map(start, beside), map(start, alone))
        for line in results:
            counts[line["result"]] += 1
            print(json.dumps(line), flush=True)
    print(", ".join(f"{count} {result}" for result, count in counts.items()))
    # A suite that skips everything has shown nothing.
    return 1 if counts["fail"] or not counts["pass"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
