# SPDX-License-Identifier: MIT OR Apache-2.0

"""The reports of all nodes, and the time at which each one expires. Knows nothing of Ray."""

from .records import View


class Registry:
    """Keeps the last report of each node. Times are seconds of one monotonic clock."""

    def __init__(self, lost_after: float, now: float) -> None:
        self._lost_after = lost_after
        self._started = now
        self._reports: dict[str, tuple[float, frozenset[str]]] = {}

    def report(self, node: str, streams: frozenset[str], now: float) -> None:
        """Replaces the streams of a node."""
        self._reports[node] = (now, streams)

    def view(self, now: float) -> View:
        """Returns the streams of the nodes that have reported recently."""
        nodes: dict[str, set[str]] = {}
        for node, (at, streams) in self._reports.items():
            if now < at + self._lost_after:
                for stream in streams:
                    nodes.setdefault(stream, set()).add(node)
        complete = now >= self._started + self._lost_after
        return View({stream: frozenset(names) for stream, names in sorted(nodes.items())}, complete)

    def next_expiry(self, now: float) -> float:
        """Returns the time at which the view may change without a report."""
        times = [at + self._lost_after for at in (self._started, *(at for at, _ in self._reports.values()))]
        return min((time for time in times if time > now), default=now + self._lost_after)
