# SPDX-License-Identifier: MIT OR Apache-2.0
"""Cases: the examples and the blocks of the manual that need a GPU, as programs of their own."""

import contextlib
import pathlib
import re
import subprocess
import sys
import threading
import time

import support
from cases import case

ROOT = pathlib.Path(__file__).parents[3]
WIDTH, HEIGHT = 1280, 720


def paint(torch, slot):
    """Write the left half black and the right half white, in NV12 of the limited range."""
    luma, chroma = (torch.from_dlpack(plane) for plane in slot.planes)
    luma[:, : WIDTH // 2] = 16
    luma[:, WIDTH // 2 :] = 235
    chroma.fill_(128)


@contextlib.contextmanager
def camera():
    """Publish the stream cam0 in GPU memory until the end of the block."""
    import frameshare

    torch = support.Torch().torch
    ended, errors = threading.Event(), []

    def publish(exporter):
        try:
            while not ended.is_set():
                with exporter.acquire() as slot:
                    paint(torch, slot)
                time.sleep(0.005)
        except Exception as error:
            errors.append(error)

    with frameshare.create("cam0", format="NV12", width=WIDTH, height=HEIGHT, device=0) as exporter:
        thread = threading.Thread(target=publish, args=(exporter,))
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
    if errors:
        raise errors[0]


def output_of(*arguments, timeout=100):
    """Run Python in a process of its own, and return its output."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout.splitlines()


def example(name, *arguments):
    return output_of(ROOT / "examples" / "python" / name, *arguments)


@case("example-edges", 120)
def example_edges():
    with camera():
        lines = example("edges.py", "cam0", "--frames", 3)
    found = [re.fullmatch(r"frame \d+ on cuda:0: (\d+\.\d)% edges, \d+\.\d% moving", line) for line in lines]
    assert len(found) == 3 and all(line and 0 < float(line[1]) < 10 for line in found), lines
    return {"frames": 3}


@case("example-cuda-graph", 120)
def example_cuda_graph():
    with camera():
        lines = example("cuda_graph.py", "cam0", "--frames", 20)
    colors = [tuple(map(float, re.findall(r"(?:red|green|blue) (\d\.\d+)", line))) for line in lines]
    # Half of the pixels are 0, half are 1.
    assert len(colors) == 20, lines
    assert all(len(row) == 3 and max(abs(value - 0.5) for value in row) < 0.01 for row in colors), lines
    return {"frames": 20}


@case("example-publish-tensor", 120)
def example_publish_tensor():
    import frameshare

    torch = support.Torch().torch
    command = [sys.executable, str(ROOT / "examples" / "python" / "publish_tensor.py"), "pattern", "--frames", "30"]
    with subprocess.Popen(command) as process:
        try:
            numbers = []
            with frameshare.open("pattern", policy="lossless", device=0, connection_timeout=60, reconnect=False) as stream:
                for frame in stream:
                    number = dict(frame.metas)["pattern"]["number"]
                    image = torch.from_dlpack(frame.plane(0))
                    assert frame.device == "cuda:0"
                    assert image[3, 5].tolist() == [(8 + phase + number) % 256 for phase in (0, 85, 170)]
                    numbers.append(number)
                    del image, frame
            assert numbers == list(range(30)), numbers
        finally:
            process.kill()
    return {"frames": 30}


@case("manual-blocks-on-the-gpu", 180)
def manual_blocks():
    blocks = []
    for page in ("python.md", "python-publish.md"):
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        blocks += re.findall(r"^```python needs=cuda\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 2, "the manual has no blocks for a GPU"
    with camera():
        for block in blocks:
            output = output_of("-c", block)
            assert "print(" not in block or output, block
    return {"blocks": len(blocks)}
