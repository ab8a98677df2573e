# SPDX-License-Identifier: MIT OR Apache-2.0

"""Exporters in processes of their own, and programs of this package in others.

`FRAMESHARE_TARGET` is the folder of what cargo has built: target/debug of the checkout by default.
"""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).parents[3]
TARGET = pathlib.Path(os.environ.get("FRAMESHARE_TARGET", ROOT / "target" / "debug"))
TOOL = TARGET / "frameshare"
GPU_EXPORT = TARGET / "examples" / "gpu-export"
PLUGIN = TARGET.parent / "gstreamer-1.0"


class Processes:
    """Processes that end with the test."""

    def __init__(self, folder):
        self.folder = folder
        self.running = []

    def start(self, command, **environment):
        process = subprocess.Popen(
            [str(part) for part in command],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.running.append(process)
        return process

    def path(self, name="stream"):
        """The socket of a stream. Sockets have short paths."""
        return str(self.folder / f"{name}.sock")

    def publish(self, *options, path=None):
        """Publishes the pattern of the tool, for as long as the test runs."""
        path = path or self.path()
        process = self.start([TOOL, "publish", *options, path])
        wait_for(path, process)
        return process

    def pipeline(self, text, **environment):
        """Runs a pipeline of GStreamer."""
        words = text.replace("\n", " ").split()
        return self.start(["gst-launch-1.0", "-q", *words], GST_PLUGIN_PATH=str(PLUGIN), **environment)

    def end(self):
        for process in self.running:
            process.kill()
            process.wait()
            process.stdout.close()


def wait_for(path, process=None):
    """Waits until a socket is there, or its process has ended."""
    while not os.path.exists(path):
        assert process is None or process.poll() is None, process.communicate()[0].decode()
        time.sleep(0.01)


@pytest.fixture
def processes(tmp_path):
    running = Processes(tmp_path)
    yield running
    running.end()


def run(program, *arguments, **environment):
    """Runs a program of Python; returns its status and its output."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", program, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=600,
    )
    return done.returncode, done.stdout.decode()


def run_well(program, *arguments, **environment):
    """As `run`; the program has to succeed."""
    status, output = run(program, *arguments, **environment)
    assert status == 0, output
    return output


def faults(status):
    """Whether a process ended by a write to memory that it may not write."""
    return status in (-signal.SIGSEGV, -signal.SIGBUS)


def held_by_exporter(path):
    """Number of frames that readers of a stream hold, as its exporter counts them."""
    import json

    shown = subprocess.run([TOOL, "info", "--json", path], check=True, stdout=subprocess.PIPE).stdout
    return sum(reader["held"] for reader in json.loads(shown)["readers"])
