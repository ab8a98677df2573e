#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Prints a bill of materials (CycloneDX 1.5) of what is installed: the crates that are linked into it.

    tools/sbom.py >frameshare.cdx.json

It has neither a time nor a random number, so that the same sources give the same file.
"""

import json
import pathlib
import re

import crates

LOCK = pathlib.Path(__file__).parent.parent / "Cargo.lock"


def checksums() -> dict[tuple[str, str], str]:
    """SHA-256 of each crate of the registry, by name and version."""
    found = {}
    for block in LOCK.read_text().split("\n[[package]]\n"):
        fields = dict(re.findall(r'^(\w+) = "(.*)"$', block, re.MULTILINE))
        if "checksum" in fields:
            found[fields["name"], fields["version"]] = fields["checksum"]
    return found


def component(package: dict, sums: dict) -> dict:
    name, version = package["name"], package["version"]
    one = {
        "type": "library",
        "bom-ref": f"pkg:cargo/{name}@{version}",
        "name": name,
        "version": version,
        "purl": f"pkg:cargo/{name}@{version}",
    }
    if package["license"]:
        # Older manifests have a slash between licenses.
        one["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    if checksum := sums.get((name, version)):
        one["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    return one


def main() -> None:
    data, sums = crates.metadata(), checksums()
    packages = crates.linked(data)
    version = next(package["version"] for package in packages if package["name"] == "frameshare")
    references = {package["id"]: f"pkg:cargo/{package['name']}@{package['version']}" for package in packages}
    edges = {
        references[node["id"]]: sorted({
            references[edge["pkg"]]
            for edge in node["deps"]
            if edge["pkg"] in references and any(kind["kind"] is None for kind in edge["dep_kinds"])
        })
        for node in data["resolve"]["nodes"]
        if node["id"] in references
    }
    print(json.dumps({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "application", "bom-ref": "frameshare", "name": "frameshare", "version": version}},
        "components": [component(package, sums) for package in packages],
        "dependencies": [{"ref": ref, "dependsOn": uses} for ref, uses in sorted(edges.items())],
    }, indent=2))


main()
