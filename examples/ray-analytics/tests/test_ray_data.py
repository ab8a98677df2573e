# SPDX-License-Identifier: MIT OR Apache-2.0

"""The adapter to Ray Data, examples/adapters/ray_data.py, with Ray on this machine."""

import os
import re
import subprocess
import sys
from pathlib import Path

from conftest import TOOL

ADAPTER = Path(__file__).resolve().parents[2] / "adapters/ray_data.py"


def test_ray_data_reads_next_frames_of_each_stream(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "XDG_RUNTIME_DIR": str(tmp_path),
        "PYTHONPATH": str(ADAPTER.parent),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    exporters = [
        subprocess.Popen([TOOL, "publish", name, "--size", "320x180"], env=environment, stdout=subprocess.DEVNULL)
        for name in ("cam0", "cam1")
    ]
    try:
        command = [sys.executable, str(ADAPTER), "cam0", "cam1", "--frames", "20"]
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
