# SPDX-License-Identifier: MIT OR Apache-2.0

"""Items of a stream between its frames, as `Stream.items` yields them."""

from dataclasses import dataclass
from datetime import date
from fractions import Fraction
from typing import Literal, Union

Value = Union[
    bool, int, float, str, bytes, None, Fraction, date, range, "list[Value]", "tuple[Value, ...]", "Structure"
]
"""A value of a tag or a field: numbers, texts, bytes, fractions, dates and ranges. A time is a text in the form of
ISO 8601, an enumeration its number, flags with a mask are a pair, caps are a list of structures."""


@dataclass(frozen=True, slots=True)
class Structure:
    """A name with fields."""

    name: str
    fields: dict[str, Value]


@dataclass(frozen=True, slots=True)
class Format:
    """The format of the following frames, as caps of GStreamer."""

    caps: str


@dataclass(frozen=True, slots=True)
class StreamStart:
    """The start of a stream. It ends the tags and custom events of the one before."""

    id: str
    flags: int
    group: int | None


@dataclass(frozen=True, slots=True)
class Tags:
    """Tags of the stream, or of the medium with all its streams ("global"). They replace those of the same scope."""

    scope: Literal["stream", "global"]
    tags: dict[str, tuple[Value, ...]]


@dataclass(frozen=True, slots=True)
class Gap:
    """A time without frames, in ns of `time.monotonic_ns()`."""

    pts: int
    duration: int | None
    flags: int


@dataclass(frozen=True, slots=True)
class Segment:
    """The exporter's segment, which turns times of frames into timestamps of its file. All times are in ns."""

    origin: int
    rate: float
    applied_rate: float
    start: int
    stop: int | None
    offset: int
    time: int
    base: int

    def timestamp(self, pts: int) -> int:
        """Returns the exporter's timestamp at a time of `time.monotonic_ns()`, such as `Frame.pts`."""
        running = pts - self.origin - self.base
        return (running if self.rate == 1.0 else int(running * self.rate)) + self.start + self.offset

    def stream_time(self, pts: int) -> int:
        """Returns the position in the medium at a time of `time.monotonic_ns()`."""
        inside = self.timestamp(pts) - self.start
        return (inside if self.applied_rate == 1.0 else int(inside * self.applied_rate)) + self.time


@dataclass(frozen=True, slots=True)
class Custom:
    """An event of the application. Of "sticky" ones, a joining reader gets the newest of each name."""

    name: str
    fields: dict[str, Value]
    delivery: Literal["in-order", "both", "sticky"]


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """A sticky event of an earlier stream was withdrawn."""

    kind: int


@dataclass(frozen=True, slots=True)
class Unknown:
    """An event of another sender, or of a later version."""

    kind: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class EndOfStream:
    """The stream has ended; it may continue later."""


@dataclass(frozen=True, slots=True)
class Reconnected:
    """The next exporter was found: sequence numbers start again."""


Event = Format | StreamStart | Tags | Gap | Segment | Custom | Withdrawn | Unknown | EndOfStream | Reconnected
