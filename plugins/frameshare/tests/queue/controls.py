#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Puts faults into the elements, one at a time, and shows how soon the random programs find each.

    plugins/frameshare/tests/queue/controls.py [NAME...]

Run it in a clean checkout: files are changed, and restored at the end.
"""

import json
import os
import pathlib
import subprocess
import sys
import time

SECONDS = 60
HERE = pathlib.Path(__file__).resolve().parents[4]
PLUGIN = "plugins/frameshare/src/"
# A name, a file, what stands there, and what a fault would have.
FAULTS = [
    ("times-fall-after-a-pause", PLUGIN + "times/live.rs", "true => self.lead += pause,", "true => {}"),
    ("decoding-times-shown", PLUGIN + "src/unpushed.rs", "|source| !source.does_timestamp()", "|_| false"),
    ("old-units-clamped", PLUGIN + "times/live.rs", "self.lead = self.lead.max(earliest - time);", ""),
    ("decoding-times-lost", PLUGIN + "src/frames.rs", "descriptor.dts.and_then(|dts| time.of(dts))", "None"),
    ("metas-lost", PLUGIN + "src/frames.rs", "= metas.add_to(", "= Metas::default().add_to("),
    ("losses-unmarked", PLUGIN + "src/delivery.rs", "|| lost_before > 0 {", "{"),
    ("skips-uncounted", PLUGIN + "src/skips.rs", "self.missing = self.missing.saturating_add(lost_before.saturating_add(1));", ""),
    ("two-segments", PLUGIN + "src/negotiation.rs", "if running.settings.is_live {\n                self.push_segment", "if true {\n                self.push_segment"),
    ("gap-in-the-segment-before", PLUGIN + "sink/events.rs", "self.forward_timeline(input, segment.as_ref(), times);", ""),
    ("units-behind-new-caps-dropped", "crates/frameshare-core/src/exporter/state/control.rs", "Change::Caps | Change::Memory => self.forget_units(),", "_ => self.end_units(),"),
]


def build():
    command = ["cargo", "test", "--locked", "--workspace", "--no-run", "--test", "queue", "--message-format=json"]
    built = subprocess.run(command, cwd=HERE, stdout=subprocess.PIPE, text=True, check=True).stdout
    found = [json.loads(line) for line in built.splitlines()]
    return next(item["executable"] for item in found if item.get("executable") and item["target"]["name"] == "queue")


def control(name, file, before, after):
    file = HERE / file
    text = file.read_text()
    assert text.count(before) == 1, f"{name}: {file} has changed"
    try:
        file.write_text(text.replace(before, after))
        program = build()
    finally:
        file.write_text(text)
    begin = time.monotonic()
    command = [program, "--ignored", "--nocapture", "programs_pass_for_a_time"]
    environment = {**os.environ, "SECONDS": str(SECONDS), "FIRST": "1"}
    folder = HERE / "plugins/frameshare"
    found = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    took = time.monotonic() - begin
    print(f"{'found' if found.returncode else 'MISSED'} {name}, {took:.0f} s", flush=True)
    return found.returncode != 0


names = sys.argv[1:]
results = [control(*fault) for fault in FAULTS if not names or fault[0] in names]
sys.exit(not all(results))
