# SPDX-License-Identifier: MIT OR Apache-2.0

"""Forked children, pickling, and workers of multiprocessing."""

import copy
import ctypes
import multiprocessing
import os
import pickle
import platform
import signal
import traceback
from collections.abc import Callable

import frameshare
import pytest

from support import PATIENCE, Publish, publish, runtime_folder

# Threads of other tests' libraries are none of this package.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded"),
    pytest.mark.filterwarnings(r"ignore:os.fork\(\) was called"),
]


def in_child(check: Callable[[], None]) -> None:
    """Runs a check in a forked child, which ends without the interpreter's cleanup."""
    child = os.fork()
    if child == 0:
        try:
            check()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0, "the check failed in the child: see above"


def test_child_uses_nothing_of_its_parent(publish: Publish) -> None:
    publish("cam0")
    stream = frameshare.open("cam0")
    cameras = frameshare.open_many(["cam0"])
    watch = frameshare.watch_streams()
    frame = stream.next(PATIENCE)
    assert frame is not None
    plane = frame.plane(0)

    def check() -> None:
        uses: list[Callable[[], object]] = [
            stream.next,
            lambda: next(iter(stream)),
            stream.next_item,
            stream.fileno,
            stream.interrupt,
            lambda: stream.stats,
            stream.anext,
            cameras.next,
            lambda: cameras.stats,
            watch.next,
            frame.release,
            lambda: frame.planes,
            lambda: memoryview(plane),
        ]
        for use in uses:
            with pytest.raises((frameshare.Error, BufferError), match=f"belongs to process {os.getppid()}.*forked child"):
                use()
        # These need nothing of the parent.
        assert frame.sequence > 0 and not frame.released and "cam0" in repr(stream)

    in_child(check)


def test_child_that_drops_everything_frees_nothing_of_its_parent(publish: Publish) -> None:
    """The child ends as an interpreter does: it drops stream, frames and views. Without the guard, it ends the parent's
    leases, so that the exporter writes into frames that the parent holds."""
    publish("cam0", rate="1000")
    # Neighbors in the pattern differ, so no frame may be skipped.
    with frameshare.open("cam0", policy="lossless", max_held=4) as stream:
        frames = [stream.next(PATIENCE) for _ in range(3)]
        views = [memoryview(frame.plane(0)) for frame in frames if frame]
        before = [bytes(view.tobytes()) for view in views]
        assert len(set(before)) == 3
        child = os.fork()
        if child == 0:
            stream.close()
            del stream, frames, views
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert stream.stats.held == 3
        # The exporter writes several times as many frames as it has slots.
        for _ in range(100):
            frame = stream.next(PATIENCE)
            del frame
        assert [view.tobytes() for view in views] == before
        assert stream.stats.reconnects == 0


def test_child_opens_the_stream_again(publish: Publish) -> None:
    publish("cam0")
    with frameshare.open("cam0") as stream:

        def check() -> None:
            with copy.copy(stream) as own:
                assert own.next(PATIENCE) is not None
            with frameshare.open("cam0") as own:
                assert own.next(PATIENCE) is not None

        in_child(check)
        assert stream.next(PATIENCE) is not None


def test_stream_pickles_with_its_configuration(publish: Publish) -> None:
    publish("cam0")
    with frameshare.open("cam0", policy="lossless", max_held=2, spin=5, device="cpu", reconnect=False) as stream:
        with pickle.loads(pickle.dumps(stream)) as other:
            assert (other.name, other.stats.max_held) == ("cam0", 2)
            assert other.__reduce__()[0].keywords == {
                "policy": "lossless",
                "max_held": 2,
                "spin": 5,
                "device": "cpu",
                "reconnect": False,
                "connection_timeout": 5.0,
            }
            assert other.next(PATIENCE) is not None


def test_frame_and_plane_refuse_to_be_pickled(publish: Publish) -> None:
    publish("cam0")
    with frameshare.open("cam0") as stream:
        frame = stream.next(PATIENCE)
        assert frame is not None
        with pytest.raises(TypeError, match="frames cannot be pickled"):
            pickle.dumps(frame)
        with pytest.raises(TypeError):
            pickle.dumps(frame.plane(0))


def read_in_worker(stream: frameshare.Stream) -> int:
    with stream if stream_is_own(stream) else copy.copy(stream) as own:
        frame = own.next(PATIENCE)
        assert frame is not None
        return frame.width


def stream_is_own(stream: frameshare.Stream) -> bool:
    try:
        stream.fileno()
        return True
    except frameshare.Error:
        return False


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_workers_of_multiprocessing_read_the_stream(method: str, publish: Publish) -> None:
    publish("cam0")
    context = multiprocessing.get_context(method)
    with frameshare.open("cam0") as stream, context.Pool(2) as workers:
        assert workers.map(read_in_worker, [stream] * 2) == [64, 64]


def test_child_of_a_raw_system_call_is_found() -> None:
    """No handler of fork(3) runs for it."""
    libc = ctypes.CDLL(None, use_errno=True)
    numbers = {"x86_64": (57,), "aarch64": (220, signal.SIGCHLD, 0, 0, 0, 0)}
    exporter = frameshare.create("cam0", format="GRAY8", width=16, height=16)
    call = numbers[platform.machine()]
    child = libc.syscall(*call)
    if child == 0:
        try:
            exporter.publish(bytes(256))
        except frameshare.Error as error:
            os._exit(0 if "forked child" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert exporter.publish(bytes(256)) == 1
