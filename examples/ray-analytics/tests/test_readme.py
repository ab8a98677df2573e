# SPDX-License-Identifier: MIT OR Apache-2.0

"""The commands of README.md, on one node."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import HERE, PATIENCE, TOOL, wait_until

ROOT = HERE.parents[2]
BLOCKS = re.findall(r"^    (.*)$", (HERE.parent / "README.md").read_text(), re.M)


class Shell:
    """Runs commands of the README, in a folder of their own, with the commands of this checkout."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = str(free.getsockname()[1])
        self.unused = [command for command in BLOCKS if not command.startswith(("pip ", "export "))]
        self.running: list[subprocess.Popen[bytes]] = []
        self.address = folder / "ray" / "ray_current_cluster"
        self.environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder), "RAY_TMPDIR": str(folder)}

    def words(self, begin: str) -> list[str]:
        """Returns the command that begins so, with this machine's names."""
        command = next(command for command in BLOCKS if command.startswith(begin))
        if command in self.unused:
            self.unused.remove(command)
        here = command.replace("HEAD", "127.0.0.1").replace("6379", self.port)
        first, *rest = shlex.split(here)
        return [{"frameshare": TOOL, "python3": sys.executable}.get(first, first), *rest]

    def start(self, begin: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            self.words(begin),
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.running.append(process)
        return process

    def run(self, begin: str, *options: str) -> str:
        done = subprocess.run(
            [*self.words(begin), *options],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def shell() -> Iterator[Shell]:
    with tempfile.TemporaryDirectory(prefix="fs-") as folder:
        shell = Shell(Path(folder))
        yield shell
        for process in reversed(shell.running):
            process.send_signal(signal.SIGTERM)  # Ray ends its own processes
            process.wait(PATIENCE)


def test_commands_of_the_readme_work(shell: Shell) -> None:
    head = shell.start("ray start --head")
    wait_until(lambda: head.poll() is not None or shell.address.exists(), "the head has started")
    assert head.poll() is None
    shell.start("frameshare publish")
    results = shell.run("python3 -m frameshare_ray", "--results", "3")
    assert [json.loads(line)["stream"] for line in results.splitlines()] == ["cam0"] * 3
    shell.run("python3 -m frameshare_ray", "--stop")
    # A second node of one machine cannot join with this one's address: test_cluster.py has them.
    assert [command.split("HEAD")[0] for command in shell.unused] == ["ray start --address "]


def test_figures_of_the_readme_can_be_measured() -> None:
    command = [sys.executable, "examples/ray-analytics/figures.py", "--tool", TOOL]
    short = ["--seconds", "2", "--cameras", "1", "--size", "320x240"]
    done = subprocess.run([*command, *short], cwd=ROOT, capture_output=True, text=True, timeout=4 * PATIENCE)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^3 cameras of 320x240 .*^2 \d.*^between nodes: \d", done.stdout, re.M | re.S), (
        done.stdout
    )
