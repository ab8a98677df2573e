#!/usr/bin/python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Serves streams of encoded video by RTSP as they are: no decoder, no encoder.

    rtsp_server.py --address 192.0.2.1 cam0.video cam1.video      # rtsp://192.0.2.1:8554/cam0.video

All clients of a stream share one reader, which exists while there is a client. When an exporter
ends, its clients stay connected, and get the units of the next one.
"""

import argparse
import signal
import sys

import gi

gi.require_version("Gst", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import GLib, Gst, GstRtspServer

PAYLOADERS = {
    "video/x-h264": "h264parse config-interval=-1 ! rtph264pay aggregate-mode=zero-latency",
    "video/x-h265": "h265parse config-interval=-1 ! rtph265pay aggregate-mode=zero-latency",
    "video/x-vp8": "rtpvp8pay",
    "image/jpeg": "jpegparse ! rtpjpegpay",
}
"""Elements for each kind of encoded video. Parsers add parameter sets to key units without them."""
THREADS = 8
"""Threads that serve clients: one that waits for an exporter delays no other."""


def read_type(stream: str, timeout: int) -> str:
    """Returns the media type of a stream; raises RuntimeError without an exporter."""
    pipeline = Gst.parse_launch("framesharesrc name=source num-buffers=1 ! fakesink name=end sync=false")
    pipeline.get_by_name("source").set_property("stream", stream)
    pipeline.set_state(Gst.State.PLAYING)
    try:
        wanted = Gst.MessageType.EOS | Gst.MessageType.ERROR
        message = pipeline.get_bus().timed_pop_filtered(timeout * Gst.SECOND, wanted)
        if message is None:
            raise RuntimeError(f"{stream}: no frame within {timeout} s")
        if message.type == Gst.MessageType.ERROR:
            raise RuntimeError(f"{stream}: {message.parse_error()[0].message}")
        return (
            pipeline.get_by_name("end").get_static_pad("sink").get_current_caps().get_structure(0).get_name()
        )
    finally:
        pipeline.set_state(Gst.State.NULL)


class Factory(GstRtspServer.RTSPMediaFactory):
    """Makes the pipeline of a stream for its first client."""

    def __init__(self, stream: str, timeout: int) -> None:
        super().__init__()
        self.stream, self.timeout = stream, timeout
        self.set_shared(True)

    def do_create_element(self, url: object) -> Gst.Element | None:
        try:
            media = read_type(self.stream, self.timeout)
            if media not in PAYLOADERS:
                raise RuntimeError(f"{self.stream} has {media}: RTSP takes {', '.join(PAYLOADERS)} here")
        except RuntimeError as error:  # the client is answered with an error, and may ask again
            print(f"rtsp_server.py: {error}", file=sys.stderr, flush=True)
            return None
        source = "framesharesrc name=source policy=lossless on-disconnect=wait"
        pipeline = Gst.parse_launch(f"{source} ! {PAYLOADERS[media]} name=pay0 pt=96")
        pipeline.get_by_name("source").set_property("stream", self.stream)
        return pipeline


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stream", nargs="+", help="names of streams of encoded video")
    parser.add_argument("--address", default="127.0.0.1", help="where to listen (default: %(default)s)")
    parser.add_argument("--port", default="8554", help="TCP port (default: %(default)s)")
    parser.add_argument(
        "--timeout", type=int, default=5, help="seconds to wait for an exporter (default: %(default)s)"
    )
    arguments = parser.parse_args()

    Gst.init(None)
    if Gst.ElementFactory.find("framesharesrc") is None:
        sys.exit("rtsp_server.py: no element framesharesrc: GST_PLUGIN_PATH needs its folder")
    server = GstRtspServer.RTSPServer(address=arguments.address, service=arguments.port)
    server.get_thread_pool().set_max_threads(THREADS)
    for stream in arguments.stream:
        server.get_mount_points().add_factory(f"/{stream}", Factory(stream, arguments.timeout))
    if server.attach(None) == 0:
        sys.exit(f"rtsp_server.py: cannot listen on {arguments.address}:{arguments.port}")
    print(f"rtsp://{arguments.address}:{server.get_bound_port()}/{arguments.stream[0]}", flush=True)
    loop = GLib.MainLoop()
    for number in (signal.SIGINT, signal.SIGTERM):
        GLib.unix_signal_add(GLib.PRIORITY_DEFAULT, number, loop.quit)
    loop.run()


if __name__ == "__main__":
    main()
