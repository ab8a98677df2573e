# SPDX-License-Identifier: MIT OR Apache-2.0
"""Containers of compose files and Kubernetes manifests: what the kernel sees of them."""

from dataclasses import dataclass
from pathlib import Path

import yaml

ROLES = ("capture", "decode", "record", "motion", "model", "wall")


@dataclass(frozen=True)
class Container:
    """A container of a role. Those with the same name of a namespace share it."""

    role: str
    user: int
    mounts: dict[str, str]
    """Path of each volume."""
    pid: str
    ipc: str
    network: str
    is_user_mapped: bool
    """Whether it has the host's user namespace."""


def merged(files):
    """Returns the services of compose files, later ones over earlier ones, lists joined."""
    services = {}
    for file in files:
        for name, service in yaml.safe_load(file.read_text())["services"].items():
            before = services.setdefault(name, {})
            for key, value in service.items():
                joined = isinstance(value, list) and key in ("volumes", "configs", "secrets")
                before[key] = before.get(key, []) + value if joined else value
    return services


def compose(*files: Path) -> list[Container]:
    def namespace(name, text):
        return text.removeprefix("service:") if (text or "").startswith("service:") else name

    found = []
    for name, service in merged(files).items():
        if name not in ROLES:
            continue
        assert service["command"][0] == name, f"{name} runs {service['command']}"
        assert service["cap_drop"] == ["ALL"] and service["read_only"], name
        assert ("secrets" in service) == (name == "capture"), f"passwords are for capture alone, and {name}"
        user, group = service["user"].split(":")
        assert user == group
        found.append(
            Container(
                role=name,
                user=int(user),
                mounts=dict(volume.split(":")[:2] for volume in service["volumes"]),
                pid=namespace(name, service.get("pid")),
                ipc=namespace(name, service.get("ipc")),
                network=name,
                is_user_mapped="userns_mode" not in service,
            )
        )
    return found


def kubernetes(*files: Path) -> list[Container]:
    found = []
    for file in files:
        for resource in yaml.safe_load_all(file.read_text()):
            if resource["kind"] != "Deployment":
                continue
            pod = resource["spec"]["template"]["spec"]
            name = resource["metadata"]["name"]
            for container in pod["containers"]:
                role = container["name"]
                assert container["args"][0] == role in ROLES, f"{role} runs {container['args']}"
                rights = container["securityContext"]
                assert rights["readOnlyRootFilesystem"] and rights["capabilities"] == {"drop": ["ALL"]}, role
                mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
                assert ("passwords" in mounts) == (role == "capture"), f"passwords are for capture, and {role}"
                found.append(
                    Container(
                        role=role,
                        user=pod["securityContext"]["runAsUser"],
                        mounts=mounts,
                        pid=name if pod.get("shareProcessNamespace") else f"{name}/{role}",
                        ipc=name,
                        network=name,
                        is_user_mapped=pod.get("hostUsers", True),
                    )
                )
    return found
