# SPDX-License-Identifier: MIT OR Apache-2.0

"""Many threads use one exporter, one stream, one frame and one slot at once, with and without a GIL."""

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import frameshare
import numpy
import pytest

from support import PATIENCE, wait_until

THREADS = 6
FRAMES = 400
SHAPE = (24, 32)


@pytest.fixture(autouse=True)
def frequent_switches() -> Iterator[None]:
    """Lets threads with a GIL take turns within a call's bytecode as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def all_at_once(*works: Callable[[], object]) -> None:
    """Runs works in threads that begin together, and raises what one of them raised."""
    barrier, errors = threading.Barrier(len(works)), list[BaseException]()

    def run(work: Callable[[], object]) -> None:
        try:
            barrier.wait(PATIENCE)
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def image(number: int) -> "numpy.typing.NDArray[numpy.uint8]":
    return numpy.full(SHAPE, number % 251, numpy.uint8)


def create(**options: int) -> frameshare.Exporter:
    return frameshare.create("cam0", format="GRAY8", width=SHAPE[1], height=SHAPE[0], **options)


def test_threads_share_the_frames_of_a_stream() -> None:
    """Each frame goes to one thread, with its own content."""
    exporter = create()
    stream = frameshare.open("cam0", policy="lossless", max_held=THREADS)
    seen = Counter[int]()

    def publish() -> None:
        for number in range(FRAMES // 2):
            metas = {"Number": {"value": number}}
            exporter.publish(image(number), metas=metas, timeout=PATIENCE)

    def read() -> None:
        while (frame := stream.next(PATIENCE)) is not None:
            number = int(frame.metas[0][1]["value"])  # type: ignore[call-overload]
            for array in (numpy.asarray(frame), numpy.from_dlpack(frame.plane(0)), memoryview(frame)):
                assert numpy.array_equal(array, image(number))
            sequence = frame.sequence
            seen[sequence] += 1
            # One half is released, the other one is garbage.
            del array
            if sequence % 2:
                frame.release()
            del frame
            if sequence == FRAMES:
                stream.interrupt()

    def read_until_the_last() -> None:
        with pytest.raises(frameshare.InterruptedError):
            read()

    all_at_once(publish, publish, *[read_until_the_last] * THREADS)
    assert seen == Counter(range(1, FRAMES + 1))
    assert stream.stats.held == 0


def test_threads_release_a_frame_that_others_read() -> None:
    """A reader gets this frame's content or an error, and the memory returns once."""
    exporter = create(max_slots=8)
    stream = frameshare.open("cam0", policy="lossless", max_held=2)
    for number in range(FRAMES):
        exporter.publish(image(number), timeout=PATIENCE)
        frame = stream.next(PATIENCE)
        assert frame is not None
        took = frame

        def read() -> None:
            try:
                arrays = [numpy.asarray(took.plane(0)), numpy.asarray(took), numpy.from_dlpack(took)]
            except frameshare.ReleasedError:
                return
            expected = image(number)
            assert all(numpy.array_equal(array, expected) for array in arrays)

        def release() -> None:
            try:
                took.release()
            except BufferError as error:
                assert "of its memory" in str(error)

        all_at_once(read, release, read, release)
        took.release()
        assert took.released
        with pytest.raises(frameshare.ReleasedError):
            numpy.asarray(took)
        assert stream.stats.held == 0


def test_one_of_many_threads_publishes_a_slot() -> None:
    exporter = create()
    stream = frameshare.open("cam0", policy="lossless")
    for number in range(FRAMES // 4):
        slot = exporter.acquire()
        numpy.asarray(slot.plane(0))[:] = number % 251
        done = list[str]()

        def publish() -> None:
            try:
                slot.publish(timeout=PATIENCE)
            except frameshare.ReleasedError:
                done.append("refused")
            else:
                done.append("published")

        all_at_once(publish, publish, publish)
        assert sorted(done) == ["published", "refused", "refused"]
        frame = stream.next(PATIENCE)
        assert frame is not None and frame.sequence == slot.sequence == number + 1
        assert numpy.array_equal(numpy.asarray(frame), image(number))


def test_close_ends_the_calls_of_all_threads() -> None:
    """Calls in progress end with an error of the package, and frames stay valid."""
    exporter = create()
    for _ in range(10):
        stream = frameshare.open("cam0")
        exporter.publish(image(7))
        frame = stream.next(PATIENCE)
        assert frame is not None
        started = Counter[str]()

        def use(name: str, call: Callable[[], object]) -> Callable[[], None]:
            def loop() -> None:
                try:
                    while True:
                        call()
                        started[name] += 1
                except frameshare.ClosedError:
                    started[name] += 1

            return loop

        def wait() -> None:
            try:
                stream.next(0.001)
            except frameshare.TimeoutError:
                pass

        calls = {"next": wait, "stats": lambda: stream.stats, "fileno": stream.fileno}
        used = [use(name, call) for name, call in calls.items()]

        def close() -> None:
            wait_until(lambda: len(started) == len(calls))
            stream.close()

        all_at_once(*used, close, *[use("next", wait)] * 2)
        assert numpy.array_equal(numpy.asarray(frame), image(7))
