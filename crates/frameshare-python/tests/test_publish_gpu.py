# SPDX-License-Identifier: MIT OR Apache-2.0

"""Publishing and reading on the simulated CUDA driver: cases of the suite for GPU machines that need no array library."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from support import ROOT, simulated_driver

CASES = [
    "publish-driver",
    "publish-driver-errors",
    "reused-slots-by-address",
    "killed-exporter",
    "downloads",
    "ended-stream",
    "ended-stream-of-reused-handle",
    "freed-source",
    "double-buffered-writer",
    "two-gpus",
    "captures-probe",
    "captures-clone",
    "captures-copy",
    "captures-export",
    "captures-download",
    "captures-announced",
    "slot-of-another-thread",
    "published-from-another-context",
    "forked-child-after-another-library",
    "forked-child-after-frameshare",
    "forked-child-exits-at-once",
]


def run(name, environment):
    return subprocess.run(
        [sys.executable, ROOT / "tests" / "gpu" / "python" / "suite.py", "--exact", name],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=200,
        check=False,
    )


@pytest.fixture(scope="module")
def runs(request):
    """Run the selected cases side by side: they mostly sleep."""
    names = [item.callspec.params["name"] for item in request.session.items if item.module is request.module]
    # Read here: pytest changes its variables while the cases run.
    environment = {
        **os.environ,
        **simulated_driver(),
        "PYTHONPATH": os.pathsep.join(sys.path),
        # As the real driver does.
        "SIMCUDA_ADVERSARY": "1",
        "SIMCUDA_DEVICES": "2",
    }
    with ThreadPoolExecutor(max_workers=4) as pool:
        yield {name: pool.submit(run, name, environment) for name in names}


@pytest.mark.parametrize("name", CASES)
def test_case_passes_on_the_simulated_driver(name, runs):
    done = runs[name].result()
    lines = [line for line in done.stdout.decode().splitlines() if line.startswith('{"suite"')]
    assert [json.loads(line)["result"] for line in lines] == ["pass"], done.stdout.decode()
