# SPDX-License-Identifier: MIT OR Apache-2.0

"""Several streams in one thread."""

import itertools
import signal
import threading
from pathlib import Path

import frameshare
import numpy
import pytest
from frameshare import _many

from support import PATIENCE, Publish, publish, runtime_folder


def test_every_camera_has_its_turn(publish: Publish) -> None:
    publish("fast", rate="2000")
    publish("slow", rate="50")
    counts = {"fast": 0, "slow": 0}
    with frameshare.open_many(["fast", "slow"]) as cameras:
        assert cameras.names == ("fast", "slow")
        while min(counts.values()) < 20:
            found = cameras.next(PATIENCE)
            assert found is not None
            counts[found[0]] += 1
        assert cameras.stats["slow"].received >= 20
    assert counts["fast"] > counts["slow"]


class Arrived:
    """A frame that has arrived."""

    def __init__(self, pts: int) -> None:
        self.pts = pts


class Script:
    """A set of streams whose frames have all arrived, and come in turns."""

    def __init__(self, *streams: list[int]) -> None:
        turns = itertools.zip_longest(*streams)
        self.items = [(index, Arrived(pts)) for turn in turns for index, pts in enumerate(turn) if pts is not None]
        self.items.reverse()

    def next(self, timeout: float | None) -> "tuple[int, Arrived | None] | None":
        return self.items.pop() if self.items else None


def test_oldest_frame_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_many, "Frame", Arrived)
    with frameshare.open_many(["a", "b", "c"], by="oldest") as cameras:
        monkeypatch.setattr(cameras, "_set", Script([1, 5, 6, 9], [2, 3, 4, 10], [7, 8, 11, 12]))
        found = [cameras.next(0) for _ in range(12)]
        assert [frame.pts for _, frame in filter(None, found)] == list(range(1, 13))
        monkeypatch.undo()


def test_oldest_yields_all_frames_of_each_camera(publish: Publish) -> None:
    for name in ("a", "b"):
        publish(name, "-n", "100", "-r", "1", rate="500")
    numbers: dict[str, list[int]] = {"a": [], "b": []}
    with frameshare.open_many(["a", "b"], by="oldest", policy="lossless", reconnect=False) as cameras:
        for name, frame in cameras:
            numbers[name].append(frame.sequence)
    assert numbers == {"a": list(range(1, 101)), "b": list(range(1, 101))}


def test_synchronized_sets_have_close_times(publish: Publish) -> None:
    for name in ("a", "b", "c"):
        publish(name, rate="25")
    with frameshare.open_many(["a", "b", "c"], by="synchronized", patience=PATIENCE) as cameras:
        for _ in range(20):
            frames = cameras.next(PATIENCE)
            assert frames is not None and list(frames) == ["a", "b", "c"]
            times = [frame.pts for frame in frames.values() if frame.pts is not None]
            assert len(times) == 3 and max(times) - min(times) <= 40_000_000


def test_synchronized_set_without_late_camera(publish: Publish) -> None:
    publish("a", rate="25")
    late = publish("b", rate="25")
    with frameshare.open_many(["a", "b"], by="synchronized", patience=0.05) as cameras:
        frames: dict[str, frameshare.Frame] | None = {}
        while frames is not None and len(frames) < 2:
            frames = cameras.next(PATIENCE)
        late.send_signal(signal.SIGSTOP)
        while frames is not None and "b" in frames:
            frames = cameras.next(PATIENCE)
        assert frames is not None and list(frames) == ["a"]
        late.send_signal(signal.SIGCONT)
        while frames is not None and "b" not in frames:
            frames = cameras.next(PATIENCE)


def test_sets_come_without_any_match(publish: Publish) -> None:
    """No two frames have the same time, so that all sets are incomplete and none of them is waited for without limit."""
    publish("a", rate="25")
    publish("b", rate="25")
    with frameshare.open_many(["a", "b"], by="synchronized", tolerance=0, patience=0.2) as cameras:
        names: set[str] = set()
        while names != {"a", "b"}:
            frames = cameras.next(PATIENCE)
            assert frames is not None and len(frames) == 1
            names |= frames.keys()


def test_end_and_failure_leave_other_cameras(publish: Publish) -> None:
    publish("ends", "-n", "10", "-r", "1")
    dies = publish("dies")
    publish("stays")
    names = ["ends", "dies", "stays"]
    with frameshare.open_many(names, reconnect=False) as cameras:
        seen: set[str] = set()
        while seen != set(names):
            found = cameras.next(PATIENCE)
            assert found is not None
            seen.add(found[0])
        dies.kill()
        while "dies" not in cameras.errors or not ({"ends"} & (cameras.errors.keys() | cameras.ended)):
            assert cameras.next(PATIENCE) is not None
        assert isinstance(cameras.errors["dies"], frameshare.ClosedError)
        found = cameras.next(PATIENCE)
        assert found is not None and found[0] == "stays"
        assert "dies" not in cameras.stats


def test_iteration_ends_with_last_camera(publish: Publish) -> None:
    for name in ("a", "b"):
        publish(name, "-n", "30", "-r", "1")
    with frameshare.open_many(["a", "b"], policy="lossless", reconnect=False) as cameras:
        names = [name for name, _ in cameras]
    assert (names.count("a"), names.count("b")) == (30, 30)


def test_batches_return_frames_before_next_wait(publish: Publish) -> None:
    for name in ("a", "b"):
        publish(name, "-n", "60", "-r", "1")
    sizes = []
    with frameshare.open_many(["a", "b"], policy="lossless", max_held=4, reconnect=False) as cameras:
        for batch in cameras.batches(4, wait=PATIENCE):
            sizes.append(len(batch))
            del batch
    assert sum(sizes) == 120 and sizes[:5] == [4] * 5


def test_camera_that_is_missing_is_searched(publish: Publish, runtime_folder: Path) -> None:
    with frameshare.open_many(["later"]) as cameras:
        with pytest.raises(frameshare.TimeoutError, match="no frame of later"):
            cameras.next(0.05)
        publish("later")
        found = cameras.next(PATIENCE)
        assert found is not None and found[0] == "later"


def test_held_frames_are_named_as_cause(publish: Publish) -> None:
    publish("a")
    held = []
    with frameshare.open_many(["a"], max_held=2) as cameras:
        with pytest.raises(frameshare.HeldError, match="holds 2 frames of 1 streams"):
            for _, frame in cameras:
                held.append(frame)


def test_synchronized_frames_hold_no_more_than_exporter_grants() -> None:
    """Frames of one stream that wait for the other one make room for later ones."""
    image = numpy.zeros((48, 64), "uint8")
    sets: list[dict[str, frameshare.Frame]] = []

    def take(cameras: "frameshare.Cameras[dict[str, frameshare.Frame]]") -> None:
        found = cameras.next(PATIENCE)
        assert found is not None
        sets.append(found)

    def create(name: str) -> frameshare.Exporter:
        return frameshare.create(name, format="GRAY8", width=64, height=48, max_held_limit=3)

    with (
        create("a") as a,
        create("b") as b,
        frameshare.open_many(
            ["a", "b"], by="synchronized", policy="lossless", max_held=32, tolerance=PATIENCE, patience=PATIENCE
        ) as cameras,
    ):
        thread = threading.Thread(target=take, args=(cameras,))
        thread.start()
        for exporter in (a, b):
            exporter.wait_for_reader(PATIENCE)
        for _ in range(9):
            a.publish(image, timeout=PATIENCE)
        b.publish(image, timeout=PATIENCE)
        thread.join(PATIENCE)
        assert [sorted(found) for found in sets] == [["a", "b"]]
        assert 7 <= sets[0]["a"].sequence <= 9 and sets[0]["b"].sequence == 1


def test_close_ends_wait_of_other_thread() -> None:
    cameras = frameshare.open_many(["missing"])
    failed = []

    def wait() -> None:
        try:
            cameras.next()
        except frameshare.Error as error:
            failed.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    cameras.close()
    thread.join(PATIENCE)
    assert len(failed) == 1 and isinstance(failed[0], frameshare.ClosedError)


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="is the text"):
        frameshare.open_many("cam0")
    with pytest.raises(ValueError, match="a name twice"):
        frameshare.open_many(["a", "a"])
    with pytest.raises(ValueError, match="invalid by"):
        frameshare.open_many(["a"], by="newest")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="tolerance is -1"):
        frameshare.open_many(["a"], by="synchronized", tolerance=-1)
    with pytest.raises(ValueError, match="invalid policy"):
        frameshare.open_many(["a"], policy="all")  # type: ignore[call-overload]
    with pytest.raises(ValueError):
        frameshare.open_many(["a b"])
