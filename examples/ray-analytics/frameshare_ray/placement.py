# SPDX-License-Identifier: MIT OR Apache-2.0

"""The placement: keeps an agent at each node and a reader for each stream, and yields results."""

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import ray
from ray import ObjectRef
from ray.actor import ActorProxy
from ray.exceptions import ActorUnavailableError, ActorUnschedulableError, RayActorError

from . import analysis, nodes
from .plan import plan
from .reader import Reader
from .records import Figures, Result, View

log = logging.getLogger(__name__)

LOST = (RayActorError, ActorUnschedulableError)
"""Errors of calls to an actor whose node is lost."""


@dataclass(frozen=True)
class Options:
    """Settings of a placement. The directory keeps those of the placement that started it."""

    analysis: str = "frameshare_ray.analysis:brightness"
    """The function of each frame, as "module:function"; each node must be able to import it."""
    lost_after: float = 5.0
    """Seconds without a report after which a node counts as lost."""
    report_interval: float = 1.0
    """Seconds between reports of an agent without changes."""
    batch: float = 0.1
    """Seconds for which a reader collects results before they cross."""
    reader: dict[str, Any] = field(default_factory=lambda: {"num_cpus": 0})
    """Ray's options of reader actors, such as {"num_gpus": 0.25}."""


@dataclass
class _Placed:
    """A reader, and its call that waits for results; none while Ray restarts its process."""

    node: str
    actor: ActorProxy[Reader]
    results: ObjectRef[list[Result]] | None = None


class Placement:
    """Readers of the streams that match patterns such as "cam*"; they end with this process."""

    def __init__(self, patterns: Sequence[str], options: Options | None = None) -> None:
        self._patterns = list(patterns)
        self._options = options or Options()
        analysis.load(self._options.analysis)  # a wrong name is an error here
        self._directory = nodes.directory(self._options.lost_after)
        self._agents: dict[str, object] = {}
        self._readers: dict[str, _Placed] = {}
        self._view = View()
        self._next_check = 0.0
        self._views: ObjectRef[View] | None = None

    @property
    def places(self) -> dict[str, str]:
        """The node of each reader."""
        return {stream: reader.node for stream, reader in self._readers.items()}

    def results(self, timeout: float) -> list[Result]:
        """Follows the directory, and returns results: none after the timeout."""
        if time.monotonic() >= self._next_check:
            self._next_check = time.monotonic() + self._options.report_interval
            self._check_nodes()
            self._place()
            self._ask_all()
        calls: dict[ObjectRef[Any], str] = {
            placed.results: stream for stream, placed in self._readers.items() if placed.results
        }
        waiting = [*calls, self._views] if self._views else [*calls]
        patience = min(timeout, self._options.report_interval)
        if not waiting:
            time.sleep(patience)
            return []
        if not ray.wait(waiting, num_returns=1, timeout=patience)[0]:
            return []
        ready, _ = ray.wait(waiting, num_returns=len(waiting), timeout=0)
        taken = [result for call in ready if call in calls for result in self._take(calls[call])]
        if self._views in ready:
            self._follow()
        return taken

    def __iter__(self) -> Iterator[Result]:
        while True:
            yield from self.results(self._options.report_interval)

    def figures(self, timeout: float) -> list[Figures]:
        """Returns the counters of the readers that answer in time."""
        calls = [reader.actor.figures.remote() for reader in self._readers.values()]
        ready, _ = ray.wait(calls, num_returns=len(calls), timeout=timeout) if calls else ([], [])
        answers: list[Figures] = []
        for call in ready:
            try:
                answers.append(ray.get(call))
            except LOST:  # its node is lost: the view says so soon
                continue
        return answers

    def close(self) -> None:
        """Ends the readers. Directory and agents stay, until `nodes.stop` ends them."""
        for stream in list(self._readers):
            self._stop(stream)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_nodes(self) -> None:
        """Starts agents at new nodes."""
        alive = nodes.alive()
        self._agents = {node: actor for node, actor in self._agents.items() if node in alive}
        for node in alive:
            if node not in self._agents:
                self._agents[node] = nodes.agent(node, self._directory, self._options.report_interval)

    def _ask_all(self) -> None:
        """Calls the directory and the readers that have no call under way."""
        if not self._views:
            self._ask_directory()
        for placed in self._readers.values():
            if not placed.results:
                self._ask_reader(placed)

    def _ask_directory(self) -> None:
        self._views = self._directory.wait.remote(self._view, self._options.lost_after)

    def _ask_reader(self, placed: _Placed) -> None:
        placed.results = placed.actor.take.remote(self._options.lost_after, self._options.batch)

    def _follow(self) -> None:
        """Applies the view of the directory."""
        call, self._views = self._views, None
        try:
            self._view = ray.get(call) if call else self._view
        except ActorUnavailableError as error:  # asked again at the next check
            log.warning("the directory restarts: %s", error)
            return
        self._ask_directory()
        self._place()

    def _place(self) -> None:
        """Starts, moves and stops readers as planned."""
        current = self.places
        places = plan(self._view, self._patterns, current)
        for stream, node in current.items():
            if places.get(stream) != node:
                self._stop(stream)
        for stream, node in places.items():
            if stream not in self._readers:
                self._start(stream, node)

    def _start(self, stream: str, node: str) -> None:
        log.info("%s is read at node %s", stream, node)
        options = ray.remote(Reader).options(
            **{
                **self._options.reader,
                "max_concurrency": 2,  # counters are read while `take` waits
                "max_restarts": nodes.UNLIMITED,
                "scheduling_strategy": nodes.at(node),
            }
        )
        placed = _Placed(node, options.remote(stream, self._options.analysis))
        self._readers[stream] = placed
        self._ask_reader(placed)

    def _stop(self, stream: str) -> None:
        reader = self._readers.pop(stream)
        log.info("%s is no longer read at node %s", stream, reader.node)
        ray.kill(reader.actor)  # type: ignore[arg-type]

    def _take(self, stream: str) -> list[Result]:
        """Returns the results of a reader that has some, and asks it for more."""
        placed = self._readers[stream]
        call, placed.results = placed.results, None
        try:
            results = ray.get(call) if call else []
            self._ask_reader(placed)
            return results
        except ActorUnavailableError as error:  # asked again at the next check
            log.warning("the reader of %s restarts: %s", stream, error)
        except LOST as error:
            log.warning("the reader of %s is lost: %s", stream, error)
            del self._readers[stream]
        return []
