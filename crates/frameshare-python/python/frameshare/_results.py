# SPDX-License-Identifier: MIT OR Apache-2.0

"""Results of a model as streams of JSON, each with the key of the frame that it belongs to.

A unit of such a stream is one JSON object: `session` (decimal digits, since it may have more than 53 bits), `sequence`, and
`value`.
"""

from __future__ import annotations

import json
import select
import time
from collections import OrderedDict, deque
from typing import Any, Literal, NamedTuple, Self

from ._errors import Error, TimeoutError
from ._frameshare import Exporter, Frame, Stream, _create_data, open

CAPS = "application/x-frameshare-results, format=(string)json"


class Key(NamedTuple):
    """The identity of a frame: unique among all frames of a stream, across restarts of its exporter."""

    session: int
    sequence: int


def _key(frame: Frame | tuple[int, int]) -> Key:
    """Return the key of a frame, or of a pair that is one."""
    if isinstance(frame, Frame):
        return Key(frame.session, frame.sequence)
    try:
        session, sequence = frame
        return Key(int(session), int(sequence))
    except (TypeError, ValueError):
        raise TypeError(
            f"a result belongs to a frame, or to a pair of session and sequence, not to a {type(frame).__name__}"
        ) from None


def _plain(value: Any) -> Any:
    """Return arrays and numbers of NumPy, PyTorch and others as lists and numbers."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} is not JSON: publish numbers, texts, lists and dictionaries")


class ResultExporter:
    """An exporter of results: `frameshare.create_results`."""

    def __init__(self, exporter: Exporter) -> None:
        self._exporter = exporter

    @property
    def name(self) -> str:
        """The name or path of the stream."""
        return self._exporter.name

    @property
    def readers(self) -> int:
        """Number of present readers."""
        return self._exporter.readers

    def publish(self, frame: Frame | tuple[int, int], value: Any, *, timeout: float | None = None) -> int:
        """Publish the result of a frame, anything that is JSON, and return its own sequence number.

        `frame` is the frame, also after its release, or its key: a pair of session and sequence.
        """
        session, sequence = _key(frame)
        content = {"session": str(session), "sequence": sequence, "value": value}
        text = json.dumps(content, default=_plain, allow_nan=False, separators=(",", ":"))
        return self._exporter.publish(text.encode(), timeout=timeout)

    def wait_for_reader(self, timeout: float | None = None) -> None:
        """Wait for the first reader, for `timeout` seconds at most."""
        self._exporter.wait_for_reader(timeout)

    def end(self) -> None:
        """Mark the end of the stream for readers, until the next result."""
        self._exporter.end()

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until lossless readers have taken all results; false after `timeout` seconds."""
        return self._exporter.drain(timeout)

    def close(self) -> None:
        """End the stream."""
        self._exporter.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<frameshare.ResultExporter {self.name!r}>"


def create_results(
    name: str,
    *,
    max_slots: int = 512,
    slow_readers: Literal["wait", "queue", "disconnect"] = "wait",
    reader_timeout: float = 5.0,
    history: int = 0,
    max_held_limit: int = 16,
) -> ResultExporter:
    """Create a stream of results; the options are those of `frameshare.create`."""
    return ResultExporter(
        _create_data(
            name,
            CAPS,
            max_slots=max_slots,
            slow_readers=slow_readers,
            reader_timeout=reader_timeout,
            history=history,
            max_held_limit=max_held_limit,
        )
    )


class ResultStream:
    """A stream of results: `frameshare.open_results`. Iteration yields pairs of key and value."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._lost = 0

    @property
    def name(self) -> str:
        """The name or path that the stream was opened by."""
        return self._stream.name

    @property
    def lost(self) -> int:
        """Number of results that were lost so far: published, and replaced by newer ones before they were read."""
        return self._lost

    @property
    def has_ended(self) -> bool:
        """Whether the stream has ended and not continued since."""
        return self._stream.has_ended

    def next(self, timeout: float | None = None) -> tuple[Key, Any] | None:
        """Wait for the next result, and return its key and value; None at the end of the stream.

        Raises `TimeoutError` if none comes within `timeout` seconds.
        """
        unit = self._stream.next(timeout)
        if unit is None:
            return None
        self._lost += unit.lost_before
        with unit:
            text = unit.tobytes()
        try:
            content = json.loads(text)
            return Key(int(content["session"]), int(content["sequence"])), content["value"]
        except (KeyError, TypeError, ValueError) as error:
            raise Error(f"unit {unit.sequence} of {self.name} is no result: {error!r}") from None

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when a result may have arrived."""
        return self._stream.fileno()

    def interrupt(self, on: bool = True) -> None:
        """End all waits for results, until `interrupt(False)`."""
        self._stream.interrupt(on)

    def close(self) -> None:
        """Leave the stream."""
        self._stream.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[Key, Any]:
        result = self.next()
        if result is None:
            raise StopIteration
        return result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<frameshare.ResultStream {self.name!r}>"


def open_results(
    name: str,
    *,
    policy: Literal["latest", "lossless"] = "latest",
    max_held: int = 16,
    reconnect: bool = True,
    connection_timeout: float | None = 5.0,
) -> ResultStream:
    """Open a stream of results; the options are those of `frameshare.open`."""
    return ResultStream(
        open(name, policy=policy, max_held=max_held, device="cpu", reconnect=reconnect, connection_timeout=connection_timeout)
    )


class Matcher:
    """Pairs the frames of a stream with their results. Iteration yields pairs of frame and value.

    A frame waits for its result, and is held meanwhile: at most `max_frames` of them, which is the longest delay of the
    model in frames, and at most the `max_held` of the stream less two: the caller has one, and one is being taken. If
    more come, the oldest one is dropped. A result waits for its frame in the same way, at most `max_results` of
    them. Restarts of either exporter need no care: keys of another run never match.
    """

    def __init__(
        self, frames: Stream, results: ResultStream, *, max_frames: int = 2, max_results: int = 256
    ) -> None:
        for name, value in (("max_frames", max_frames), ("max_results", max_results)):
            if value < 1:
                raise ValueError(f"{name} is {value}, but must be at least 1")
        # The exporter may have granted fewer than were asked for.
        max_held = frames.stats.max_held or frames.max_held
        if max_frames > max_held - 2:
            limit = "" if max_held == frames.max_held else f", and create it with max_held_limit={max_frames + 2}"
            raise ValueError(
                f"max_frames is {max_frames}, but {frames.name} has max_held={max_held}, of which two frames are "
                f"the caller's and the one that comes: open it with max_held={max_frames + 2}{limit}"
            )
        self._frames, self._results = frames, results
        self._max_frames, self._max_results = max_frames, max_results
        self._held: OrderedDict[Key, Frame] = OrderedDict()
        self._values: OrderedDict[Key, Any] = OrderedDict()
        self._ready: deque[tuple[Frame, Any]] = deque()
        self._ended = False
        #: Number of pairs so far.
        self.matched = 0
        #: Number of frames that were dropped without a result.
        self.unmatched_frames = 0
        #: Number of results that were dropped without a frame.
        self.unmatched_results = 0

    @property
    def lost_results(self) -> int:
        """Number of results that the stream has lost before this process read them."""
        return self._results.lost

    def _pair(self, key: Key) -> None:
        self._ready.append((self._held.pop(key), self._values.pop(key)))
        self.matched += 1

    def _take_results(self) -> bool:
        """Take all results that have arrived; return whether there were any."""
        took = False
        while True:
            try:
                result = self._results.next(0)
            except TimeoutError:
                return took
            if result is None:
                return took
            took = True
            key, value = result
            self._values[key] = value
            if key in self._held:
                self._pair(key)
            elif len(self._values) > self._max_results:
                self._values.popitem(last=False)
                self.unmatched_results += 1

    def _take_frame(self) -> bool:
        """Take one frame if it has arrived; return whether there was one."""
        try:
            frame = self._frames.next(0)
        except TimeoutError:
            return False
        if frame is None:
            self._ended = True
            return False
        self._ended = False
        key = Key(frame.session, frame.sequence)
        self._held[key] = frame
        if key in self._values:
            self._pair(key)
        elif len(self._held) > self._max_frames:
            self._drop_oldest()
        return True

    def _drop_oldest(self) -> None:
        self._held.popitem(last=False)
        self.unmatched_frames += 1

    def next(self, timeout: float | None = None) -> tuple[Frame, Any] | None:
        """Wait for the next pair; None when the frames have ended and no further result can come.

        Raises `TimeoutError` if none comes within `timeout` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        poll = select.poll()
        for stream in (self._frames, self._results):
            poll.register(stream.fileno(), select.POLLIN)
        while not self._ready:
            # Results first: they are small, and a frame that comes later finds its own here.
            took_results = self._take_results()
            if self._take_frame() or self._ready:
                continue
            if took_results:
                # Their frames are perhaps those that this process has no room for.
                if len(self._held) >= self._max_frames:
                    self._drop_oldest()
                continue
            if self._ended and (not self._held or self._results.has_ended):
                self.unmatched_frames += len(self._held)
                self._held.clear()
                return None
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(
                    f"no pair of {self._frames.name} and {self._results.name} within {timeout} s"
                )
            poll.poll(None if left is None else 1000 * left)
        return self._ready.popleft()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[Frame, Any]:
        pair = self.next()
        if pair is None:
            raise StopIteration
        return pair
