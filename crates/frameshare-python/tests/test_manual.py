# SPDX-License-Identifier: MIT OR Apache-2.0
"""The blocks of docs/python.md: each runs as a program, beside exporters of the streams cam0 and cam1."""

import importlib.util
import re

import pytest
from conftest import ROOT, TOOL, run_well

PAGE = (ROOT / "docs" / "python.md").read_text()
BLOCKS = re.findall(r"^```python(?: needs=(\w+))?\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def has_gpu():
    if not importlib.util.find_spec("torch"):
        return False
    import torch

    return torch.cuda.is_available()


@pytest.mark.parametrize("needs, block", BLOCKS, ids=range(len(BLOCKS)))
def test_block_of_manual_runs(processes, needs, block):
    if needs == "cuda" and not has_gpu():
        pytest.skip("needs PyTorch and a GPU")
    assert needs in ("", "cuda"), needs
    folder = processes.folder
    (folder / "frameshare").mkdir(mode=0o700)
    for name in ("cam0", "cam1"):
        processes.publish("--size", "1280x720", path=str(folder / "frameshare" / f"{name}.sock"))
    output = run_well(block, XDG_RUNTIME_DIR=str(folder))
    assert "print(" not in block or output.strip()


def test_manual_has_all_formats_of_conversion():
    from frameshare._rgb._formats import FORMATS

    row = re.search(r"^\| formats \| (.*?); others raise", PAGE, re.MULTILINE)
    assert set(row[1].split(", ")) == set(FORMATS)


def test_tool_of_tests_is_built():
    assert TOOL.exists(), f"{TOOL} is missing: cargo build -p frameshare-tools"
