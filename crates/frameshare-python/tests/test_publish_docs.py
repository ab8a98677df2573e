# SPDX-License-Identifier: MIT OR Apache-2.0

"""The blocks of docs/python-publish.md and the example publish_tensor.py, run as programs."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import threading
import time

import frameshare
import numpy
import pytest

ROOT = pathlib.Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "python-publish.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python(?: needs=(\w+))?\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def has_gpu():
    if not importlib.util.find_spec("torch"):
        return False
    import torch

    return torch.cuda.is_available()


@pytest.fixture
def camera(tmp_path, monkeypatch):
    """The stream cam0, for as long as a test runs."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("FRAMESHARE_PATH", raising=False)
    ended = threading.Event()

    def publish():
        with frameshare.create("cam0", format="GRAY8", width=64, height=48) as exporter:
            while not ended.is_set():
                exporter.publish(numpy.zeros((48, 64), "uint8"))
                time.sleep(0.01)

    thread = threading.Thread(target=publish)
    thread.start()
    yield
    ended.set()
    thread.join()


@pytest.mark.usefixtures("camera")
@pytest.mark.parametrize(("needs", "block"), BLOCKS, ids=range(len(BLOCKS)))
def test_block_of_page_runs(needs, block):
    if needs == "cuda" and not has_gpu():
        pytest.skip("needs PyTorch and a GPU")
    done = subprocess.run(
        [sys.executable, "-c", block],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=120,
        check=False,
    )
    output = done.stdout.decode()
    assert done.returncode == 0, output
    assert "False" not in output
    assert "print(" not in block or output.strip()


def test_example_publishes_every_frame(tmp_path):
    path = str(tmp_path / "pattern.sock")
    process = subprocess.Popen(
        [sys.executable, ROOT / "examples" / "python" / "publish_tensor.py", path, "--frames", "5"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        with frameshare.open(path, policy="lossless", device="cpu", connection_timeout=60) as stream:
            for number, frame in enumerate(stream):
                pixels = numpy.array(frame.plane(0))
                expected = (3 + 5 + 85 + number) % 256
                assert (pixels.shape, pixels[3, 5, 1]) == ((360, 640, 3), expected)
                assert frame.metas == [("pattern", {"number": number})]
        assert number == 4
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
