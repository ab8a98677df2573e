# SPDX-License-Identifier: MIT OR Apache-2.0

"""Bytes of TCP between the nodes of a local cluster, counted for each connection (`ss`)."""

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

from .local import Node

Ends = tuple[str, str]


def node_of(pid: int, nodes: Iterable[Node], head: str) -> str:
    """Returns the node of a process, by its folder of streams; the head has all others."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # ended since
        return head
    for node in nodes:
        if f"XDG_RUNTIME_DIR={node.folder}\0".encode() in environment:
            return node.id
    return head


def sent(text: str) -> dict[Ends, tuple[int, int]]:
    """Returns process and bytes sent for each end of a connection that `ss -tinpH` prints."""
    found: dict[Ends, tuple[int, int]] = {}
    lines = text.splitlines()
    for first, second in zip(lines, lines[1:]):
        pid, bytes_sent = re.search(r"pid=(\d+)", first), re.search(r"bytes_sent:(\d+)", second)
        if pid and bytes_sent and not first[0].isspace():
            local, peer = (address.replace("[::ffff:", "").replace("]", "") for address in first.split()[3:5])
            found[local, peer] = int(pid[1]), int(bytes_sent[1])
    return found


class Traffic:
    """Counts from its creation. Connections that open and close between two counts are missed."""

    def __init__(self, nodes: list[Node]) -> None:
        self._nodes = nodes
        self._before = self._count()

    def between_nodes(self) -> int:
        """Returns the bytes, Ray's own included, that nodes have sent to other nodes."""
        return sum(now - self._before.get(ends, 0) for ends, now in self._count().items())

    def _count(self) -> dict[Ends, int]:
        shown = subprocess.run(["ss", "-tinpH"], check=True, capture_output=True, text=True).stdout
        connections = sent(shown)
        head = self._nodes[0].id
        node = {ends: node_of(pid, self._nodes, head) for ends, (pid, _) in connections.items()}
        return {
            (local, peer): count
            for (local, peer), (_, count) in connections.items()
            if (peer, local) in node and node[local, peer] != node[peer, local]
        }
