# SPDX-License-Identifier: MIT OR Apache-2.0

"""Frames of several streams in one thread."""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Generic, Literal, Self, TypeVar, cast, overload

from ._errors import ClosedError, Error, HeldError, TimeoutError
from ._frameshare import Frame, Stats, _ReaderSet

Item = TypeVar("Item")

_Waiting = tuple[int, float, Frame]
"""The time of a frame in ns, the time of its arrival, and the frame."""

_HELD_CHECK = 1.0
"""Seconds without a frame after which the frames that this process holds are counted."""


@overload
def open_many(
    names: Iterable[str],
    *,
    by: Literal["fair", "oldest"] = "fair",
    policy: Literal["latest", "lossless"] = "latest",
    max_held: int = 4,
    device: int | str | None = None,
    reconnect: bool = True,
) -> "Cameras[tuple[str, Frame]]": ...
@overload
def open_many(
    names: Iterable[str],
    *,
    by: Literal["synchronized"],
    tolerance: float = 0.04,
    patience: float = 0.1,
    policy: Literal["latest", "lossless"] = "latest",
    max_held: int = 4,
    device: int | str | None = None,
    reconnect: bool = True,
) -> "Cameras[dict[str, Frame]]": ...
def open_many(
    names: Iterable[str],
    *,
    by: Literal["fair", "oldest", "synchronized"] = "fair",
    tolerance: float = 0.04,
    patience: float = 0.1,
    policy: Literal["latest", "lossless"] = "latest",
    max_held: int = 4,
    device: int | str | None = None,
    reconnect: bool = True,
) -> "Cameras[tuple[str, Frame]] | Cameras[dict[str, Frame]]":
    """Opens several streams, to read them in one thread. It does not wait for their exporters.

    `by` selects the order of frames:

    - "fair": pairs of a name and a frame, each stream in its turn, so that a fast one delays no other
    - "oldest": pairs, the oldest of the frames that have arrived first
    - "synchronized": dictionaries with one frame of each stream, whose times differ by at most `tolerance` seconds:
      the time from one frame to the next, at least, for cameras without a common clock. A set waits at most `patience`
      seconds for frames, and lacks the streams that have none in time.

    A stream that ends or fails does not end the others: see `Cameras.errors` and `Cameras.ended`.
    """
    if isinstance(names, str):
        raise TypeError(f"names is the text {names!r}, but must be a list of names")
    names = list(names)
    if len(set(names)) != len(names):
        raise ValueError(f"names has a name twice: {names}")
    if by not in ("fair", "oldest", "synchronized"):
        raise ValueError(f'invalid by {by!r}: expected "fair", "oldest" or "synchronized"')
    for what, seconds in (("tolerance", tolerance), ("patience", patience)):
        if not seconds >= 0:
            raise ValueError(f"{what} is {seconds}, but must be a number of seconds")
    if by == "synchronized" and max_held < 2:
        raise ValueError(f"max_held is {max_held}, but frames that wait for those of other streams need 2 or more")
    cameras = Cameras[tuple[str, Frame]](by, tolerance, patience, max_held)
    try:
        for name in names:
            cameras._add(name, policy, max_held, device, reconnect)
    except BaseException:
        cameras.close()
        raise
    return cameras


class Cameras(Generic[Item]):
    """Several streams, as `open_many` returns them. Iteration ends when all streams have ended or failed."""

    def __init__(self, by: str, tolerance: float, patience: float, max_held: int) -> None:
        self._set = _ReaderSet()
        self._by = by
        self._tolerance = int(tolerance * 1e9)
        self._patience = patience
        self._max_held = max_held
        self._names: list[str] = []
        self._waiting: dict[str, deque[_Waiting]] = {}
        self._errors: dict[str, Error] = {}
        self._ended: set[str] = set()
        self._since: float | None = None
        """The time since which a set of synchronized frames is waited for, beginning with its first frame."""

    def _add(
        self,
        name: str,
        policy: Literal["latest", "lossless"],
        max_held: int,
        device: int | str | None,
        reconnect: bool,
    ) -> None:
        self._set.add(name, policy=policy, max_held=max_held, device=device, reconnect=reconnect)
        self._names.append(name)
        self._waiting[name] = deque()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all streams."""
        return tuple(self._names)

    @property
    def errors(self) -> dict[str, Error]:
        """The exceptions of the streams that have failed, by their names."""
        return dict(self._errors)

    @property
    def ended(self) -> frozenset[str]:
        """The names of the streams that have ended and not continued since."""
        return frozenset(self._ended)

    @property
    def stats(self) -> dict[str, Stats]:
        """Statistics of the streams that have not failed, by their names."""
        stats = {name: self._set.stats(index) for index, name in enumerate(self._names)}
        return {name: of for name, of in stats.items() if of is not None}

    def next(self, timeout: float | None = None) -> Item | None:
        """Waits for the next item: see `open_many`. None when all streams have ended or failed.

        Raises `TimeoutError` if none comes within `timeout` seconds.
        """
        end = None if timeout is None else time.monotonic() + timeout
        select = {"fair": self._fair, "oldest": self._oldest, "synchronized": self._synchronized}[self._by]
        # The type of the items follows from `by`: see open_many.
        return cast(Item | None, select(end))

    def batches(self, size: int, wait: float = 0.02) -> Iterator[list[Item]]:
        """Yields lists of up to `size` items, which came within `wait` seconds after the first of them."""
        if size < 1:
            raise ValueError(f"size is {size}, but must be 1 or more")
        while (item := self.next()) is not None:
            batch, end = [item], time.monotonic() + wait
            while len(batch) < size:
                try:
                    item = self.next(max(end - time.monotonic(), 0.0))
                except TimeoutError:
                    break
                if item is None:
                    break
                batch.append(item)
            item = None
            yield batch
            # The frames go back before the wait for the next ones.
            del batch

    def interrupt(self, on: bool = True) -> None:
        """Ends waits for frames, of all threads, with `InterruptedError`, until `interrupt(False)`."""
        self._set.interrupt(on)

    def close(self) -> None:
        """Leaves the streams. Waits of other threads raise `ClosedError`; frames stay valid."""
        self._set.close()
        for waiting in self._waiting.values():
            waiting.clear()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Item:
        item = self.next()
        if item is None:
            raise StopIteration
        return item

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<frameshare.Cameras {self._names} by {self._by!r}>"

    def _is_over(self) -> bool:
        return len(self._errors.keys() | self._ended) == len(self._names)

    def _take(self, end: float | None) -> tuple[str, Frame] | None:
        """Waits for the next frame of any stream; None without one until `end`, and at the end of all streams."""
        while not self._is_over():
            left = None if end is None else max(end - time.monotonic(), 0.0)
            limit = _HELD_CHECK if left is None else min(left, _HELD_CHECK)
            found = self._set.next(limit)
            if found is None:
                if left is not None and left <= _HELD_CHECK:
                    return None
                self._check_held()
                continue
            index, item = found
            name = self._names[index]
            if isinstance(item, Frame):
                self._ended.discard(name)
                return name, item
            if item is None:
                self._ended.add(name)
            else:
                import logging

                logging.getLogger("frameshare").warning("stream %s is left: %s", name, item)
                self._errors[name] = item
        return None

    def _check_held(self) -> None:
        stats = [of for of in self.stats.values() if of.max_held > 0]
        if stats and all(of.held >= of.max_held for of in stats):
            raise HeldError(
                f"this process holds {sum(of.held for of in stats)} frames of {len(stats)} streams, all that it may "
                "hold: release frames, or delete arrays of them"
            )

    def _timeout(self, end: float | None) -> None:
        if not self._is_over():
            assert end is not None
            raise TimeoutError(f"no frame of {', '.join(self._names)} within the timeout")

    def _fair(self, end: float | None) -> tuple[str, Frame] | None:
        found = self._take(end)
        if found is None:
            self._timeout(end)
        return found

    def _arrive(self, end: float | None) -> tuple[str, int] | None:
        """Waits for a frame and adds it to those that wait; returns its stream and the number of those of it."""
        found = self._take(end)
        if found is None:
            return None
        name, frame = found
        now = time.monotonic()
        at = frame.pts if frame.pts is not None else int((now - frame.age) * 1e9)
        self._waiting[name].append((at, now, frame))
        return name, len(self._waiting[name])

    def _granted(self, name: str) -> int:
        """The number of frames of a stream that this process may hold, which its exporter can bound."""
        stats = self._set.stats(self._names.index(name))
        return (stats.max_held if stats is not None else 0) or self._max_held

    def _heads(self) -> dict[str, _Waiting]:
        return {name: waiting[0] for name, waiting in self._waiting.items() if waiting}

    def _oldest(self, end: float | None) -> tuple[str, Frame] | None:
        now = time.monotonic()
        # A frame of each stream that has one: they come in turns.
        for _ in range(2 * len(self._names)):
            if all(self._waiting.values()) or self._arrive(now) is None:
                break
        if not any(self._waiting.values()) and self._arrive(end) is None:
            self._timeout(end)
            return None
        heads = self._heads()
        name = min(heads, key=lambda name: heads[name][0])
        return name, self._take_waiting(name)

    def _synchronized(self, end: float | None) -> dict[str, Frame] | None:
        while True:
            heads = self._heads()
            if heads and self._since is None:
                self._since = min(arrival for _, arrival, _ in heads.values())
            due = None if self._since is None else self._since + self._patience
            if heads and (self._is_over() or (due is not None and due <= time.monotonic())):
                oldest = min(at for at, _, _ in heads.values())
                return self._pop(name for name, (at, _, _) in heads.items() if at <= oldest + self._tolerance)
            if heads and not self._connected() - heads.keys():
                newest = max(at for at, _, _ in heads.values())
                stale = [name for name, (at, _, _) in heads.items() if at < newest - self._tolerance]
                if not stale:
                    return self._pop(heads.keys())
                # A later frame of these streams may match.
                for name in stale:
                    self._waiting[name].popleft()
                continue
            # Without frames, nothing is due.
            limits = [limit for limit in (end, due if heads else None) if limit is not None]
            arrived = self._arrive(min(limits, default=None))
            if arrived is not None:
                name, count = arrived
                if count > max(self._granted(name) - 1, 1):
                    self._waiting[name].popleft()
            elif not heads and self._is_over():
                return None
            elif end is not None and end <= time.monotonic():
                self._timeout(end)

    def _take_waiting(self, name: str) -> Frame:
        try:
            return self._waiting[name].popleft()[2]
        except IndexError:
            # Another thread has called close().
            raise ClosedError("the set of streams was closed by this process") from None

    def _connected(self) -> set[str]:
        """The streams whose frames may come."""
        return {name for name, of in self.stats.items() if of.max_held > 0 and name not in self._ended}

    def _pop(self, names: Iterable[str]) -> dict[str, Frame]:
        taken = set(names)
        self._since = None
        return {name: self._take_waiting(name) for name in self._names if name in taken}
