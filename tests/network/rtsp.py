#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Video between two hosts: examples/rtsp-server on one, its streams as cameras on the other.

Run by `make test-network`. Prints PASS, FAIL or SKIP for each test.
"""

import json
import re
import signal
import subprocess
from pathlib import Path

from hosts import PATIENCE, ROOT, TARGET, TOOL, Failed, Hosts, Skipped, main, run, wait_for

SERVER = ROOT / "examples" / "rtsp-server" / "rtsp_server.py"
INGEST = TARGET / "debug" / "camera-ingest"
UNITS = Path(__file__).resolve().parent / "units.py"
KEY_UNITS = 25
"""Units from one key unit to the next."""
# As a camera sends it: through RTP.
CAMERA = (
    "videotestsrc is-live=true pattern={pattern} ! video/x-raw,width={size},height=240,framerate=25/1 "
    "! x264enc tune=zerolatency speed-preset=ultrafast key-int-max={key_units} "
    "! rtph264pay ! rtph264depay ! h264parse config-interval=-1 "
    "! video/x-h264,stream-format=byte-stream,alignment=au ! framesharesink stream=cam0.video encoded=true"
)
# The commands of the README, for the server and for its client.
COMMANDS = re.findall(r"^    (.*)$", (SERVER.parent / "README.md").read_text(), re.M)
CAMERA_LINE = COMMANDS[2]
AS_CAMERA = COMMANDS[1].removeprefix("gst-launch-1.0 ")
CLIENT = AS_CAMERA.split("! video/x-h264")[0]
COUNTED = CLIENT + "! identity silent=false eos-after=50 ! fakesink"
ENCODERS = ("libx264", "libx265", "libgstx264", "libgstopenh264", "libavcodec", "libgstnvcodec", "libgstva")


def need():
    modules = 'import gi; gi.require_version("GstRtspServer", "1.0"); from gi.repository import GstRtspServer'
    if subprocess.run(["/usr/bin/python3", "-c", modules], capture_output=True).returncode != 0:
        raise Skipped("python3-gi and gir1.2-gst-rtsp-server-1.0 are needed")


def mapped(process):
    """Returns which libraries of encoders a process has."""
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    return [name for name in ENCODERS if f"/{name}" in maps]


def readers(host):
    """Returns the number of readers of the stream, as the exporter counts them."""
    shown = run("ip", "netns", "exec", host.name, TOOL, "info", "--json", "cam0.video", env=host.environment)
    return len(json.loads(shown)["readers"])


def is_part(part, whole):
    """Returns whether a list is in another one, without a gap."""
    begins = (index for index, unit in enumerate(whole) if unit == part[0])
    return any(whole[begin : begin + len(part)] == part for begin in begins)


def first_of_session(received, sent):
    """Returns the unit that was sent: rtph264depay puts the parameter sets of the SDP before it."""
    nal_units = received.split()[1:]
    repeated = (
        unit
        for unit in sent
        if unit.split()[1:] == nal_units[2:] and set(nal_units[:2]) <= set(nal_units[2:])
    )
    return next(repeated, received)


class Site:
    """A camera and the RTSP server on the first host, and a receiver on the second one."""

    def __init__(self, hosts):
        self.here, self.there = hosts.hosts
        self.camera = self.start_camera(320)
        self.server = self.here.start("server", ROOT / COMMANDS[0].split()[0], *COMMANDS[0].split()[1:])
        wait_for("the server listens", lambda: self.here.lines("server") or self.server.poll() is not None)

    def start_camera(self, size, pattern="ball"):
        camera = self.here.launch("camera", CAMERA.format(size=size, pattern=pattern, key_units=KEY_UNITS))
        self.here.wait_for_stream("cam0.video", camera)
        return camera

    def client(self, name, pipeline, protocol="tcp"):
        return self.there.launch(name, pipeline.replace("protocols=tcp", f"protocols={protocol}"))


def units_are_identical(site):
    """Both hosts' streams have the same units, before and after a restart of the exporter."""
    sent = site.here.start("sent", "/usr/bin/python3", UNITS, "cam0.video")
    wait_for("units at the first host", lambda: len(site.here.lines("sent")) > KEY_UNITS + 1)
    receiver = site.client("receiver", AS_CAMERA)
    site.there.wait_for_stream("cam0.video", receiver)
    received = site.there.start("received", "/usr/bin/python3", UNITS, "cam0.video")

    def more_units(than):
        return wait_for(
            "units at the second host", lambda: (got := site.there.lines("received"))[than + 75 :] and got
        )

    first = more_units(0)
    wait_for("units at the first host", lambda: first[-1] in site.here.lines("sent"))
    first[0] = first_of_session(first[0], site.here.lines("sent"))
    assert is_part(first, site.here.lines("sent")), "units differ between the hosts"
    assert not is_part([*first[:-1], "another"], site.here.lines("sent")), "the comparison sees no difference"
    assert mapped(site.camera) and not mapped(site.server), (mapped(site.camera), mapped(site.server))

    before = len(site.here.lines("sent"))
    site.here.stop(site.camera)
    site.camera = site.start_camera(352)
    wait_for("units of the next camera", lambda: len(site.here.lines("sent")) > before + KEY_UNITS)
    restarted = site.here.lines("sent")[before + 10]
    wait_for("the next camera at the second host", lambda: restarted in site.there.lines("received"))
    found = site.there.lines("received").index(restarted)
    second = more_units(found)[found:]
    wait_for("units at the first host", lambda: second[-1] in site.here.lines("sent"))
    assert is_part(second, site.here.lines("sent")), "units differ between the hosts after the restart"
    assert receiver.poll() is None and site.server.poll() is None, "the session has ended"
    for process in (receiver, received):
        site.there.stop(process)
    site.here.stop(sent)


def camera_ingest_reads_it_as_its_camera(site):
    """A line of the configuration is a camera of the second host."""
    file = site.there.folder / "site.toml"
    file.write_text(f"[cameras]\n{CAMERA_LINE}\n")
    capture = site.there.start("capture", INGEST, "capture", "--config", file)
    site.there.wait_for_stream("cam0.video", capture)
    site.there.start("received", "/usr/bin/python3", UNITS, "cam0.video")
    wait_for("units at the second host", lambda: len(site.there.lines("received")) > KEY_UNITS)


def clients_share_one_reader(site):
    """Clients by TCP and UDP share the server's reader, which ends with the last one."""
    clients = [
        site.client(f"client{number}", COUNTED, protocol)
        for number, protocol in enumerate(["tcp", "tcp", "udp"])
    ]
    wait_for("the server's reader", lambda: readers(site.here) == 1)
    most = 0
    while any(client.poll() is None for client in clients):
        most = max(most, readers(site.here))
    assert most == 1, f"{most} readers for three clients"
    for number, client in enumerate(clients):
        assert client.returncode == 0, site.there.log(f"client{number}").read_text()
    wait_for("the end of the reader", lambda: readers(site.here) == 0)


def stopped_client_delays_no_other(site):
    """A client that is stopped costs its own units; snow is some 2 MB/s, and fills its buffers."""
    site.here.stop(site.camera)
    site.camera = site.start_camera(320, "snow")
    stopped = site.client("stopped", CLIENT + "! identity silent=false ! fakesink")
    wait_for("the server's reader", lambda: readers(site.here) == 1)
    other = site.client("other", COUNTED.replace("eos-after=50", "eos-after=75"))
    wait_for("the other client's start", lambda: sockets(site.there) == 2)
    stopped.send_signal(signal.SIGSTOP)
    assert other.wait(PATIENCE) == 0, site.there.log("other").read_text()
    wait_for("a full buffer", lambda: unread(site.there) > 50_000)
    again = site.client("again", COUNTED.replace("eos-after=50", "eos-after=250"))
    assert again.wait(PATIENCE) == 0, site.there.log("again").read_text()
    assert readers(site.here) == 1 and site.server.poll() is None


def sockets(host):
    """Returns the number of RTSP connections of a host."""
    return len(
        run(
            "ip", "netns", "exec", host.name, "ss", "-tnH", "state", "established", "dport = :8554"
        ).splitlines()
    )


def unread(host):
    """Returns the bytes that its clients have not read."""
    shown = run("ip", "netns", "exec", host.name, "ss", "-tnH", "state", "established", "dport = :8554")
    return max((int(line.split()[0]) for line in shown.splitlines()), default=0)


def missing_exporter_is_refused(site):
    """A client without an exporter gets an error, and may ask again."""
    site.here.stop(site.camera)
    refused = site.client("refused", COUNTED)
    assert refused.wait(PATIENCE) != 0
    site.camera = site.start_camera(320)
    again = site.client("again", COUNTED)
    if again.wait(PATIENCE) != 0:
        raise Failed(site.there.log("again").read_text())


def with_site(test):
    def wrapped():
        need()
        with Hosts() as hosts:
            try:
                test(Site(hosts))
            except (Failed, AssertionError) as error:
                logs = [path for host in hosts.hosts for path in host.folder.glob("*.log")]
                tails = "".join(
                    f"\n{path.name}: {path.read_text()[-400:]}"
                    for path in logs
                    if path.stem not in ("sent", "received")
                )
                raise Failed(f"{error}{tails}") from None

    return wrapped


if __name__ == "__main__":
    tests = [
        units_are_identical,
        camera_ingest_reads_it_as_its_camera,
        clients_share_one_reader,
        stopped_client_delays_no_other,
        missing_exporter_is_refused,
    ]

    main({f"rtsp-{test.__name__.replace('_', '-')}": with_site(test) for test in tests})
