# SPDX-License-Identifier: MIT OR Apache-2.0

"""The reader of one stream: analyzes frames in place, on the node where they are."""

import dataclasses
import os
import threading
import time

import frameshare
import ray

from . import analysis
from .outbox import Outbox
from .records import Figures, Result

CAPACITY = 1000
"""Results that wait for the placement at most."""
RETRY = 0.5
"""Seconds until a stream that could not be opened is tried again."""


class Reader:
    """Reads from a thread of its own for as long as the actor lives. Each result is taken once."""

    def __init__(self, stream: str, analysis_name: str) -> None:
        self._stream = stream
        self._analyze = analysis.load(analysis_name)
        self._node = ray.get_runtime_context().get_node_id()
        self._figures = Figures(stream, self._node, os.getpid())
        self._outbox = Outbox(CAPACITY)
        threading.Thread(target=self._run, daemon=True).start()

    @ray.method
    def take(self, timeout: float, batch: float) -> list[Result]:
        """Returns the results since the last call, or raises the error of the analysis."""
        return self._outbox.take(timeout, batch)

    @ray.method
    def figures(self) -> Figures:
        """Returns the counters."""
        return dataclasses.replace(self._figures, dropped=self._outbox.dropped)

    def _run(self) -> None:
        while True:
            try:
                self._read()
                error_text = "the stream has ended"
            except frameshare.Error as error:  # shown, and tried again
                error_text = str(error)
            except Exception as error:  # of the analysis
                self._outbox.fail(error)
                return
            self._figures = dataclasses.replace(self._figures, error=error_text)
            time.sleep(RETRY)

    def _read(self) -> None:
        with frameshare.open(self._stream) as stream:
            for frame in stream:
                with frame:
                    value = self._analyze(frame)
                    size = sum(plane.stride * plane.height for plane in frame.planes)
                    result = Result(self._stream, self._node, frame.session, frame.sequence, value)
                self._outbox.add(result)
                before = self._figures
                self._figures = dataclasses.replace(
                    before,
                    frames=before.frames + 1,
                    bytes=before.bytes + size,
                    lost=before.lost + frame.lost_before,
                    error=None,
                )
