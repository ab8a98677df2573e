# SPDX-License-Identifier: MIT OR Apache-2.0

"""The examples with event loops and workers."""

import subprocess
import sys
from pathlib import Path

import pytest

from support import PATIENCE, ROOT, Publish, publish, runtime_folder, simulated_driver, wait_until

GPU_CAMERA = """
import frameshare, time
with frameshare.create("cam0", format="NV12", width=64, height=48, device=0) as exporter:
    while True:
        with exporter.acquire():
            pass
        time.sleep(0.005)
"""


def run(name: str, *arguments: str) -> list[str]:
    command = [sys.executable, str(ROOT / "examples" / "python" / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_asyncio_cameras_reads_four_cameras(publish: Publish) -> None:
    names = [f"cam{number}" for number in range(4)]
    for name in names:
        publish(name)
    lines = run("asyncio_cameras.py", *names, "--frames", "50")
    assert lines[-1] == "  ".join(f"{name} 50 frames" for name in names)


def numbers_of(lines: list[str]) -> list[int]:
    return [int(line.split()[1].rstrip(":")) for line in lines[1:]]


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_dataloader_gets_frames_from_workers(method: str, publish: Publish) -> None:
    publish("cam0")
    lines = run("dataloader.py", "cam0", "--frames", "8", "--workers", "2", "--method", method)
    numbers = numbers_of(lines)
    assert len(set(numbers)) == 16 and {number % 2 for number in numbers} == {0, 1}


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_dataloader_gets_frames_of_a_gpu(method: str, runtime_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", simulated_driver()["LD_LIBRARY_PATH"])
    with subprocess.Popen([sys.executable, "-c", GPU_CAMERA]) as exporter:
        try:
            socket = runtime_folder / "frameshare" / "cam0.sock"
            wait_until(lambda: socket.exists() or exporter.poll() is not None)
            lines = run("dataloader.py", "cam0", "--frames", "8", "--workers", "2", "--method", method)
        finally:
            exporter.kill()
    numbers = numbers_of(lines)
    assert len(set(numbers)) == 16 and {number % 2 for number in numbers} == {0, 1}
