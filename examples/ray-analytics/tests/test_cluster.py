# SPDX-License-Identifier: MIT OR Apache-2.0

"""A cluster of three nodes on this machine: placement, moves, losses of processes and of a node.

The tests share the cluster, and leave its cameras as they found them; the loss of a node comes last.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
import ray
from ray.exceptions import RayTaskError

from conftest import PATIENCE, TOOL, wait_until
from frameshare_ray import Figures, Options, Placement, Result, nodes
from frameshare_ray.local import LocalCluster, Node
from frameshare_ray.reader import Reader
from frameshare_ray.traffic import Traffic

CAMERA = ["--size", "640x360", "--rate", "30"]
IN_PLACE = Options(analysis="analyses:in_place")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3) as cluster:
        for number, node in enumerate(cluster.nodes):
            publish(node, f"cam{number}")
        yield cluster
        nodes.stop()


@pytest.fixture
def placement(cluster: LocalCluster) -> Iterator[Placement]:
    with Placement(["cam*"], IN_PLACE) as placement:
        collect(placement, lambda results: {result.stream for result in results} >= {"cam0", "cam1", "cam2"})
        yield placement


def publish(node: Node, stream: str) -> None:
    node.publish(stream, *CAMERA, tool=TOOL)


def collect(placement: Placement, done: Callable[[list[Result]], bool]) -> list[Result]:
    """Takes results until these are done."""
    results: list[Result] = []
    end = time.monotonic() + PATIENCE
    while not done(results):
        assert time.monotonic() < end, f"{placement.places}, {placement.figures(5)}, {results[-3:]}"
        results += placement.results(1)
    return results


def collect_from(placement: Placement, stream: str, node: Node) -> list[Result]:
    """Takes results until the stream is read at that node."""
    return collect(
        placement, lambda results: any((one.stream, one.node) == (stream, node.id) for one in results)
    )


def process_of(placement: Placement, stream: str) -> int | None:
    return next((one.pid for one in placement.figures(5) if one.stream == stream), None)


def test_frames_are_read_in_place_at_their_nodes(cluster: LocalCluster, placement: Placement) -> None:
    assert placement.places == {f"cam{number}": node.id for number, node in enumerate(cluster.nodes)}
    for result in collect(
        placement, lambda results: {one.stream for one in results} == set(placement.places)
    ):
        assert result.node == placement.places[result.stream]
        assert result.value["mapping"].startswith("/memfd:frameshare-slot:"), result.value
        assert result.value["rights"] == "r--s"
        assert not result.value["owned"]


def test_reader_at_the_wrong_node_finds_no_stream(cluster: LocalCluster) -> None:
    actor = ray.remote(Reader).options(
        num_cpus=0, max_concurrency=2, scheduling_strategy=nodes.at(cluster.nodes[2].id)
    )
    reader = actor.remote("cam0", IN_PLACE.analysis)
    found: list[Figures] = []

    def failed() -> bool:
        found.append(ray.get(reader.figures.remote()))
        return found[-1].error is not None

    wait_until(failed, "the reader reports an error")
    assert "cam0" in str(found[-1].error)
    assert found[-1].frames == 0
    ray.kill(reader)  # type: ignore[arg-type]


def test_results_and_no_frames_cross_nodes(cluster: LocalCluster, placement: Placement) -> None:
    before, traffic = {one.stream: one.bytes for one in placement.figures(PATIENCE)}, Traffic(cluster.nodes)
    results = collect(placement, lambda results: len(results) >= 300)
    crossed = traffic.between_nodes()
    # This process is at the head, as is cam0.
    remote = [one for one in placement.figures(PATIENCE) if one.stream != "cam0"]
    read = sum(one.bytes - before[one.stream] for one in remote)
    assert {one.stream for one in results} == {"cam0", "cam1", "cam2"}
    assert 0 < crossed < read / 20, f"{crossed} bytes between nodes, {read} bytes of frames"


def test_killed_reader_is_restarted_and_others_go_on(placement: Placement) -> None:
    before = {one.stream: one for one in placement.figures(PATIENCE)}
    os.kill(before["cam1"].pid, signal.SIGKILL)
    collect(placement, lambda _: process_of(placement, "cam1") not in (before["cam1"].pid, None))
    collect(placement, lambda results: any(one.stream == "cam1" for one in results))
    after = {one.stream: one for one in placement.figures(PATIENCE)}
    assert after["cam1"].node == before["cam1"].node
    for stream in ["cam0", "cam2"]:
        assert after[stream].pid == before[stream].pid
        assert after[stream].frames > before[stream].frames


def test_reader_follows_a_stream_to_another_node(cluster: LocalCluster, placement: Placement) -> None:
    cluster.nodes[1].end("cam1")
    publish(cluster.nodes[2], "cam1")
    collect_from(placement, "cam1", cluster.nodes[2])
    cluster.nodes[2].end("cam1")
    publish(cluster.nodes[1], "cam1")
    collect_from(placement, "cam1", cluster.nodes[1])


def test_killed_directory_costs_no_reader(cluster: LocalCluster, placement: Placement) -> None:
    before = {one.stream: one.pid for one in placement.figures(PATIENCE)}
    directory = nodes.directory(IN_PLACE.lost_after)
    pid = ray.get(directory.pid.remote())
    os.kill(pid, signal.SIGKILL)
    publish(cluster.nodes[1], "cam3")  # reported to the next directory only
    collect_from(placement, "cam3", cluster.nodes[1])
    assert ray.get(directory.pid.remote()) != pid
    cluster.nodes[1].end("cam3")
    collect(placement, lambda _: "cam3" not in placement.places)
    assert {one.stream: one.pid for one in placement.figures(PATIENCE)} == before


def test_readers_spread_to_a_second_node_of_their_streams(
    cluster: LocalCluster, placement: Placement
) -> None:
    for stream in ["cam3", "cam4", "cam5"]:
        publish(cluster.nodes[1], stream)
    collect(placement, lambda _: len(placement.places) == 6)
    for stream in ["cam3", "cam4", "cam5"]:
        publish(cluster.nodes[2], stream)
    collect(placement, lambda _: sorted(load(placement).values()) == [1, 2, 3])
    for node in cluster.nodes[1:]:
        for stream in ["cam3", "cam4", "cam5"]:
            node.end(stream)
    collect(placement, lambda _: len(placement.places) == 3)


def load(placement: Placement) -> dict[str, int]:
    places = list(placement.places.values())
    return {node: places.count(node) for node in places}


def test_error_of_an_analysis_reaches_the_caller(cluster: LocalCluster) -> None:
    with Placement(["cam0"], Options(analysis="analyses:broken")) as placement:
        with pytest.raises(RayTaskError, match="cannot be analyzed"):
            collect(placement, lambda _: False)


def test_command_prints_results_as_json(cluster: LocalCluster) -> None:
    address = ray.get_runtime_context().gcs_address
    command = [sys.executable, "-m", "frameshare_ray", "--address", address]
    shown = subprocess.run(
        [*command, "cam*", "--results", "60"], capture_output=True, text=True, timeout=PATIENCE
    )
    assert shown.returncode == 0, shown.stderr
    results = [json.loads(line) for line in shown.stdout.splitlines()]
    assert len(results) == 60
    assert set(results[0]) == {"stream", "node", "session", "sequence", "value"}
    assert isinstance(results[0]["session"], str) and "brightness" in results[0]["value"]


def test_readers_end_with_the_killed_program(cluster: LocalCluster) -> None:
    def readers() -> int:
        shown = subprocess.run(
            [TOOL, "info", "--json", "cam0"],
            env=cluster.nodes[0].environment,
            check=True,
            stdout=subprocess.PIPE,
        )
        return len(json.loads(shown.stdout)["readers"])

    wait_until(lambda: readers() == 0, "readers of other tests have ended")
    command = [
        sys.executable,
        "-m",
        "frameshare_ray",
        "--address",
        ray.get_runtime_context().gcs_address,
        "cam0",
    ]
    program = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: readers() == 1, "the program's reader")
    program.kill()
    program.wait()
    wait_until(lambda: readers() == 0, "the reader has ended")


def test_stream_of_a_lost_node_is_read_where_it_comes_back(
    cluster: LocalCluster, placement: Placement
) -> None:
    before = {one.stream: one.pid for one in placement.figures(PATIENCE)}
    lost, successor = cluster.nodes[2], cluster.nodes[1]
    cluster.lose(lost)
    begin = time.monotonic()
    assert placement.places["cam2"] == lost.id
    publish(successor, "cam2")  # as where a second host takes over the cameras of the first
    collect_from(placement, "cam2", successor)
    print(f"stream of the lost node is read again after {time.monotonic() - begin:.1f} s")
    after = {one.stream: one.pid for one in placement.figures(PATIENCE)}
    assert {stream: after[stream] for stream in ["cam0", "cam1"]} == {
        stream: before[stream] for stream in ["cam0", "cam1"]
    }
