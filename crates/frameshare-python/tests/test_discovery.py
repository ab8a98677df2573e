# SPDX-License-Identifier: MIT OR Apache-2.0

"""Lists of streams, statistics, events, tags and logs."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import frameshare
import pytest
from frameshare import events

from support import PATIENCE, TARGET, Publish, Run, publish, run, runtime_folder, wait_until


def test_streams_are_listed(publish: Publish, runtime_folder: Path) -> None:
    assert frameshare.streams() == []
    exporter = publish("b")
    publish("a")
    # A socket is there before it is listening.
    wait_until(lambda: len(frameshare.streams()) == 2)
    first, second = frameshare.streams()
    assert (first.name, second.name) == ("a", "b")
    assert second.exporter_pid == exporter.pid and second.exporter_program == "frameshare"
    assert second.path == str(runtime_folder / "frameshare" / "b.sock")


def test_changes_of_the_list_are_watched(publish: Publish) -> None:
    publish("a")
    with frameshare.watch_streams() as changes:
        change, stream = next(changes)
        assert (change, stream.name) == ("appeared", "a")
        exporter = publish("b")
        change, stream = next(changes)
        assert (change, stream.name, stream.exporter_pid) == ("appeared", "b", exporter.pid)
        exporter.kill()
        exporter.wait()
        change, stream = next(changes)
        assert (change, stream.name) == ("vanished", "b")
        while changes.next(0) is not None:
            pass
    with pytest.raises(frameshare.ClosedError):
        changes.next()
    assert list(changes) == []


def test_statistics_count_frames(publish: Publish) -> None:
    exporter = publish("cam0", "-r", "1")
    with frameshare.open("cam0", max_held=3) as stream:
        frames = [stream.next(PATIENCE) for _ in range(2)]
        stats = stream.stats
        assert (stats.exporter_pid, stats.max_held, stats.held, stats.received) == (exporter.pid, 3, 2, 2)
        assert stats.session == frames[0].session and stats.reconnects == 0  # type: ignore[union-attr]
        assert repr(stats).startswith("Stats(session=")
        exporter.send_signal(signal.SIGSTOP)
        del frames
        while stream.stats.held > 0:
            pass
    with pytest.raises(frameshare.ClosedError):
        stream.stats


def test_items_are_frames_and_events_in_order(publish: Publish) -> None:
    publish("cam0", "-n", "3", "-r", "1")
    found = []
    with frameshare.open("cam0", policy="lossless") as stream:
        for item in stream.items():
            match item:
                case frameshare.Frame():
                    found.append(f"frame {item.sequence}")
                case events.Format(caps):
                    assert "NV12" in caps
                    found.append("format")
                case events.EndOfStream():
                    assert stream.has_ended
                    break
                case _:
                    found.append(type(item).__name__)
    assert found == ["format", "frame 1", "frame 2", "frame 3"]


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[Path]:
    """A folder with the plugin for GStreamer, if it is built and gst-launch-1.0 is there."""
    places = [TARGET / "libgstframeshare.so", TARGET.parent / "gstreamer-1.0" / "libgstframeshare.so"]
    built = [place for place in places if place.exists()]
    if not built or shutil.which("gst-launch-1.0") is None:
        pytest.skip("the plugin for GStreamer is not built, or there is no gst-launch-1.0")
    folder = tmp_path / "plugin"
    folder.mkdir()
    (folder / "libgstframeshare.so").symlink_to(built[0])
    yield folder


def test_tags_of_gstreamer_come_with_frames_and_as_events(
    plugin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GST_PLUGIN_PATH", str(plugin))
    monkeypatch.setenv("GST_REGISTRY", str(tmp_path / "registry.bin"))
    pipeline = "videotestsrc is-live=true ! video/x-raw,format=I420,width=64,height=48,framerate=50/1 ! taginject"
    tags = "tags=title=\"Gate\\ 4\",track-number=7,frame-rate=2.5,artist=one"
    command = ["gst-launch-1.0", "-q", *pipeline.split(), tags, *"! framesharesink stream=cam0".split()]
    exporter = subprocess.Popen(command)
    try:
        with frameshare.open("cam0", connection_timeout=PATIENCE) as stream:
            found = [stream.next_item(PATIENCE)]
            while not isinstance(found[-1], frameshare.Frame):
                found.append(stream.next_item(PATIENCE))
            frame = found[-1]
            assert frame.tags["title"] == ("Gate 4",) and frame.tags["track-number"] == (7,), frame.tags
            kinds = {type(item) for item in found}
            assert {events.StreamStart, events.Tags, events.Segment, events.Format} <= kinds, found
            segment = next(item for item in found if isinstance(item, events.Segment))
            assert frame.pts is not None and 0 <= segment.timestamp(frame.pts) < 60_000_000_000
    finally:
        exporter.kill()
        exporter.wait()


LOGS = """
import frameshare, logging, os, sys, threading
logging.basicConfig(level=logging.INFO, format="%(name)s %(levelname)s %(message)s", stream=sys.stdout)
# A folder that cannot be read is a warning of the engine, in each call.
os.environ["FRAMESHARE_PATH"] = sys.argv[1]
def call():
    for _ in range(int(sys.argv[2])):
        frameshare.streams()
threads = [threading.Thread(target=call) for _ in range(4)]
for thread in threads:
    thread.start()
call()
for thread in threads:
    thread.join()
"""


def test_records_of_the_engine_go_to_logging(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run(LOGS, str(tmp_path / "file"), "1")
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and not done.stderr, done.stderr
    # The interpreter's end waits for the last one.
    assert len(lines) == 5 and all(line.startswith("frameshare WARNING cannot list the streams in") for line in lines)


def test_flood_of_records_is_bounded(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run(LOGS, str(tmp_path / "file"), "2000")
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and not done.stderr, done.stderr
    dropped = [line for line in lines if "are dropped: too many came at once" in line]
    counts = [int(line.split()[2]) for line in dropped]
    assert len(lines) - len(dropped) + sum(counts) == 10_000


def test_import_starts_no_thread_and_imports_no_library(run: Run) -> None:
    program = """
import sys, os
import frameshare
print(len(os.listdir("/proc/self/task")), [name for name in ("numpy", "torch", "cupy", "jax", "logging") if name in sys.modules])
"""
    assert run(program).stdout == "1 []\n"
