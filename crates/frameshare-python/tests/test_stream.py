# SPDX-License-Identifier: MIT OR Apache-2.0

"""Opening, waiting, ending."""

import os
import pathlib
import select
import signal
import subprocess
import sys
import threading

import numpy
import pytest
from conftest import TOOL, wait_for
from support import PATIENCE

import frameshare


@pytest.fixture
def silent(processes):
    """A stream whose exporter waits for a second reader, and publishes nothing before."""
    processes.publish("--readers", "2")
    with frameshare.open(processes.path()) as stream:
        yield stream


@pytest.mark.parametrize("timeout", [0, 0.05])
def test_unknown_stream_is_not_found(timeout):
    with pytest.raises(frameshare.NotFoundError, match=f"no exporter at .*nosuch.sock after {timeout} s$"):
        frameshare.open("nosuch", connection_timeout=timeout)


def test_stopped_exporter_is_not_found(processes):
    exporter = processes.publish()
    # Its socket may not be listening yet.
    frameshare.open(processes.path(), device="cpu").close()
    exporter.send_signal(signal.SIGSTOP)
    with pytest.raises(frameshare.NotFoundError, match="has not answered within 0.5 s: its process is stopped"):
        frameshare.open(processes.path(), device="cpu", connection_timeout=0.5)


def test_path_objects_name_sockets(processes, monkeypatch):
    path = pathlib.Path(processes.path())
    processes.publish()
    with frameshare.open(path) as stream:
        assert stream.name == str(path)
        # A path without a folder is no name of a stream.
        monkeypatch.chdir(path.parent)
        with frameshare.open(pathlib.Path(path.name)) as other:
            assert other.next(PATIENCE).plane(0)
    with pytest.raises(TypeError, match="expected str, bytes or os.PathLike object, not int"):
        frameshare.open(7)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"policy": "newest"}, 'invalid policy "newest": expected "latest" or "lossless"'),
        ({"max_held": 65}, "max_held is 65, but must be 0 to 64"),
        ({"max_held": -1}, "max_held is -1, but must be 0 to 64"),
        ({"max_held": 1 << 40}, "max_held is 1099511627776, but must be 0 to 64"),
        ({"spin": 101}, "spin is 101, but is a share of a core in percent: set it to 0"),
        ({"spin": -1}, "spin is -1, but is a share of a core in percent: set it to 0"),
        ({"connection_timeout": -1.0}, "connection_timeout is -1, but must be a number of seconds"),
        ({"connection_timeout": float("nan")}, "connection_timeout is NaN"),
    ],
)
def test_bad_argument_is_a_value_error(processes, arguments, text):
    with pytest.raises(ValueError, match=text):
        frameshare.open(processes.path(), **arguments)


def test_bad_name_is_a_value_error():
    with pytest.raises(ValueError, match="a b"):
        frameshare.open("a b")


def test_bad_device_is_a_type_error(processes):
    for device in (1.5, True):
        with pytest.raises(TypeError, match=f"device is {device}: pass None"):
            frameshare.open(processes.path(), device=device)


def test_absent_driver_is_said(processes):
    text = 'device "0": no usable CUDA driver: .*; use device="cpu" for frames in host memory'
    with pytest.raises(frameshare.UnsupportedError, match=text):
        frameshare.open(processes.path(), device=0)


def test_socket_of_others_is_denied(processes):
    if os.getuid() != 0:
        pytest.skip("another user is needed")
    processes.publish()
    program = (
        "import os, sys, frameshare\nos.setgid(65534); os.setuid(65534)\n"
        "try: frameshare.open(sys.argv[1], connection_timeout=5)\n"
        "except frameshare.PermissionDeniedError as error: print('denied:', error)"
    )
    os.chmod(processes.folder, 0o755)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program, processes.path()]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("denied:"), done.stdout + done.stderr


def test_next_times_out(silent):
    for error in (frameshare.TimeoutError, TimeoutError, frameshare.Error):
        with pytest.raises(error, match="no frame of .* within 0.01 s"):
            silent.next(0.01)
    with pytest.raises(frameshare.TimeoutError):
        silent.next(0)


INTERRUPTED = """
import sys, threading, frameshare
stream = frameshare.open(sys.argv[1], **eval(sys.argv[2]))
{before}
try:
    print("waits", flush=True)
    {wait}
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
OTHER_WAITS = "threading.Thread(target=lambda: stream.next(), daemon=True).start()"


@pytest.mark.parametrize(
    ("before", "wait"),
    [("", "stream.next()"), ("", "for frame in stream: pass"), (OTHER_WAITS, "stream.next()")],
)
def test_ctrl_c_ends_wait_for_frame(processes, before, wait):
    processes.publish("--readers", "3")
    program = INTERRUPTED.format(before=before, wait=wait)
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    child = processes.start([sys.executable, "-c", program, processes.path(), "{}"], **environment)
    assert child.stdout.readline() == b"waits\n"
    child.send_signal(signal.SIGINT)
    assert child.stdout.readline() == b"interrupted\n"


def test_ctrl_c_ends_search_for_exporter(processes):
    program = "import sys, frameshare\nprint('waits', flush=True)\nframeshare.open(sys.argv[1], connection_timeout=None)"
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    child = processes.start([sys.executable, "-c", program, processes.path()], **environment)
    assert child.stdout.readline() == b"waits\n"
    child.send_signal(signal.SIGINT)
    assert b"KeyboardInterrupt" in child.communicate()[0]


def in_thread(call):
    """Runs a call in a thread; returns a function that waits for its result or exception."""
    results = []

    def work():
        try:
            results.append(call())
        except Exception as error:  # noqa: BLE001
            results.append(error)

    thread = threading.Thread(target=work)
    thread.start()

    def result():
        thread.join()
        return results[0]

    return result


def test_interrupt_ends_waits_until_cleared(silent):
    results = [in_thread(lambda: silent.next()), in_thread(lambda: list(silent))]
    silent.interrupt()
    assert [type(result()) for result in results] == 2 * [frameshare.InterruptedError]
    with pytest.raises(InterruptedError, match="ended by interrupt"):
        silent.next(1)
    silent.interrupt(False)
    with pytest.raises(frameshare.TimeoutError):
        silent.next(0)


def test_close_ends_waits_of_other_threads(silent):
    results = [in_thread(lambda: silent.next()) for _ in range(3)]
    silent.close()
    assert [type(result()) for result in results] == 3 * [frameshare.ClosedError]
    assert silent.closed and "closed" in repr(silent)
    silent.close()
    for use in (silent.next, silent.fileno, lambda: next(silent)):
        with pytest.raises(frameshare.ClosedError, match="was closed by this process"):
            use()


def test_gil_is_free_during_wait(silent):
    result = in_thread(lambda: silent.next())
    # Without the GIL this thread would count no further than the wait's end, which nothing else brings.
    assert sum(range(1_000_000)) == 499_999_500_000
    silent.interrupt()
    assert isinstance(result(), frameshare.InterruptedError)


def test_threads_share_a_stream(processes):
    processes.publish("--rate", "120", "--count", "200", "--readers", "1")
    with frameshare.open(processes.path(), policy="lossless", max_held=8, reconnect=False) as stream:
        def work():
            return [(frame.sequence, int(numpy.asarray(frame.plane(0)).sum())) for frame in stream]

        results = [in_thread(work) for _ in range(4)]
        # Each thread's loop ends with the stream, or with its exporter.
        found = [result() for result in results]
    numbers = sorted(number for part in found if isinstance(part, list) for number, _ in part)
    assert len(numbers) == len(set(numbers))
    assert any(isinstance(part, list) for part in found)


def test_descriptor_announces_frames(processes):
    processes.publish()
    with frameshare.open(processes.path()) as stream:
        fd, seen = stream.fileno(), 0
        while seen < 5:
            try:
                with stream.next(0) as frame:
                    assert frame.sequence
                seen += 1
            except frameshare.TimeoutError:
                select.select([stream], [], [])
        assert stream.fileno() == fd


def test_stream_ends_loop(processes):
    path = processes.path()
    source = processes.pipeline(
        f"videotestsrc num-buffers=7 ! video/x-raw,format=GRAY8 ! framesharesink socket-path={path} "
        "wait-for-connection=true sync=false"
    )
    wait_for(path, source)
    with frameshare.open(path, policy="lossless", reconnect=False) as stream:
        assert [frame.sequence for frame in stream] == [1, 2, 3, 4, 5, 6, 7]
        assert stream.has_ended


def test_killed_exporter_raises(processes):
    exporter = processes.publish()
    with frameshare.open(processes.path(), reconnect=False) as stream:
        frame = stream.next(PATIENCE)
        before = numpy.asarray(frame.plane(0)).sum()
        exporter.kill()
        with pytest.raises(frameshare.ClosedError, match="connection to the exporter lost"):
            for _ in stream:
                pass
        assert numpy.asarray(frame.plane(0)).sum() == before


def test_next_exporter_is_found(processes):
    exporter = processes.publish()
    with frameshare.open(processes.path()) as stream:
        session = stream.next(PATIENCE).session
        exporter.kill()
        exporter.wait()
        processes.start([TOOL, "publish", processes.path()])
        assert next(frame.session for frame in stream if frame.session != session)


def test_import_loads_no_array_library():
    program = (
        "import sys, frameshare\n"
        "print([name for name in ('numpy', 'torch', 'cupy', 'jax', 'numba') if name in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
