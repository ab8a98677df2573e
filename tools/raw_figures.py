# SPDX-License-Identifier: MIT OR Apache-2.0
"""Figures of the benches' raw files, by round."""

import json

from svg_bars import Spread


def lines(path):
    """Objects of a raw file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


# Figures of one run; microseconds and frames.


def p50(run):
    return max((reader["p50"] for reader in run["received"]), default=None)


def p99(run):
    return max((reader["p99"] for reader in run["received"]), default=None)


def rate(run):
    return min(reader["frames"] / reader["seconds"] for reader in run["received"] if reader["seconds"])


def reader_cpu(run):
    frames = sum(reader["frames"] for reader in run["received"])
    return sum(reader["usage"]["cpu"] for reader in run["received"]) / 1e3 / frames


def exporter_cpu(run):
    sent = run["exported"]
    return (sent["usage"]["cpu"] + sent.get("daemon_cpu", 0)) / 1e3 / sent["frames"]


def all_cpu(run):
    return exporter_cpu(run) + reader_cpu(run) * len(run["received"])


class Runs:
    """Runs of transports, by round. The rounds of several files follow each other."""

    def __init__(self, *paths, base=None):
        self.outcomes = []
        for path in paths:
            before = max((outcome["round"] for outcome in self.outcomes), default=0)
            self.outcomes += [{**outcome, "round": before + outcome["round"]} for outcome in lines(path)]
        self.base = base  # The transport whose cost is subtracted from exporters'.

    def by_round(self, transport, figure, readers, rate, height=1080):
        """A figure of each round; a run that got stuck has none."""
        found = {}
        for outcome in self.outcomes:
            case = outcome["case"]
            here = (case["readers"], case["rate"], case["size"]["height"]) == (readers, rate, height)
            if here and not case.get("by_kernel") and outcome["transport"] == transport:
                if "Ok" in outcome["result"]:
                    found[outcome["round"]] = figure(outcome["result"]["Ok"])
        if self.base and transport != self.base and figure in (exporter_cpu, all_cpu):
            alone = self.by_round(self.base, exporter_cpu, readers, rate, height)
            found = {index: value - alone[index] for index, value in found.items() if index in alone}
        return found

    def spread(self, *what, **where):
        return Spread.of(self.by_round(*what, **where).values())

    def ratio(self, ours, rival, *what, **where):
        """Of ours to a rival's in the same round."""
        theirs = self.by_round(rival, *what, **where)
        mine = self.by_round(ours, *what, **where)
        return Spread.of([mine[index] / theirs[index] for index in mine if theirs.get(index)])

    def lost(self, transport):
        """Lost frames of all runs, of those that were sent to readers."""
        lost = sent = stuck = 0
        for outcome in self.outcomes:
            if outcome["transport"] == transport:
                run = outcome["result"].get("Ok")
                stuck += run is None
                for reader in run["received"] if run else []:
                    sent += run["exported"]["frames"]
                    lost += max(run["exported"]["frames"] - reader["frames"], 0)
        return f"{lost:,} of {sent:,}" + (f"; {stuck} runs stuck" if stuck else "")


class Sharing:
    """One decoder whose frames are shared, and a decoder in each reader."""

    def __init__(self, path):
        self.outcomes = lines(path)

    def by_round(self, shares, figure, readers):
        runs = (run for run in self.outcomes if (run["shares"], run["readers"]) == (shares, readers))
        return {run["round"]: figure(run) for run in runs}

    def spread(self, *what):
        return Spread.of(self.by_round(*what).values())

    def ratio(self, figure, readers):
        each = self.by_round(False, figure, readers)
        shared = self.by_round(True, figure, readers)
        return Spread.of([shared[index] / each[index] for index in shared if index in each])

    @staticmethod
    def cpu(run):
        """Milliseconds of all processes for a frame in every reader."""
        frames = sum(one["frames"] for one in run["processes"] if one["job"] != "share") / run["readers"]
        return sum(one["cpu"] for one in run["processes"]) / 1e6 / frames

    @staticmethod
    def memory(run):
        return sum(one["pss"] for one in run["processes"]) / 1e6

    @staticmethod
    def gpu_memory(run):
        return run["gpu_memory"] / 1e6

    @staticmethod
    def slowest(run):
        frames = (one["frames"] for one in run["processes"] if one["job"] != "share")
        return min(frames) / run["seconds"]
