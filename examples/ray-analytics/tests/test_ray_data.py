# SPDX-License-Identifier: MIT OR Apache-2.0

"""The adapter to Ray Data, ray_data.py, with Ray on this machine."""

import os
import re
import subprocess
import sys
from pathlib import Path

import frameshare
import numpy as np
import pytest

import ray_data
from conftest import HERE, TOOL


def test_rows_have_key_and_image_and_end_with_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    images = [np.random.default_rng(seed).integers(0, 256, (4, 6, 3), np.uint8) for seed in range(3)]
    exporter = frameshare.create("cam0", format="RGB", width=6, height=4, slow_readers="queue")
    with exporter, frameshare.open("cam0", policy="lossless", reconnect=False) as stream:
        exporter.wait_for_reader(30)
        for image in images:
            exporter.publish(image)
        exporter.end()
        found = list(ray_data.rows(stream, "cam0", 2, None)) + list(ray_data.rows(stream, "cam0", 2, None))
    assert [row["sequence"] - found[0]["sequence"] for row in found] == [0, 1, 2]
    assert len({(row["stream"], row["session"]) for row in found}) == 1
    assert all(np.array_equal(row["image"], image) for row, image in zip(found, images, strict=True))


def test_ray_data_reads_next_frames_of_each_stream(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "XDG_RUNTIME_DIR": str(tmp_path),
        "PYTHONPATH": str(HERE.parent),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    exporters = [
        subprocess.Popen([TOOL, "publish", name, "--size", "320x180"], env=environment, stdout=subprocess.DEVNULL)
        for name in ("cam0", "cam1")
    ]
    try:
        command = [sys.executable, ray_data.__file__, "cam0", "cam1", "--frames", "20"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    finally:
        for exporter in exporters:
            exporter.kill()
            exporter.wait()
    assert done.returncode == 0, done.stderr[-2000:]
    lines = re.findall(r"^(cam[01]) (\d+) ([\d.]+)$", done.stdout, re.MULTILINE)
    for name in ("cam0", "cam1"):
        numbers = [int(number) for stream, number, _ in lines if stream == name]
        assert len(numbers) == len(set(numbers)) == 20, done.stdout
    assert all(0 < float(brightness) < 255 for _, _, brightness in lines)
