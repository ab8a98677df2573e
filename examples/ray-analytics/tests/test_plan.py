# SPDX-License-Identifier: MIT OR Apache-2.0

"""Plans, without Ray."""

from frameshare_ray.plan import plan
from frameshare_ray.records import View


def view(**streams: str) -> View:
    """Nodes have names of one letter: `view(cam0="ab")` is a stream of two nodes."""
    return View({stream: frozenset(nodes) for stream, nodes in streams.items()}, True)


def test_each_stream_is_read_at_its_node() -> None:
    assert plan(view(cam0="a", cam1="b"), ["*"], {}) == {"cam0": "a", "cam1": "b"}


def test_only_streams_that_match_are_read() -> None:
    streams = view(cam0="a", cam1="a", other="a")
    assert plan(streams, ["cam0", "oth*"], {}) == {"cam0": "a", "other": "a"}


def test_reader_stays_while_its_node_has_the_stream() -> None:
    assert plan(view(cam0="ab"), ["*"], {"cam0": "b"}) == {"cam0": "b"}


def test_reader_follows_a_stream_to_another_node() -> None:
    assert plan(view(cam0="b"), ["*"], {"cam0": "a"}) == {"cam0": "b"}


def test_reader_of_a_vanished_stream_is_stopped() -> None:
    assert plan(view(), ["*"], {"cam0": "a"}) == {}


def test_incomplete_view_stops_and_moves_no_reader() -> None:
    known = View(view(cam1="b", cam2="c").streams, complete=False)
    assert plan(known, ["*"], {"cam0": "a", "cam1": "a"}) == {"cam0": "a", "cam1": "a", "cam2": "c"}


def test_streams_of_several_nodes_are_spread() -> None:
    places = plan(view(cam0="ab", cam1="ab", cam2="ab", cam3="ab"), ["*"], {})
    assert sorted(places.values()) == ["a", "a", "b", "b"]


def test_readers_move_to_a_node_that_joins() -> None:
    current = {"cam0": "a", "cam1": "a", "cam2": "a", "cam3": "a"}
    places = plan(view(cam0="ab", cam1="ab", cam2="ab", cam3="ab"), ["*"], current)
    assert sorted(places.values()) == ["a", "a", "b", "b"]
    assert plan(view(cam0="ab", cam1="ab", cam2="ab", cam3="ab"), ["*"], places) == places


def test_difference_of_one_moves_no_reader() -> None:
    current = {"cam0": "a", "cam1": "a", "cam2": "b"}
    assert plan(view(cam0="ab", cam1="ab", cam2="ab"), ["*"], current) == current
