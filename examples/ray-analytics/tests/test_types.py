# SPDX-License-Identifier: MIT OR Apache-2.0

"""Types: mypy accepts package and tests in strict mode."""

import os
import subprocess
import sys
from pathlib import Path

from conftest import HERE


def test_mypy_accepts_package_and_tests(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--cache-dir",
        str(tmp_path),
        "frameshare_ray",
        "tests",
    ]
    environment = {**os.environ, "MYPYPATH": str(HERE)}
    done = subprocess.run(command, cwd=HERE.parent, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
