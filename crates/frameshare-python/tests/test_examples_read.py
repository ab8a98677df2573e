# SPDX-License-Identifier: MIT OR Apache-2.0
"""The examples that read a stream."""

import importlib.util
import os
import re
import subprocess
import sys

import pytest
from conftest import ROOT

FOLDER = ROOT / "examples" / "python"
LIBRARIES = {
    "first_frame.py": "numpy",
    "motion.py": "numpy",
    "edges.py": "torch",
    "opencv_display.py": "cv2",
    "cuda_graph.py": "torch",
}


def has(library):
    return importlib.util.find_spec(library) is not None


def has_gpu():
    if not has("torch"):
        return False
    import torch

    return torch.cuda.is_available()


def run(name, *arguments, **environment):
    """Runs an example; returns its status and its output."""
    done = subprocess.run(
        [sys.executable, FOLDER / name, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout


def lines(name, *arguments):
    if not has(LIBRARIES[name]):
        pytest.skip(f"needs {LIBRARIES[name]}")
    status, output = run(name, *arguments)
    assert status == 0, output
    return output.splitlines()


def test_first_frame_prints_planes(processes):
    processes.publish("--format", "I420", "--size", "64x48")
    output = lines("first_frame.py", processes.path(), "--frames", "2")
    assert len(output) == 8 and re.fullmatch(r"frame \d+: I420 64x48, bt601", output[0]), output
    assert output[1].startswith("  plane 0: (48, 64) uint8, mean ")
    assert output[3].startswith("  plane 2: (24, 32) uint8, mean ")


def test_motion_scores_pixels_that_move(processes):
    processes.pipeline(
        "videotestsrc is-live=true pattern=ball motion=sweep ! video/x-raw,format=NV12,width=320,height=240"
        f" ! framesharesink socket-path={processes.path()}"
    )
    output = lines("motion.py", processes.path(), "--frames", "9", "--threshold", "3")
    scores = [int(re.search(r"(\d+)% of the image moves", line)[1]) for line in output]
    assert len(scores) == 8 and 0 < max(scores) < 50, output


def test_edges_are_found(processes):
    processes.publish("--size", "320x240")
    output = lines("edges.py", processes.path(), "--frames", "3", "--device", "cpu")
    pattern = r"frame \d+ on cpu: (\d+\.\d)% edges, (\d+\.\d)% moving"
    shares = [re.fullmatch(pattern, line) for line in output]
    assert len(shares) == 3 and all(0 < float(found[1]) < 50 for found in shares), output


def test_opencv_saves_frame_in_its_colors(processes, tmp_path):
    processes.pipeline(
        "videotestsrc is-live=true pattern=blue ! video/x-raw,format=RGB,width=64,height=48"
        f" ! framesharesink socket-path={processes.path()}"
    )
    lines("opencv_display.py", processes.path(), "--frames", "1", "--save", str(tmp_path / "frame.png"))
    import cv2

    image = cv2.imread(str(tmp_path / "frame.png"))
    assert image.shape == (48, 64, 3) and (image == (255, 0, 0)).all()


def test_cuda_graph_names_stream_in_host_memory(processes):
    if not has_gpu():
        pytest.skip("needs PyTorch and a GPU")
    processes.publish("--size", "320x240")
    status, output = run("cuda_graph.py", processes.path(), "--frames", "3")
    assert status == 1 and "has frames in host memory" in output, output


@pytest.mark.parametrize("name", LIBRARIES)
def test_example_says_how_it_is_called(name):
    if not has(LIBRARIES[name]) or (name == "cuda_graph.py" and not has_gpu()):
        pytest.skip("needs a library or a GPU")
    status, output = run(name, "--help")
    assert status == 0 and "--frames" in output and "stream" in output, output


@pytest.mark.parametrize("name", LIBRARIES)
def test_example_without_its_library_says_so(name, tmp_path):
    library = LIBRARIES[name]
    (tmp_path / f"{library}.py").write_text(f"raise ImportError('no {library}')")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    status, output = run(name, "--help", PYTHONPATH=path)
    assert status == 1 and re.fullmatch(rf"{name} needs .*: pip install .*\n", output), output


def test_readme_lists_examples_that_exist():
    text = (FOLDER / "README.md").read_text()
    listed = set(re.findall(r"^\| \[(\w+\.py)\]", text, re.MULTILINE))
    assert set(LIBRARIES) <= listed <= {path.name for path in FOLDER.glob("*.py")}
