# SPDX-License-Identifier: MIT OR Apache-2.0

"""A cluster on one machine, for tests and figures.

Each node has a folder of streams of its own: its processes find the streams of no other node.
"""

import logging
import os
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # before Ray is imported

import ray
from ray.cluster_utils import Cluster

from .records import NAMESPACE


class Node:
    """A node and its exporters."""

    def __init__(self, node: str, folder: Path) -> None:
        self.id = node
        self.folder = folder
        self._exporters: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a process that runs at this node."""
        return {**os.environ, "XDG_RUNTIME_DIR": str(self.folder)}

    def publish(self, stream: str, *options: str, tool: str = "frameshare") -> None:
        """Starts an exporter of a test pattern."""
        command = [tool, "publish", stream, *options]
        self._exporters[stream] = subprocess.Popen(command, env=self.environment, stdout=subprocess.DEVNULL)

    def end(self, stream: str) -> None:
        """Kills an exporter."""
        exporter = self._exporters.pop(stream)
        exporter.kill()
        exporter.wait()

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to all processes of this node: Ray's, actors and exporters."""
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                environment = (folder / "environ").read_bytes()
                if f"XDG_RUNTIME_DIR={self.folder}\0".encode() in environment:
                    os.kill(int(folder.name), number)
            except (ProcessLookupError, FileNotFoundError, PermissionError):  # ended, or foreign
                continue


class LocalCluster:
    """A cluster without dashboard and usage statistics, to which this process is connected."""

    def __init__(self, nodes: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fs-")  # sockets have short paths
        os.environ["RAY_TMPDIR"] = self._folder.name
        self._cluster = Cluster()
        self.nodes = [self.add(number) for number in range(nodes)]
        ray.init(
            address=self._cluster.address,
            namespace=NAMESPACE,
            logging_level=logging.WARNING,
            log_to_driver=False,
        )

    def add(self, number: int) -> Node:
        """Adds a node; the first one is the head."""
        folder = Path(self._folder.name) / f"n{number}"
        folder.mkdir(mode=0o700)
        options: dict[str, Any] = {} if number else {"include_dashboard": False}
        started = self._cluster.add_node(num_cpus=1, env_vars={"XDG_RUNTIME_DIR": str(folder)}, **options)
        return Node(started.node_id, folder)

    def lose(self, node: Node) -> None:
        """Freezes a node: as in a power failure, no process ends and no connection is closed."""
        node.signal(signal.SIGSTOP)

    def close(self) -> None:
        """Ends everything."""
        ray.shutdown()
        for node in self.nodes:
            node.signal(signal.SIGKILL)
        self._cluster.shutdown()  # type: ignore[no-untyped-call]
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
