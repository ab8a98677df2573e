# SPDX-License-Identifier: MIT OR Apache-2.0

"""Types: the stubs are those of the module, and their use in tests and examples is right."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import frameshare
import pytest

from support import ROOT

TESTS = ROOT / "crates" / "frameshare-python" / "tests"
EXAMPLES = sorted((ROOT / "examples" / "python").glob("*.py"))
TYPED = [TESTS / f"test_{name}.py" for name in ("async", "discovery", "examples_loops", "fork", "many", "types", "waits")]

WRONG = [
    "frameshare.open(7)",
    'frameshare.open("cam0", policy="all")',
    'for name, frame in frameshare.open_many(["a"], by="synchronized"): print(frame.pts)',
    'frameshare.open("cam0").next().pts',
]


def check(folder: Path, *command: str) -> None:
    done = subprocess.run([sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def need(tool: str) -> None:
    if importlib.util.find_spec(tool) is None:
        pytest.skip(f"{tool} is not installed")


def mypy_config(folder: Path) -> str:
    """The package calls libraries of the application, which are not here."""
    config = folder / "mypy.ini"
    config.write_text("[mypy]\n" + "".join(f"[mypy-{name}.*]\nignore_missing_imports = True\n" for name in ("cupy", "torch")))
    return str(config)


def mypy(folder: Path, *arguments: str) -> None:
    common = ["--strict", "--config-file", mypy_config(folder), "--cache-dir", str(folder / "mypy")]
    check(folder, "mypy", *common, *arguments)


def test_mypy_accepts_package_and_uses(tmp_path: Path) -> None:
    need("mypy")
    mypy(tmp_path, "-p", "frameshare")
    # The examples use libraries that are not here.
    loose = ["--allow-untyped-calls", "--allow-untyped-decorators", "--ignore-missing-imports", "--allow-subclassing-any", "--no-warn-unused-ignores"]
    mypy(tmp_path, *loose, "--scripts-are-modules", *map(str, [*TYPED, *EXAMPLES]))


def test_mypy_refuses_wrong_uses(tmp_path: Path) -> None:
    need("mypy")
    wrong = tmp_path / "wrong.py"
    wrong.write_text("\n".join(["import frameshare", *WRONG]))
    with pytest.raises(AssertionError) as refused:
        mypy(tmp_path, str(wrong))
    for line in range(2, 2 + len(WRONG)):
        assert f"wrong.py:{line}: error" in str(refused.value)


def test_stubs_are_those_of_the_module(tmp_path: Path) -> None:
    need("mypy")
    # Only the extension has a stub file.
    # A slot of the buffer protocol has this name since 3.12; defaults that are no literals have no value at run time.
    (tmp_path / "allowed").write_text("frameshare._rgb.*\nframeshare._frameshare.__all__\n.*__buffer__\nframeshare._frameshare.open\n")
    check(tmp_path, "mypy.stubtest", "frameshare", "--mypy-config-file", mypy_config(tmp_path),
          "--allowlist", "allowed", "--ignore-unused-allowlist")


def pyright(folder: Path, *places: Path) -> None:
    config = {
        "include": [os.path.relpath(place, folder) for place in places],
        "exclude": [],
        "extraPaths": [str(TESTS)],
        # The examples use libraries that are not here.
        "reportMissingImports": False,
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(config))
    check(folder, "pyright", "--pythonpath", sys.executable, "-p", "pyrightconfig.json")


def test_pyright_accepts_package_and_uses(tmp_path: Path) -> None:
    need("pyright")
    pyright(tmp_path, Path(frameshare.__file__).parent, *TYPED, *EXAMPLES)


def test_pyright_refuses_wrong_uses(tmp_path: Path) -> None:
    need("pyright")
    wrong = tmp_path / "wrong.py"
    wrong.write_text("\n".join(["import frameshare", *WRONG]))
    with pytest.raises(AssertionError) as refused:
        pyright(tmp_path, wrong)
    for line in range(2, 2 + len(WRONG)):
        assert f"wrong.py:{line}:" in str(refused.value)
