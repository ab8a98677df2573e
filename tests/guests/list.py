#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Reads what `cargo test --no-run --message-format=json` prints; prints the folder, name and path of each test binary, a line each."""

import json
import os
import sys

found = 0
for line in sys.stdin:
    built = json.loads(line)
    if built.get("executable") and built["profile"]["test"]:
        folder = os.path.relpath(os.path.dirname(built["manifest_path"]))
        print(folder, built["target"]["name"], built["executable"], sep="\t")
        found += 1
sys.exit(0 if found else 1)
