# SPDX-License-Identifier: MIT OR Apache-2.0

"""The directory of streams and nodes: a detached actor with a name.

It keeps nothing on disk. After a restart the next reports fill it, and its view is incomplete until
then.
"""

import asyncio
import os
import time

import ray

from .records import View
from .registry import Registry


class Directory:
    """Collects the reports of agents, and forgets nodes that stop reporting."""

    def __init__(self, lost_after: float) -> None:
        self._registry = Registry(lost_after, time.monotonic())
        self._reported = asyncio.Condition()

    @ray.method
    async def report(self, node: str, streams: frozenset[str]) -> None:
        """Replaces the streams of a node."""
        async with self._reported:
            self._registry.report(node, streams, time.monotonic())
            self._reported.notify_all()

    @ray.method
    async def wait(self, known: View, timeout: float) -> View:
        """Returns the view as soon as it differs from the known one, or after the timeout."""
        end = time.monotonic() + timeout
        async with self._reported:
            while True:
                now = time.monotonic()
                view = self._registry.view(now)
                if view != known or now >= end:
                    return view
                try:
                    await asyncio.wait_for(
                        self._reported.wait(), min(end, self._registry.next_expiry(now)) - now
                    )
                except TimeoutError:
                    pass

    @ray.method
    async def pid(self) -> int:
        """Returns the process of the directory."""
        return os.getpid()
