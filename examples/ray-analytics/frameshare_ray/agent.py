# SPDX-License-Identifier: MIT OR Apache-2.0

"""The agent of a node: reports its streams to the directory, at each change and periodically."""

import logging
import threading
import time

import frameshare
import ray
from ray.actor import ActorProxy
from ray.exceptions import RayError

from .directory import Directory

log = logging.getLogger(__name__)


class Agent:
    """Reports from a thread of its own for as long as the actor lives."""

    def __init__(self, directory: ActorProxy[Directory], interval: float) -> None:
        self._directory = directory
        self._interval = interval
        self._node = ray.get_runtime_context().get_node_id()
        threading.Thread(target=self._run, daemon=True).start()

    @ray.method
    def node(self) -> str:
        """Returns the node of this agent."""
        return self._node

    def _run(self) -> None:
        while True:
            try:
                self._report_changes()
            except frameshare.Error as error:  # a folder of streams that cannot be read
                log.error("streams of node %s cannot be listed: %s", self._node, error)
                time.sleep(self._interval)

    def _report_changes(self) -> None:
        with frameshare.watch_streams() as changes:
            while True:
                self._report()
                try:
                    changes.next(self._interval)
                except frameshare.TimeoutError:
                    pass

    def _report(self) -> None:
        streams = frozenset(stream.name for stream in frameshare.streams())
        try:
            ray.get(self._directory.report.remote(self._node, streams), timeout=self._interval)
        except RayError as error:  # the next report fills the directory
            log.warning("report of node %s failed: %s", self._node, error)
