# SPDX-License-Identifier: MIT OR Apache-2.0

"""Fixtures: exporters of test patterns of the command `frameshare`, in a folder of their own."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TARGET = Path(os.environ.get("FRAMESHARE_TARGET", ROOT / "target" / "debug"))
"""The folder of what cargo has built."""
SIMCUDA = TARGET.parent / "simcuda"
PATIENCE = 60.0
"""Seconds after which a test that waits fails. Nothing takes that long."""

Publish = Callable[..., "subprocess.Popen[bytes]"]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(autouse=True)
def runtime_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of names, short enough for a socket's path."""
    with tempfile.TemporaryDirectory(prefix="fs-") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        monkeypatch.delenv("FRAMESHARE_PATH", raising=False)
        yield Path(folder)


@pytest.fixture
def publish(runtime_folder: Path) -> Iterator[Publish]:
    """Starts exporters of a test pattern, and ends them after the test."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(name: str, *options: str, size: str = "64x48", rate: str = "200") -> subprocess.Popen[bytes]:
        command = [str(TARGET / "frameshare"), "publish", name, "--size", size, "--rate", rate, *options]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        processes.append(process)
        socket = runtime_folder / "frameshare" / f"{name}.sock"
        wait_until(lambda: socket.exists() or process.poll() is not None)
        return process

    yield start
    for process in processes:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a program in Python in a process of its own."""

    def start(program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        file = tmp_path / "program.py"
        file.write_text(program)
        command = [sys.executable, str(file), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE)

    return start


def simulated_driver() -> dict[str, str]:
    """Environment in which a process finds the simulated driver first, and its other libraries as before."""
    if not (SIMCUDA / "libcuda.so.1").exists():
        pytest.fail(f"there is no simulated driver: run tests/simcuda/install.sh {SIMCUDA}")
    folders = [str(SIMCUDA), os.environ.get("LD_LIBRARY_PATH")]
    return {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, folders))}


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it does not come true"
        time.sleep(0.005)
