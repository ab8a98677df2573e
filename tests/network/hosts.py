# SPDX-License-Identifier: MIT OR Apache-2.0
"""Hosts for tests: a network namespace and a folder of streams for each, and a cable."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
TOOL = TARGET / "debug" / "frameshare"
PATIENCE = 90
"""Seconds after which a test that waits fails. Nothing takes that long."""


class Failed(Exception):
    pass


class Skipped(Exception):
    pass


def run(*command, **options):
    """Runs a command that has to succeed; returns its output."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, **options)
    if done.returncode != 0:
        raise Failed(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def wait_for(what, condition):
    """Waits until a condition is true; returns its value."""
    end = time.monotonic() + PATIENCE
    while not (value := condition()):
        if time.monotonic() > end:
            raise Failed(f"it does not come true within {PATIENCE} s: {what}")
        time.sleep(0.05)
    return value


class Host:
    """Processes in a network namespace, which end with it."""

    def __init__(self, name, folder):
        self.name, self.folder, self.running = name, folder, []
        folder.mkdir(mode=0o700)
        plugins = {
            "GST_PLUGIN_PATH": str(TARGET / "gstreamer-1.0"),
            "GST_REGISTRY": str(folder.parent / "registry"),
        }
        self.environment = {**os.environ, **plugins, "XDG_RUNTIME_DIR": str(folder), "PYTHONUNBUFFERED": "1"}
        self.environment.pop("FRAMESHARE_PATH", None)

    def start(self, name, *command):
        """Starts a command; its output goes to NAME.log."""
        words = ["ip", "netns", "exec", self.name, *map(str, command)]
        with open(self.log(name), "w") as log:
            process = subprocess.Popen(
                words, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        self.running.append(process)
        return process

    def launch(self, name, pipeline):
        """Starts a pipeline of GStreamer."""
        return self.start(name, "gst-launch-1.0", "-q", *pipeline.split())

    def log(self, name):
        return self.folder / f"{name}.log"

    def lines(self, name):
        """Returns the complete lines that a command has printed."""
        return self.log(name).read_text().split("\n")[:-1]

    def is_shared(self, stream):
        """Returns whether an exporter answers."""
        command = ["ip", "netns", "exec", self.name, TOOL, "info", stream]
        return subprocess.run(command, env=self.environment, capture_output=True).returncode == 0

    def wait_for_stream(self, stream, process):
        """Waits until a process shares a stream."""
        wait_for(stream, lambda: self.is_shared(stream) or process.poll() is not None)
        if process.poll() is not None:
            logs = "".join(log.read_text()[-500:] for log in self.folder.glob("*.log"))
            raise Failed(f"the process that shares {stream} has ended: {logs}")

    def stop(self, process):
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.running.remove(process)

    def stop_all(self):
        for process in list(self.running):
            self.stop(process)


class Hosts:
    """Two hosts in 198.18.0.0/30, and what they have made; as a context."""

    ADDRESSES = ("198.18.0.1", "198.18.0.2")

    def __enter__(self):
        if os.geteuid() != 0:
            raise Skipped("network namespaces need root")
        if shutil.which("ip") is None:
            raise Skipped("there is no command ip, of iproute2")
        self.folder = Path(tempfile.mkdtemp(prefix="fs-"))
        names = [f"fs{os.getpid()}{letter}" for letter in "ab"]
        self.hosts = [Host(name, self.folder / name[-1]) for name in names]
        try:
            for name in names:
                run("ip", "netns", "add", name)
            run(
                "ip",
                "link",
                "add",
                "veth0",
                "netns",
                names[0],
                "type",
                "veth",
                "peer",
                "name",
                "veth0",
                "netns",
                names[1],
            )
            for name, address in zip(names, self.ADDRESSES):
                run("ip", "-n", name, "address", "add", f"{address}/30", "dev", "veth0")
                run("ip", "-n", name, "link", "set", "veth0", "up")
                run("ip", "-n", name, "link", "set", "lo", "up")
        except Failed as error:
            self.__exit__()
            raise Skipped(f"this machine makes no network namespaces: {error}") from None
        return self

    def __exit__(self, *_):
        for host in self.hosts:
            host.stop_all()
            subprocess.run(["ip", "netns", "delete", host.name], stderr=subprocess.DEVNULL)
        shutil.rmtree(self.folder)


def main(tests):
    """Runs tests; prints PASS, FAIL or SKIP for each."""
    status = 0
    for name, test in tests.items():
        try:
            test()
            print(f"PASS {name}", flush=True)
        except Skipped as reason:
            print(f"SKIP {name}: {reason}", flush=True)
        except (Failed, AssertionError, subprocess.TimeoutExpired) as error:
            print(f"FAIL {name}: {error}", flush=True)
            status = 1
    sys.exit(status)
