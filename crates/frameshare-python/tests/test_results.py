# SPDX-License-Identifier: MIT OR Apache-2.0

"""Results of a model: keys, restarts of either side, losses, and the matcher."""

import subprocess
import sys
import time

import frameshare
import numpy
import pytest
from frameshare import Key
from support import PATIENCE


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("FRAMESHARE_PATH", raising=False)


def camera(**options):
    return frameshare.create("cam0", format="GRAY8", width=64, height=48, **options)


def frames_of(**options):
    return frameshare.open("cam0", **{"policy": "lossless", "connection_timeout": PATIENCE, **options})


def shoot(exporter, count=1):
    for _ in range(count):
        exporter.publish(numpy.zeros((48, 64), "uint8"))


def test_results_arrive_with_the_keys_of_their_frames():
    values = [{"boxes": [[1, 2.5]], "label": "Gesicht: \u00e4"}, [1, 2], "text", None, True, 7]
    with camera() as exporter, frames_of() as frames, frameshare.create_results("cam0.faces") as results:
        with frameshare.open_results("cam0.faces", policy="lossless") as stream:
            keys = []
            for value in values:
                shoot(exporter)
                with frames.next(PATIENCE) as frame:
                    keys.append(Key(frame.session, frame.sequence))
                # After the release, too.
                results.publish(frame, value)
            assert [stream.next(PATIENCE) for _ in values] == list(zip(keys, values, strict=True))
            results.publish(keys[0], 1)
            results.publish((1 << 63 | 5, 2), 2)
            assert stream.next(PATIENCE) == (keys[0], 1)
            assert stream.next(PATIENCE) == (Key(1 << 63 | 5, 2), 2)
            results.end()
            assert stream.next(PATIENCE) is None
            assert stream.has_ended


def test_arrays_are_published_as_lists():
    with frameshare.create_results("r") as results, frameshare.open_results("r", policy="lossless") as stream:
        results.publish((1, 1), {"boxes": numpy.arange(4).reshape(2, 2), "score": numpy.float32(0.5)})
        assert stream.next(PATIENCE)[1] == {"boxes": [[0, 1], [2, 3]], "score": 0.5}


@pytest.mark.parametrize(
    ("frame", "value", "error", "text"),
    [
        (
            "cam0",
            1,
            TypeError,
            "a result belongs to a frame, or to a pair of session and sequence, not to a str",
        ),
        (5, 1, TypeError, "not to a int"),
        ((1, 2, 3), 1, TypeError, "not to a tuple"),
        ((1, 1), object(), TypeError, "a object is not JSON: publish numbers, texts, lists and dictionaries"),
        ((1, 1), float("nan"), ValueError, "not JSON compliant"),
    ],
)
def test_invalid_results_are_refused(frame, value, error, text):
    with frameshare.create_results("r") as results, pytest.raises(error) as raised:
        results.publish(frame, value)
    assert text in str(raised.value)


def test_other_data_is_no_result():
    with camera() as exporter, frameshare.open_results("cam0") as stream:
        shoot(exporter)
        with pytest.raises(frameshare.Error, match="unit 1 of cam0 is no result"):
            stream.next(PATIENCE)


def test_lost_results_are_counted():
    with frameshare.create_results("r") as results, frameshare.open_results("r", max_held=2) as stream:
        for number in range(1, 101):
            results.publish((1, number), number)
        taken = []
        while not taken or taken[-1] != 100:
            taken.append(stream.next(PATIENCE)[1])
        assert len(taken) + stream.lost == 100
        assert stream.lost > 0


def test_matcher_pairs_each_frame_with_its_own_result():
    with camera() as exporter, frames_of() as source, frames_of(max_held=5) as frames:
        with (
            frameshare.create_results("r") as results,
            frameshare.open_results("r", policy="lossless") as stream,
        ):
            matcher = frameshare.Matcher(frames, stream, max_frames=3)
            for _ in range(50):
                shoot(exporter, 3)
                keys = []
                for _ in range(3):
                    with source.next(PATIENCE) as frame:
                        keys.append(Key(frame.session, frame.sequence))
                # The model answers in another order.
                for key in (keys[1], keys[2], keys[0]):
                    results.publish(key, key.sequence)
                for _ in range(3):
                    frame, value = matcher.next(PATIENCE)
                    assert frame.sequence == value
                    frame.release()
            counts = (
                matcher.matched,
                matcher.unmatched_frames,
                matcher.unmatched_results,
                matcher.lost_results,
            )
            assert counts == (150, 0, 0, 0)
            exporter.end()
            results.end()
            assert list(matcher) == []


def test_matcher_is_bounded():
    with camera() as exporter, frames_of(max_held=8) as frames, frameshare.create_results("r") as results:
        with frameshare.open_results("r", policy="lossless") as stream:
            matcher = frameshare.Matcher(frames, stream, max_frames=2, max_results=3)
            session = None
            for _ in range(10):
                shoot(exporter)
                with pytest.raises(frameshare.TimeoutError, match="no pair of cam0 and r within 0 s"):
                    matcher.next(0)
            with frames_of() as other:
                shoot(exporter)
                session = other.next(PATIENCE).session
            # Frames 9 and 10 are held, and 11 has not been taken.
            for sequence in range(1, 10):
                results.publish((session, sequence), sequence)
            results.publish((session, 11), 11)
            for sequence in (9, 11):
                frame, value = matcher.next(PATIENCE)
                assert (frame.sequence, value) == (sequence, sequence)
            assert matcher.unmatched_frames == 8
            assert matcher.unmatched_results == 6
            exporter.end()
            results.end()
            del frame
            assert matcher.next(PATIENCE) is None
            assert matcher.unmatched_frames == 9


SLOW_MODEL = """
import frameshare, time
with frameshare.open("cam0", connection_timeout=60) as frames, frameshare.create_results("r") as results:
    for frame in frames:
        if frame.sequence % 4 == 0:
            results.publish(frame, frame.sequence)
"""


@pytest.mark.parametrize("max_frames", [1, 2])
def test_matcher_goes_on_with_a_model_that_skips_frames(max_frames):
    programs = [subprocess.Popen([sys.executable, "-c", program]) for program in (CAMERA, SLOW_MODEL)]
    try:
        with frameshare.open("cam0", connection_timeout=PATIENCE) as frames, frameshare.open_results("r", connection_timeout=PATIENCE) as stream:
            matcher = frameshare.Matcher(frames, stream, max_frames=max_frames)
            kept = None
            for _ in range(20):
                # The caller holds one frame all the time.
                kept, value = matcher.next(PATIENCE)
                assert (kept.sequence, kept.sequence % 4) == (value, 0)
            assert matcher.unmatched_frames > 0
    finally:
        for process in programs:
            process.kill()
            process.wait()


@pytest.mark.parametrize("option", ["max_frames", "max_results"])
def test_matcher_without_room_is_refused(option):
    with pytest.raises(ValueError, match=f"{option} is 0, but must be at least 1"):
        frameshare.Matcher(None, None, **{option: 0})


def test_matcher_that_holds_more_than_its_stream_is_refused():
    with camera(), frameshare.create_results("r"), frameshare.open_results("r") as results:
        for max_held, max_frames in ((4, 3), (2, 1)):
            text = (
                f"max_frames is {max_frames}, but cam0 has max_held={max_held}, of which two frames are "
                f"the caller's and the one that comes: open it with max_held={max_frames + 2}"
            )
            with frames_of(max_held=max_held) as frames:
                assert frames.max_held == max_held
                with pytest.raises(ValueError, match=text):
                    frameshare.Matcher(frames, results, max_frames=max_frames)
        with frames_of() as frames:
            assert frames.max_held == 4
            frameshare.Matcher(frames, results)
        # The exporter grants 16.
        with frames_of(max_held=32) as frames:
            frameshare.Matcher(frames, results, max_frames=14)
            text = "max_held=16, .* open it with max_held=22, and create it with max_held_limit=22"
            with pytest.raises(ValueError, match=text):
                frameshare.Matcher(frames, results, max_frames=20)


CAMERA = """
import frameshare, numpy, time
with frameshare.create("cam0", format="GRAY8", width=64, height=48) as exporter:
    exporter.wait_for_reader(20)
    while True:
        exporter.publish(numpy.zeros((48, 64), "uint8"))
        time.sleep(0.005)
"""

MODEL = """
import frameshare
with frameshare.open("cam0", connection_timeout=60) as frames, frameshare.create_results("r") as results:
    for frame in frames:
        results.publish(frame, [frame.session, frame.sequence])
"""


def test_results_survive_restarts_of_camera_and_model():
    def start(program):
        return subprocess.Popen([sys.executable, "-c", program])

    def kill(process):
        process.kill()
        process.wait()

    running = {CAMERA: start(CAMERA), MODEL: start(MODEL)}
    try:
        with frameshare.open("cam0", max_held=16, connection_timeout=PATIENCE) as frames:
            with frameshare.open_results("r", connection_timeout=PATIENCE) as stream:
                matcher = frameshare.Matcher(frames, stream, max_frames=12)
                sessions = set()
                for round in range(5):
                    wanted = time.monotonic() + PATIENCE
                    fresh = 0
                    # The pairs of a new run of the camera have its session.
                    while fresh < 10:
                        assert time.monotonic() < wanted, f"no pairs in round {round}"
                        frame, value = matcher.next(PATIENCE)
                        assert [frame.session, frame.sequence] == value
                        fresh += 1
                        sessions.add(frame.session)
                        del frame
                    program = CAMERA if round % 2 == 0 else MODEL
                    kill(running[program])
                    running[program] = start(program)
                assert len(sessions) == 3
    finally:
        for process in running.values():
            kill(process)
