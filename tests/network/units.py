#!/usr/bin/python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Prints SHA-256 of each unit of an H.264 stream, and of each of its NAL units, while it runs.

units.py STREAM
"""

import hashlib
import re
import sys

import gi

gi.require_version("Gst", "1.0")
from gi.repository import GLib, Gst


def digest(content):
    return hashlib.sha256(content).hexdigest()


def show(_sink, buffer, _pad):
    content = buffer.extract_dup(0, buffer.get_size())
    nal_units = re.split(b"\0\0\0\1|\0\0\1", content)[1:]
    print(digest(content), *map(digest, nal_units), flush=True)


Gst.init(None)
pipeline = Gst.parse_launch(
    "framesharesrc name=source policy=lossless on-disconnect=wait "
    "! fakesink name=end sync=false signal-handoffs=true"
)
pipeline.get_by_name("source").set_property("stream", sys.argv[1])
pipeline.get_by_name("end").connect("handoff", show)
pipeline.set_state(Gst.State.PLAYING)
loop = GLib.MainLoop()
bus = pipeline.get_bus()
bus.add_signal_watch()
bus.connect("message::error", lambda _, message: sys.exit(str(message.parse_error())) or loop.quit())
loop.run()
