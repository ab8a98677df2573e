#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Prints the crates that are linked into what is installed, and their licenses.

    tools/crates.py >crates.txt
"""

import json
import pathlib
import subprocess

INSTALLED = ["gst-plugin-frameshare", "frameshare-c", "frameshare-tools", "frameshare-python"]
NAMES = ["LICENSE*", "LICENCE*", "COPYING*", "NOTICE*", "COPYRIGHT*", "license*"]


def metadata() -> dict:
    host = next(
        line.removeprefix("host: ")
        for line in subprocess.check_output(["rustc", "-vV"], text=True).splitlines()
        if line.startswith("host: ")
    )
    command = ["cargo", "metadata", "--locked", "--format-version=1", f"--filter-platform={host}"]
    return json.loads(subprocess.check_output(command, cwd=pathlib.Path(__file__).parent.parent))


def linked(data: dict) -> list[dict]:
    """Returns the installed packages and those that they depend on at run time."""
    packages = {package["id"]: package for package in data["packages"]}
    nodes = {node["id"]: node for node in data["resolve"]["nodes"]}
    members = set(data["workspace_members"])
    waiting = [member for member in members if packages[member]["name"] in INSTALLED]
    found = set(waiting)
    while waiting:
        for dependency in nodes[waiting.pop()]["deps"]:
            is_normal = any(kind["kind"] is None for kind in dependency["dep_kinds"])
            if is_normal and dependency["pkg"] not in found:
                found.add(dependency["pkg"])
                waiting.append(dependency["pkg"])
    return sorted((packages[one] for one in found), key=lambda one: (one["name"], one["version"]))


def texts(package: dict) -> list[str]:
    folder = pathlib.Path(package["manifest_path"]).parent
    files = sorted({file for name in NAMES for file in folder.glob(name) if file.is_file()})
    return [file.read_text(encoding="utf-8", errors="replace").strip() for file in files]


def main() -> None:
    data = metadata()
    packages = [package for package in linked(data) if package["id"] not in data["workspace_members"]]
    print("Crates that are linked into these packages, and the standard library of Rust (MIT OR Apache-2.0)\n")
    users: dict[str, list[str]] = {}
    for package in packages:
        name = f"{package['name']} {package['version']}"
        print(f"{name}: {package['license']}")
        for text in texts(package):
            users.setdefault(text, []).append(name)
    for text, names in users.items():
        print(f"\n{'=' * 100}\n{', '.join(names)}\n{'-' * 100}\n{text}")


if __name__ == "__main__":
    main()
