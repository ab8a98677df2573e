# SPDX-License-Identifier: MIT OR Apache-2.0

"""Results of a reader until the placement takes them: a bounded queue that drops the oldest."""

import threading
from collections import deque

from .records import Result


class Outbox:
    """A queue between the thread that reads frames and the actor's calls."""

    def __init__(self, capacity: int) -> None:
        self._results: deque[Result] = deque(maxlen=capacity)
        self._changed = threading.Condition()
        self._failure: Exception | None = None
        self.dropped = 0

    def add(self, result: Result) -> None:
        """Adds a result, and drops the oldest if the queue is full."""
        with self._changed:
            self.dropped += len(self._results) == self._results.maxlen
            self._results.append(result)
            self._changed.notify()

    def fail(self, error: Exception) -> None:
        """Makes the next `take` raise the error."""
        with self._changed:
            self._failure = error
            self._changed.notify()

    def take(self, timeout: float, batch: float) -> list[Result]:
        """Waits for a result, and for those of `batch` seconds more; none at the timeout."""
        with self._changed:
            if self._changed.wait_for(lambda: self._results or self._failure, timeout):
                self._changed.wait_for(lambda: self._failure, batch)
            if self._failure:
                raise self._failure
            taken = list(self._results)
            self._results.clear()
            return taken
