# SPDX-License-Identifier: MIT OR Apache-2.0

"""The directory's reports, without Ray."""

from frameshare_ray.records import View
from frameshare_ray.registry import Registry

CAM0, BOTH = frozenset({"cam0"}), frozenset({"cam0", "cam1"})
A, B = frozenset({"a"}), frozenset({"b"})


def test_view_has_the_nodes_of_each_stream() -> None:
    registry = Registry(5, now=0)
    registry.report("a", CAM0, now=1)
    registry.report("b", BOTH, now=2)
    assert registry.view(3) == View({"cam0": A | B, "cam1": B}, False)


def test_report_replaces_the_streams_of_its_node() -> None:
    registry = Registry(5, now=0)
    registry.report("a", BOTH, now=1)
    registry.report("a", CAM0, now=2)
    assert registry.view(3).streams == {"cam0": A}


def test_node_that_stops_reporting_is_forgotten() -> None:
    registry = Registry(5, now=0)
    registry.report("a", CAM0, now=1)
    registry.report("b", CAM0, now=2)
    assert registry.next_expiry(2) == 5  # the view is complete
    assert registry.next_expiry(5) == 6
    assert registry.view(5.9).streams == {"cam0": A | B}
    assert registry.view(6).streams == {"cam0": B}
    assert registry.view(7).streams == {}


def test_view_is_complete_once_every_node_had_time_to_report() -> None:
    registry = Registry(5, now=10)
    assert not registry.view(14.9).complete
    assert registry.view(15).complete
