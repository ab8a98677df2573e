# SPDX-License-Identifier: MIT OR Apache-2.0

"""Records that cross nodes. None of them has pixels."""

from dataclasses import dataclass, field
from typing import Any

NAMESPACE = "frameshare"
"""The namespace of the actors with names."""


@dataclass(frozen=True)
class View:
    """The streams of all nodes, as the directory knows them."""

    streams: dict[str, frozenset[str]] = field(default_factory=dict)
    """The nodes of each stream."""
    complete: bool = False
    """Whether every node has had the time to report since the directory started."""


@dataclass(frozen=True)
class Result:
    """The result of one frame, with the key of results in Python: session and sequence number."""

    stream: str
    node: str
    session: int
    sequence: int
    value: Any


@dataclass(frozen=True)
class Figures:
    """Counters of one reader, since its process started."""

    stream: str
    node: str
    pid: int
    frames: int = 0
    bytes: int = 0
    """Size of the frames that the reader read in place."""
    lost: int = 0
    """Frames that the stream's policy dropped, because the reader was late."""
    dropped: int = 0
    """Results that were not taken in time."""
    error: str | None = None
    """The reason why the reader has no stream at the moment."""
