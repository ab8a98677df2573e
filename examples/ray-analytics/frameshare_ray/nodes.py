# SPDX-License-Identifier: MIT OR Apache-2.0

"""Actors with names, the directory and an agent for each node, and the nodes of the cluster."""

import ray
from ray.actor import ActorHandle, ActorProxy
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from .agent import Agent
from .directory import Directory
from .records import NAMESPACE

DIRECTORY = "directory"
HEAD = {"node:__internal_head__": 0.001}
"""A resource of the head, without which there is no cluster."""
UNLIMITED = -1
"""Restarts of an actor."""


def at(node: str) -> NodeAffinitySchedulingStrategy:
    """Returns the strategy that runs an actor at this node and nowhere else."""
    return NodeAffinitySchedulingStrategy(node, soft=False)


def agent_name(node: str) -> str:
    """Returns the name of the agent of a node."""
    return f"agent-{node}"


def alive() -> list[str]:
    """Returns the nodes that Ray takes for alive."""
    return [str(node["NodeID"]) for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def directory(lost_after: float) -> ActorProxy[Directory]:
    """Returns the directory of the cluster, and starts it if there is none."""
    options = ray.remote(Directory).options(
        name=DIRECTORY,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        num_cpus=0,
        resources=HEAD,  # the loss of another node costs no directory
        max_restarts=UNLIMITED,
    )
    return options.remote(lost_after)


def agent(node: str, known: ActorProxy[Directory], interval: float) -> ActorProxy[Agent]:
    """Returns the agent of a node, and starts it if there is none."""
    options = ray.remote(Agent).options(
        name=agent_name(node),
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        num_cpus=0,
        max_restarts=UNLIMITED,
        scheduling_strategy=at(node),
    )
    return options.remote(known, interval)


def stop() -> None:
    """Ends the directory and the agents."""
    for name in [DIRECTORY, *map(agent_name, alive())]:
        try:
            actor: ActorHandle[object] = ray.get_actor(name, namespace=NAMESPACE)
        except ValueError:  # not running
            continue
        ray.kill(actor)
