# SPDX-License-Identifier: MIT OR Apache-2.0

"""Publishing and reading on the simulated CUDA driver: cases of the suite for GPU machines that need no array library."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[3]
SIMCUDA = pathlib.Path(os.environ.get("FRAMESHARE_TARGET", ROOT / "target" / "debug")).parent / "simcuda"
CASES = ["publish-driver", "publish-driver-errors", "reused-slots-by-address", "killed-exporter", "downloads"]


@pytest.mark.parametrize("name", CASES)
def test_case_passes_on_the_simulated_driver(name):
    if not (SIMCUDA / "libcuda.so.1").exists():
        pytest.skip(f"{SIMCUDA} has no driver: tests/simcuda/install.sh {SIMCUDA}")
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "gpu" / "python" / "suite.py", "--exact", name],
        env={**os.environ, "LD_LIBRARY_PATH": str(SIMCUDA), "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=200,
        check=False,
    )
    lines = [line for line in done.stdout.decode().splitlines() if line.startswith('{"suite"')]
    assert [json.loads(line)["result"] for line in lines] == ["pass"], done.stdout.decode()
