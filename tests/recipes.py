#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs every block of docs/recipes.md, with what no machine has (cameras, displays) replaced.

    tests/recipes.py PLUGIN_FOLDER [RECIPE...]

Runs all without a RECIPE. Prints PASS, FAIL or SKIP and the recipe's name for each.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 60


def recipes():
    """Returns language and text of each block, by name."""
    text = (ROOT / "docs/recipes.md").read_text()
    blocks = re.findall(r"^```(sh|python|c) recipe=([\w-]+)\n(.*?)^```", text, re.M | re.S)
    assert len(blocks) == text.count("recipe="), "a block is not closed"
    return {name: (language, block) for language, name, block in blocks}


def interpreter(modules):
    """Returns a Python that has these modules, if there is one."""
    for python in ["python3", "/usr/bin/python3"]:
        found = subprocess.run([python, "-c", f"import {modules}"], capture_output=True)
        if found.returncode == 0:
            return python
    return None


class Failed(Exception):
    pass


class Skipped(Exception):
    pass


def compile_c(file, program, packages):
    """Compiles a program against these packages of pkg-config."""
    compiler = os.environ.get("CC", "cc")
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", *packages.split()], capture_output=True, text=True)
    if shutil.which(compiler) is None or flags.returncode != 0:
        raise Skipped(f"a C compiler and {packages} are needed")
    warnings = ["-Wall", "-Wextra", "-Werror"]
    done = subprocess.run(
        [compiler, *warnings, "-x", "c", file, "-x", "none", *flags.stdout.split(), "-o", program], capture_output=True, text=True
    )
    if done.returncode != 0:
        raise Failed(f"it does not compile: {done.stderr[-800:]}")


class Kitchen:
    """A folder to run recipes in, and their processes."""

    def __init__(self, folder, plugins):
        self.folder, self.blocks, self.running = folder, recipes(), []
        self.unused = set(self.blocks)
        self.environment = dict(
            os.environ,
            GST_PLUGIN_PATH=str(plugins),
            GST_REGISTRY=str(folder / "registry.bin"),
            XDG_RUNTIME_DIR=str(folder),
            PYTHONUNBUFFERED="1",
        )
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = str(free.getsockname()[1])

    def start(self, name, needs="sys", **replaced):
        """Starts a recipe; `replaced` are texts of the block, and their substitutes."""
        language, text = self.blocks[name]
        self.unused.discard(name)
        for old, new in replaced.items():
            if old not in text:
                raise Failed(f"{old!r} is not in it")
            text = text.replace(old, new)
        python = interpreter(needs) if language == "python" else None
        if language == "python" and python is None:
            raise Skipped(f"no Python has all of {needs}")
        file = self.folder / name
        file.write_text("exec " + text if language == "sh" else text)
        run = {"sh": ["bash", file], "python": [python, file], "c": [self.folder / f"{name}.out"]}[language]
        if language == "c":
            compile_c(file, run[0], needs)
        with open(self.folder / f"{name}.log", "w") as log:
            process = subprocess.Popen(
                run,
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.running.append(process)
        return process

    def log(self, name):
        return (self.folder / f"{name}.log").read_text()

    def finish(self, name, process):
        """Waits for the end of a recipe; returns its output."""
        try:
            status = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise Failed(f"it did not end: {self.log(name)[-500:]}") from None
        if status != 0:
            raise Failed(f"exit status {status}: {self.log(name)[-500:]}")
        return self.log(name)

    def interrupt(self, name, process):
        process.send_signal(signal.SIGINT)
        return self.finish(name, process)

    def launch(self, pipeline):
        """Runs a pipeline of the test's own."""
        command = ["gst-launch-1.0", "-q", *pipeline.split()]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=PATIENCE
        )
        if done.returncode != 0:
            raise Failed(f"{pipeline}: {done.stdout[-300:]}{done.stderr[-300:]}")

    def wait_for(self, what, condition):
        end = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > end:
                raise Failed(f"no {what}")
            time.sleep(0.05)

    def wait_for_stream(self, name, stream, process):
        def is_there():
            if process.poll() is not None:
                raise Failed(f"it ended: {self.log(name)[-500:]}")
            return (self.folder / "frameshare" / f"{stream}.sock").exists()

        self.wait_for(f"stream {stream}", is_there)

    def read(self, stream, frames=30):
        self.launch(f"framesharesrc stream={stream} num-buffers={frames} ! fakesink")

    def stop(self):
        for process in self.running:
            process.kill()
            process.wait()


def picture_size(file):
    header = file.read_bytes()[:24]
    assert header[1:4] == b"PNG", f"{file} is no picture"
    return struct.unpack(">II", header[16:24])


def live(kitchen):
    process = kitchen.start("live")
    kitchen.wait_for_stream("live", "cam0", process)
    kitchen.read("cam0")


def progress(kitchen):
    text = kitchen.finish("progress", kitchen.start("progress"))
    assert "progressreport0 (" in text, text


def snapshot(kitchen):
    kitchen.finish("snapshot", kitchen.start("snapshot"))
    assert picture_size(kitchen.folder / "cam0.png") == (640, 480)


def webcam(kitchen):
    camera = {"v4l2src device=/dev/video0": "videotestsrc is-live=true"}
    process = kitchen.start("webcam", **camera)
    kitchen.wait_for_stream("webcam", "cam1", process)
    kitchen.read("cam1")
    kitchen.interrupt("webcam", process)


def rtsp_out(kitchen):
    process = kitchen.start("rtsp-out", "gi", **{"8554": kitchen.port})

    def answers():
        if process.poll() is not None:
            log = kitchen.log("rtsp-out")
            if "Namespace GstRtspServer not available" in log:
                raise Skipped("gir1.2-gst-rtsp-server-1.0 is missing")
            raise Failed(f"it ended: {log[-500:]}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", int(kitchen.port))):
            return True

    kitchen.wait_for("RTSP server", answers)
    kitchen.served = {"rtsp://camera.local/stream": f"rtsp://127.0.0.1:{kitchen.port}/cam0"}
    kitchen.launch(
        f"rtspsrc location=rtsp://127.0.0.1:{kitchen.port}/cam0 latency=0 ! rtph264depay ! h264parse ! avdec_h264 "
        "! identity eos-after=30 ! fakesink"
    )


def from_camera(kitchen, name, stream):
    if not hasattr(kitchen, "served"):
        raise Skipped("there is no RTSP server")
    process = kitchen.start(name, **kitchen.served)
    kitchen.wait_for_stream(name, stream, process)
    kitchen.read(stream)
    return process


def rtsp_in(kitchen):
    kitchen.interrupt("rtsp-in", from_camera(kitchen, "rtsp-in", "cam1"))


def rtsp_encoded(kitchen):
    from_camera(kitchen, "rtsp-encoded", "cam1.video")


def recorded(kitchen, name, stream, extension, **replaced):
    """Records three segments of a second and more, and plays them back."""
    process = kitchen.start(name, **{"10000000000": "1000000000"}, **replaced)
    last = kitchen.folder / f"{stream}-003.{extension}"
    kitchen.wait_for("fourth segment", lambda: last.exists() or process.poll() is not None)
    kitchen.interrupt(name, process)
    segments = sorted(kitchen.folder.glob(f"{stream}-*.{extension}"))
    assert len(segments) >= 4, f"{segments}: {kitchen.log(name)[-300:]}"
    for segment in segments:
        kitchen.launch(f"filesrc location={segment} ! decodebin ! fakesink sync=false")


def record(kitchen):
    # Beside other tests, the usual encoder is slower than the stream.
    recorded(kitchen, "record", "cam0", "mp4", **{"x264enc ": "x264enc speed-preset=ultrafast "})


def record_encoded(kitchen):
    if not (kitchen.folder / "frameshare/cam1.video.sock").exists():
        raise Skipped("there is no encoded stream")
    recorded(kitchen, "record-encoded", "cam1", "mkv")


def wall(kitchen):
    shown = {"autovideosink": "identity eos-after=60 ! pngenc ! multifilesink location=wall.png"}
    kitchen.finish("wall", kitchen.start("wall", **shown))
    assert picture_size(kitchen.folder / "wall.png") == (640, 480)
    kitchen.launch("filesrc location=wall.png ! pngdec ! videoconvert ! video/x-raw,format=GRAY8 ! filesink location=wall.gray")
    gray = (kitchen.folder / "wall.gray").read_bytes()
    for x in [0, 320]:
        for y in [0, 240]:
            rows = (gray[640 * row + x : 640 * row + x + 320] for row in range(y, y + 240))
            assert max(map(max, rows)) > 200, f"nothing is shown at {x}, {y}"


def opencv(kitchen):
    text = kitchen.finish("opencv", kitchen.start("opencv", "cv2"))
    assert text.count("(480, 640, 3)") == 60, text[-500:]


def numpy(kitchen):
    text = kitchen.finish("numpy", kitchen.start("numpy", "gi.overrides._gi_gst, numpy"))
    assert text.count("(480, 640)") == 60, text[-500:]
    assert "copied: 0" in text, text[-500:]


def pytorch(kitchen):
    text = kitchen.finish("pytorch", kitchen.start("pytorch", "frameshare, torch"))
    assert text.count("(480, 640) (3, 224, 224) cpu ") == 60, text[-500:]


def appsink(kitchen):
    text = kitchen.finish("appsink", kitchen.start("appsink", "gstreamer-app-1.0 gstreamer-video-1.0"))
    assert text.count("640x480, sum ") == 60, text[-500:]
    assert len(set(re.findall(r"sum \d+", text))) > 30, "the ball does not move"
    assert "copied: 0" in text, text[-500:]


def frame_info(kitchen):
    begin = time.monotonic_ns()
    text = kitchen.finish("frame-info", kitchen.start("frame-info", "gi"))
    frames = [tuple(map(int, line)) for line in re.findall(r"^frame (\d+) lost (\d+) published (\d+)$", text, re.M)]
    assert len(frames) == 60, text[-500:]
    for (before, _, earlier), (sequence, lost, published) in zip(frames, frames[1:]):
        assert sequence == before + 1 + lost and published > earlier, text
    assert begin < frames[-1][2] < time.monotonic_ns(), text[-500:]


def main():
    plugins = Path(sys.argv[1]).resolve()
    folder = Path(tempfile.mkdtemp(prefix="frameshare-recipes-"))
    kitchen = Kitchen(folder, plugins)
    failed = False
    steps = [live, progress, snapshot, webcam, rtsp_out, rtsp_in, rtsp_encoded, record, record_encoded, wall, opencv, numpy, pytorch, appsink, frame_info]
    named = sys.argv[2:]
    steps = [step for step in steps if not named or step.__name__.replace("_", "-") in named]
    try:
        for step in steps:
            name = step.__name__.replace("_", "-")
            try:
                step(kitchen)
                print(f"PASS recipe-{name}", flush=True)
            except Skipped as why:
                print(f"SKIP recipe-{name}: {why}", flush=True)
            except (Failed, AssertionError, subprocess.TimeoutExpired) as why:
                failed = True
                print(f"FAIL recipe-{name}: {why}", flush=True)
        tested = {step.__name__.replace("_", "-") for step in steps}
        for name in (set(named) - tested) if named else (kitchen.unused - tested):
            failed = True
            print(f"FAIL recipe-{name}: no test runs it", flush=True)
    finally:
        kitchen.stop()
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(failed)


main()
