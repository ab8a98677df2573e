# SPDX-License-Identifier: MIT OR Apache-2.0

"""Fixtures: a cluster of three nodes, each with a camera, for the tests of a module."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
TOOL = os.environ.get("FRAMESHARE_TOOL", "frameshare")
PATIENCE = 120.0
"""Seconds after which a test that waits fails. Nothing takes that long."""

# This process, and workers, import the package and the analyses of the tests.
sys.path.insert(0, str(HERE.parent))
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), str(HERE)])


def wait_until(condition: Callable[[], bool], what: str) -> float:
    """Waits for a condition; returns the seconds it took."""
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() - begin < PATIENCE, f"it does not come true: {what}"
        time.sleep(0.05)
    return time.monotonic() - begin


@pytest.fixture(autouse=True)
def no_streams_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FRAMESHARE_PATH", raising=False)
