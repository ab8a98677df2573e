#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Time from the start of a process to its end after one frame, for one process and for several that start at once.

Exporters run beside. All rows are measured in turn in each round, and printed as lines of JSON: median, least and most
of the time until the last process has ended, its ratio to that of as many bare CUDA contexts, and the medians of the
steps that the processes report, all since their start. Rows without a frame show the parts of the others: a bare
context, the start of GStreamer, the import of the Python package.
"""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../gpu/python"))
from support import RUNTIME, in_gst  # noqa: E402

PATIENCE = 60  # seconds until the processes of a measurement are killed
CUDA = "video/x-raw(memory:CUDAMemory)"
VIDEO = "videotestsrc is-live=true pattern=black ! video/x-raw,format=NV12,width=1280,height=720,framerate=200/1"

# Prints its steps like frameshare-first-frame.
PYTHON = """
import time
steps = {"main": time.monotonic_ns()}
import frameshare
steps["imported"] = time.monotonic_ns()
stream = frameshare.open(NAME, device=DEVICE)
steps["connected"] = time.monotonic_ns()
frame = stream.next()
steps["frame"] = time.monotonic_ns()
print(str(steps).replace("'", '"'))
"""


def launch(pipeline):
    """Return the command of a pipeline; inside the runtime, if there is one."""
    command = ["gst-launch-1.0", "-q", "--no-fault", *pipeline.split()]
    return in_gst(*command) if RUNTIME else command


def python(*program):
    return [sys.executable, "-c", *program]


def exporters(folder, gpu):
    """Return the pipelines of the exporters by the path of their socket."""
    pipelines = {"host": f"{VIDEO} ! framesharesink sync=false socket-path={folder}/host"}
    if gpu:
        uploaded = f"{VIDEO} ! cudaupload ! {CUDA}"
        pipelines["cuda"] = f"{uploaded} ! framesharesink sync=false socket-path={folder}/cuda"
        pipelines["cudaipc"] = f"{uploaded} ! cudaipcsink sync=false address={folder}/cudaipc"
    return pipelines


def rows(program, folder, gpu):
    """Return the command of each row."""
    outside = RUNTIME + folder
    commands = {"context": [program, "context"]} if gpu else {}
    commands["gstreamer"] = launch("fakesrc num-buffers=1 ! fakesink")
    commands["python"] = python("import frameshare")
    for memory in ["host", "cuda"] if gpu else ["host"]:
        caps = CUDA if memory == "cuda" else "video/x-raw"
        source = f"framesharesrc num-buffers=1 socket-path={folder}/{memory}"
        device = 0 if memory == "cuda" else "cpu"
        text = PYTHON.replace("NAME", repr(f"{outside}/{memory}")).replace("DEVICE", repr(device))
        commands[f"engine-{memory}"] = [program, memory, f"{outside}/{memory}"]
        commands[f"python-{memory}"] = python(text)
        commands[f"elements-{memory}"] = launch(f"{source} ! {caps} ! fakesink")
    if gpu:
        source = f"cudaipcsrc num-buffers=1 io-mode=import address={folder}/cudaipc"
        commands["cudaipc"] = launch(f"{source} ! fakesink")
    return commands


def once(command, count):
    """Run so many processes at once; return the milliseconds until the last one has ended, and those of the steps."""
    begins, processes, steps = [], [], {}
    for _ in range(count):
        begins.append(time.monotonic_ns())
        processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True))
    try:
        for begin, process in zip(begins, processes, strict=True):
            output, _ = process.communicate(timeout=PATIENCE)
            if process.returncode != 0:
                sys.exit(f"first-frame.py: status {process.returncode}: {' '.join(command)}")
            for step, at in json.loads(output or "{}").items():
                steps.setdefault(step, []).append((at - begin) / 1e6)
        return (time.monotonic_ns() - begins[0]) / 1e6, steps
    finally:
        for process in processes:
            process.kill()


def wait_for(path, exporter):
    end = time.monotonic() + PATIENCE
    while not os.path.exists(path):
        if exporter.poll() is not None or time.monotonic() > end:
            sys.exit(f"first-frame.py: the exporter of {path} has no socket")
        time.sleep(0.01)


def figures(name, count, runs, bare):
    """Return a row as a line of JSON."""
    times = [took for took, _ in runs]
    line = {"suite": "bench-first-frame", "case": name, "processes": count}
    line |= {"ms": statistics.median(times), "least_ms": min(times), "most_ms": max(times)}
    if bare:
        line["to_contexts"] = statistics.median(took / of for took, (of, _) in zip(times, bare, strict=True))
    for step in runs[0][1]:
        line[f"{step}_ms"] = statistics.median(at for _, steps in runs for at in steps[step])
    return json.dumps({key: round(value, 2) if isinstance(value, float) else value for key, value in line.items()})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default="target/release/frameshare-first-frame", help="(default: %(default)s)")
    parser.add_argument("--gpu", action="store_true", help="measure frames in GPU memory, too")
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds (default: %(default)s)")
    parser.add_argument("--readers", default="1,8", help="processes at once (default: %(default)s)")
    parser.add_argument("--rows", default="", help="starts of the names of the rows (default: all)")
    arguments = parser.parse_args()
    counts = [int(count) for count in arguments.readers.split(",")]

    # The runtime has the folder /tmp of its own.
    with tempfile.TemporaryDirectory(prefix="first-frame-", dir=f"{RUNTIME}/tmp") as outside:
        folder = outside.removeprefix(RUNTIME)
        commands = rows(os.path.abspath(arguments.program), folder, arguments.gpu)
        starts = ("context", *arguments.rows.split(","))
        commands = {name: command for name, command in commands.items() if name.startswith(starts)}
        if importlib.util.find_spec("frameshare") is None:
            print("first-frame.py: without rows of Python, which has no package frameshare", file=sys.stderr)
            commands = {name: command for name, command in commands.items() if not name.startswith("python")}
        running = {}
        try:
            for name, pipeline in exporters(folder, arguments.gpu).items():
                running[name] = subprocess.Popen(launch(pipeline), stdin=subprocess.DEVNULL)
            for name, exporter in running.items():
                wait_for(f"{outside}/{name}", exporter)
            runs = {}
            # The first round fills caches and is not counted.
            for number in range(arguments.rounds + 1):
                for row in [(name, count) for count in counts for name in commands]:
                    took = once(commands[row[0]], row[1])
                    if number > 0:
                        runs.setdefault(row, []).append(took)
            for (name, count), measured in runs.items():
                print(figures(name, count, measured, runs.get(("context", count))), flush=True)
        finally:
            for exporter in running.values():
                exporter.kill()
                exporter.wait()


if __name__ == "__main__":
    main()
