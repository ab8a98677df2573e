# SPDX-License-Identifier: MIT OR Apache-2.0

"""The plan: at which node each stream is read. Knows nothing of Ray."""

from collections import Counter
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from .records import View


def plan(view: View, patterns: Iterable[str], current: Mapping[str, str]) -> dict[str, str]:
    """Returns the node of each reader.

    A reader stays while its node has the stream. A stream of several nodes is read at the one with the
    fewest readers, and moves only if that evens out the numbers. While the view is incomplete, no
    reader is stopped or moved.
    """
    wanted = [name for name in view.streams if any(fnmatchcase(name, pattern) for pattern in patterns)]
    if view.complete:
        places = {name: current[name] for name in wanted if current.get(name) in view.streams[name]}
    else:
        places = dict(current)
    load = Counter(places.values())
    for name in wanted:
        if name not in places:
            places[name] = min(view.streams[name], key=lambda node: (load[node], node))
            load[places[name]] += 1
    if view.complete:
        _balance(view, places, load)
    return places


def _balance(view: View, places: dict[str, str], load: Counter[str]) -> None:
    """Moves readers to nodes of their streams that have at least two readers less."""
    moved = True
    while moved:
        moved = False
        for name, node in places.items():
            best = min(view.streams[name], key=lambda other: (load[other], other))
            if load[best] + 2 <= load[node]:
                load[node] -= 1
                load[best] += 1
                places[name] = best
                moved = True
