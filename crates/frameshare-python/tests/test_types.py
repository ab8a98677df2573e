# SPDX-License-Identifier: MIT OR Apache-2.0

"""Types: the stubs are those of the module, and their use in tests and examples is right."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from support import ROOT

TESTS = ROOT / "crates" / "frameshare-python" / "tests"
EXAMPLES = sorted((ROOT / "examples" / "python").glob("*.py"))
TYPED = [TESTS / f"test_{name}.py" for name in ("async", "discovery", "examples_loops", "fork", "many", "types", "waits")]


def check(folder: Path, *command: str) -> None:
    done = subprocess.run([sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def need(tool: str) -> None:
    if importlib.util.find_spec(tool) is None:
        pytest.skip(f"{tool} is not installed")


def mypy(folder: Path, *arguments: str) -> None:
    check(folder, "mypy", "--strict", "--cache-dir", str(folder / "mypy"), *arguments)


def test_mypy_accepts_package_and_uses(tmp_path: Path) -> None:
    need("mypy")
    mypy(tmp_path, "-p", "frameshare")
    # The examples use libraries that are not here.
    loose = ["--allow-untyped-calls", "--ignore-missing-imports", "--allow-subclassing-any", "--no-warn-unused-ignores"]
    mypy(tmp_path, *loose, "--scripts-are-modules", *map(str, [*TYPED, *EXAMPLES]))


def test_mypy_refuses_wrong_uses(tmp_path: Path) -> None:
    need("mypy")
    wrong = tmp_path / "wrong.py"
    for use in [
        "frameshare.open(7)",
        'frameshare.open("cam0", policy="all")',
        'for name, frame in frameshare.open_many(["a"], by="synchronized"): frame.pts',
        'frameshare.open("cam0").next().pts',
    ]:
        wrong.write_text(f"import frameshare\n{use}\n")
        with pytest.raises(AssertionError, match="wrong.py:2: error"):
            mypy(tmp_path, str(wrong))


def test_stubs_are_those_of_the_module(tmp_path: Path) -> None:
    need("mypy")
    check(tmp_path, "mypy.stubtest", "frameshare")


def test_pyright_accepts_package_and_uses(tmp_path: Path) -> None:
    need("pyright")
    check(tmp_path, "pyright", "--pythonpath", sys.executable, *map(str, [*TYPED, *EXAMPLES]))
    check(tmp_path, "pyright", "--pythonpath", sys.executable, "--verifytypes", "frameshare", "--ignoreexternal")
