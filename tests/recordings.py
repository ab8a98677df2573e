#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Recordings of encoded streams by readers that join in the middle of a group of pictures.

    tests/recordings.py PLUGIN_FOLDER [RECORDING...]

An exporter publishes numbered pictures in several codecs; recorders join each stream with a lossless reader, and write a
file by every muxer. The decoded files must have all pictures from the key unit before the join to the end of the stream,
once, in order, and with their distances. A viewer that joins shows none of the pictures from before. Prints PASS, FAIL or
SKIP and the recording's name for each.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PATIENCE = 60
WIDTH, HEIGHT, RATE = 160, 96, 30
GOP = 4 * RATE
"""Pictures from one key picture to the next."""
JOIN = 4.6
"""Seconds from the start of the exporter to that of the first recorder."""
PICTURES = 360
LEADING = 3
"""Most pictures that precede the key picture of their group in order of display."""
CELLS = 16
"""Black and white cells of a picture's number, the highest bit at the left."""

X264 = f"x264enc speed-preset=veryfast tune=stillimage rc-lookahead=10 key-int-max={GOP}"
REORDERED = f"{X264} bframes=3 b-adapt=false b-pyramid=true"
VPX = f"deadline=1 cpu-used=8 keyframe-max-dist={GOP} lag-in-frames=0"

# Streams: elements that encode the pictures, the muxer of the file that is made before the test, and elements with which
# the exporter reads that file. Units of an MP4 file have decode times, those of a Matroska file do not, as those of RTP.
Stream = namedtuple("Stream", "encoder muxer demuxer")
STREAMS = {
    "h264": Stream(f"{X264} bframes=0 ! h264parse", "mp4mux", "qtdemux ! h264parse"),
    "h264-reordered": Stream(f"{REORDERED} ! h264parse", "mp4mux", "qtdemux ! h264parse"),
    "h264-pts-only": Stream(f"{REORDERED} ! h264parse", "matroskamux", "matroskademux ! h264parse"),
    "h264-open-gop": Stream(f"{REORDERED} option-string=open_gop=1 ! h264parse", "mp4mux", "qtdemux ! h264parse"),
    "h265": Stream(
        f"x265enc speed-preset=ultrafast log-level=none key-int-max={GOP} option-string=bframes=3:b-adapt=0:open-gop=0:repeat-headers=1 ! h265parse",
        "mp4mux",
        "qtdemux ! h265parse",
    ),
    "h265-open-gop": Stream(
        f"x265enc speed-preset=ultrafast log-level=none key-int-max={GOP} option-string=bframes=3:b-adapt=0:open-gop=1:repeat-headers=1 ! h265parse",
        "mp4mux",
        "qtdemux ! h265parse",
    ),
    "vp8": Stream(f"vp8enc {VPX}", "webmmux", "matroskademux"),
    "vp9": Stream(f"vp9enc {VPX} ! vp9parse", "webmmux", "matroskademux ! vp9parse"),
    "av1": Stream(
        f"av1enc usage-profile=realtime cpu-used=8 end-usage=q min-quantizer=10 max-quantizer=30 lag-in-frames=0 keyframe-max-dist={GOP} ! av1parse",
        "webmmux",
        "matroskademux ! av1parse",
    ),
}
DECODERS = {"h264": "avdec_h264 max-threads=1", "h265": "avdec_h265 max-threads=1", "vp8": "vp8dec", "vp9": "vp9dec", "av1": "av1dec"}

H264, H265 = "h264parse", "h265parse"
# RTP has no decode times: those muxers that need them get them from an element that is made for that.
AVC = "video/x-h264,stream-format=avc,alignment=au"
NALS = "video/x-h264,stream-format=byte-stream,alignment=au"
STAMPED = f"{H264} ! {AVC} ! h264timestamper"
# Greatest errors of a distance in seconds: those of containers that count milliseconds, and of others. Streams that are
# published from a Matroska or WebM file have times in milliseconds before.
MILLISECONDS, TICKS = 0.0011, 0.0004

# Recordings: stream, elements behind the reader, and elements that read the file. AVI has no presentation times, and gets
# no stream with B-frames. FLV has H.264 only, WebM has VP8, VP9 and AV1.
Recording = namedtuple("Recording", "stream recorder demuxer resolution")
RECORDINGS = {
    "mp4": Recording("h264", f"{H264} ! mp4mux", f"qtdemux ! {H264}", TICKS),
    "mp4-reordered": Recording("h264-reordered", f"{H264} ! mp4mux", f"qtdemux ! {H264}", TICKS),
    "mp4-timestamper": Recording("h264-pts-only", f"{STAMPED} ! mp4mux", f"qtdemux ! {H264}", MILLISECONDS),
    "mp4-open-gop": Recording("h264-open-gop", f"{H264} ! mp4mux", f"qtdemux ! {H264}", TICKS),
    "mp4-h265": Recording("h265", f"{H265} ! mp4mux", f"qtdemux ! {H265}", TICKS),
    "mp4-h265-open-gop": Recording("h265-open-gop", f"{H265} ! mp4mux", f"qtdemux ! {H265}", TICKS),
    "mp4-av1": Recording("av1", "av1parse ! mp4mux", "qtdemux ! av1parse", MILLISECONDS),
    "qt-reordered": Recording("h264-reordered", f"{H264} ! qtmux", f"qtdemux ! {H264}", TICKS),
    "matroska": Recording("h264", f"{H264} ! matroskamux", f"matroskademux ! {H264}", MILLISECONDS),
    "matroska-reordered": Recording("h264-reordered", f"{H264} ! matroskamux", f"matroskademux ! {H264}", MILLISECONDS),
    "matroska-pts-only": Recording("h264-pts-only", f"{H264} ! matroskamux", f"matroskademux ! {H264}", MILLISECONDS),
    "matroska-open-gop": Recording("h264-open-gop", f"{H264} ! matroskamux", f"matroskademux ! {H264}", MILLISECONDS),
    "matroska-h265": Recording("h265", f"{H265} ! matroskamux", f"matroskademux ! {H265}", MILLISECONDS),
    "webm-vp8": Recording("vp8", "webmmux", "matroskademux", MILLISECONDS),
    "webm-vp9": Recording("vp9", "vp9parse ! webmmux", "matroskademux ! vp9parse", MILLISECONDS),
    "webm-av1": Recording("av1", "av1parse ! webmmux", "matroskademux ! av1parse", MILLISECONDS),
    "mpegts-reordered": Recording("h264-reordered", f"{H264} ! mpegtsmux", f"tsdemux ! {H264}", TICKS),
    "mpegts-timestamper": Recording("h264-pts-only", f"{STAMPED} ! {H264} ! mpegtsmux", f"tsdemux ! {H264}", MILLISECONDS),
    "mpegts-h265": Recording("h265", f"{H265} ! mpegtsmux", f"tsdemux ! {H265}", TICKS),
    "flv": Recording("h264", f"{H264} ! flvmux", f"flvdemux ! {H264}", MILLISECONDS),
    "flv-reordered": Recording("h264-reordered", f"{H264} ! flvmux", f"flvdemux ! {H264}", MILLISECONDS),
    "avi": Recording("h264", f"{H264} ! {NALS} ! avimux", f"avidemux ! {H264}", TICKS),
    "split-mp4": Recording("h264-reordered", f"{H264} ! splitmuxsink max-size-time=2000000000", f"qtdemux ! {H264}", TICKS),
    "split-matroska": Recording(
        "h264-pts-only", f"{H264} ! splitmuxsink max-size-time=2000000000 muxer-factory=matroskamux", f"matroskademux ! {H264}", MILLISECONDS
    ),
}


class Failed(Exception):
    pass


def picture(number):
    """Returns a picture in I420: its number in the upper half, something that moves in the lower half."""
    cell = WIDTH // CELLS
    row = b"".join(bytes([235 if number >> bit & 1 else 16]) * cell for bit in reversed(range(CELLS)))
    moving = bytes(64 + (x + 2 * number) % WIDTH * 127 // WIDTH for x in range(WIDTH))
    return row * (HEIGHT // 2) + moving * (HEIGHT // 2) + bytes([128]) * (WIDTH * HEIGHT // 2)


def number_of(luma):
    """Returns the number of a gray picture."""
    middle = WIDTH * (HEIGHT // 4)
    cell = WIDTH // CELLS
    return sum((luma[middle + cell * index + cell // 2] > 125) << (CELLS - 1 - index) for index in range(CELLS))


def is_there(element):
    return subprocess.run(["gst-inspect-1.0", "--exists", element]).returncode == 0


def missing(*descriptions):
    """Returns the first element of these descriptions that is not installed."""
    names = [re.match(r"[a-z]\w*(?=[\s]|$)", part.strip()) for text in descriptions for part in text.split("!")]
    return next((name[0] for name in names if name and not is_there(name[0])), None)


class Studio:
    """A folder for streams and files, and the processes that use it."""

    def __init__(self, folder, plugins):
        self.folder, self.running = folder, []
        self.environment = dict(
            os.environ,
            GST_PLUGIN_PATH=str(plugins),
            GST_REGISTRY=str(folder / "registry.bin"),
            XDG_RUNTIME_DIR=str(folder),
            GST_DEBUG="1",
        )

    def start(self, name, pipeline, **options):
        with open(self.folder / f"{name}.log", "w") as log:
            process = subprocess.Popen(
                ["gst-launch-1.0", *pipeline.split()],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                **{"stdin": subprocess.DEVNULL, **options},
            )
        self.running.append(process)
        return process

    def log(self, name):
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def errors(self, name):
        """Returns the lines of errors, or the end of what a process has said."""
        lines = [line for line in self.log(name).splitlines() if re.match(r"ERROR|Buffer has|streaming", line)]
        return " ".join(lines)[:300] or self.log(name)[-300:]

    def finish(self, name, process):
        try:
            status = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            raise Failed("it did not end") from None
        if status != 0:
            raise Failed(f"exit status {status}: {self.errors(name)}")

    def run(self, name, pipeline):
        self.finish(name, self.start(name, pipeline))

    def wait_for(self, what, condition):
        end = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > end:
                raise Failed(f"no {what}")
            time.sleep(0.01)

    def has_stream(self, stream):
        return (self.folder / "frameshare" / f"{stream}.sock").exists()

    def encode(self, stream):
        """Encodes the pictures of a stream into a file."""
        encoder, muxer, _ = STREAMS[stream]
        raw = f"filesrc location=pictures.raw blocksize={WIDTH * HEIGHT * 3 // 2}"
        self.run(
            f"encode-{stream}",
            f"{raw} ! rawvideoparse format=i420 width={WIDTH} height={HEIGHT} framerate={RATE}/1 ! {encoder} ! {muxer} ! filesink location={stream}.encoded",
        )

    def export(self, streams):
        """Starts an exporter of these streams, which publishes their units at their times."""
        parts = (
            f"filesrc location={stream}.encoded ! {STREAMS[stream].demuxer} ! clocksync "
            f"! framesharesink stream={stream} encoded=true sync=false async=false"
            for stream in streams
        )
        return self.start("exporter", " ".join(parts))

    def record(self, name):
        """Starts a recorder. Its reader leaves no unit out."""
        stream, recorder, *_ = RECORDINGS[name]
        if "splitmuxsink" in recorder:
            target = f" location={name}-%02d.recorded"
        else:
            target = f" ! filesink location={name}-00.recorded"
        return self.start(name, f"framesharesrc stream={stream} policy=lossless ! {recorder}{target}")

    def decode(self, name):
        """Returns the number of each picture of a recording, and its time in seconds, by file."""
        stream, _, demuxer, _ = RECORDINGS[name]
        decoder = DECODERS[stream.split("-")[0]]
        files = sorted(self.folder.glob(f"{name}-??.recorded"))
        return [self.decode_file(file, f"{demuxer} ! {decoder}") for file in files]

    def decode_file(self, file, elements):
        gray = file.with_suffix(".gray")
        self.run(
            file.stem,
            f"-v filesrc location={file} ! {elements} ! videoconvert ! video/x-raw,format=GRAY8 "
            f"! identity name=pictures silent=false ! filesink location={gray}",
        )
        times = re.findall(r"pictures: last-message = chain .*? pts: (none|[\d:.]+)", self.log(file.stem))
        numbers = numbers_in(gray)
        gray.unlink()
        if len(times) != len(numbers):
            raise Failed(f"{len(numbers)} pictures and {len(times)} times in {file.name}")
        return list(zip(numbers, map(seconds, times)))

    def stop(self):
        for process in self.running:
            process.kill()
            process.wait()


def numbers_in(gray):
    """Returns the numbers of the whole pictures in a file."""
    luma, size = gray.read_bytes(), WIDTH * HEIGHT
    return [number_of(luma[at : at + size]) for at in range(0, len(luma) - size + 1, size)]


def seconds(text):
    if text == "none":
        return None
    hours, minutes, rest = text.split(":")
    return int(hours) * 3600 + int(minutes) * 60 + float(rest)


def check(files, resolution, stream):
    """Compares a recording with what was sent, from its first key picture to the end of the stream."""
    numbers = [number for file in files for number, _ in file]
    # Pictures before the key picture of an open group refer to the group before, which is not in the recording: decoders
    # may show them.
    leading = (len(numbers) - PICTURES) % GOP
    begin = PICTURES - len(numbers) + leading
    if stream == "h264-open-gop":
        # avdec_h264 damages the whole first group, unless it begins with an IDR picture.
        keys = (index for index, number in enumerate(numbers) if number % GOP == 0)
        leading = next((key for key in keys if numbers[key:] == list(range(numbers[key], PICTURES))), 0)
        begin = PICTURES - len(numbers) + leading
        if all(abs(leading - damaged) > LEADING for damaged in (0, GOP)):
            raise Failed(f"more than the first group is damaged: {runs(numbers)}")
    elif leading > (LEADING if stream.endswith("open-gop") else 0):
        raise Failed(f"{len(numbers)} pictures are no whole groups: {runs(numbers)}")
    wanted, found = list(range(begin, PICTURES)), numbers[leading:]
    if found != wanted:
        lost, doubled = len(set(wanted) - set(found)), len(found) - len(set(found))
        raise Failed(f"{lost} missing, {doubled} doubled of {len(wanted)} pictures: {runs(numbers)}")
    distances = []
    for file in files:
        times = [time for number, time in file if number in wanted]
        if None in times:
            raise Failed("a picture has no time")
        distances += [after - before for before, after in zip(times, times[1:])]
    wrong = [round(1000 * distance, 2) for distance in distances if abs(distance - 1 / RATE) > resolution]
    if wrong:
        raise Failed(f"{len(wrong)} of {len(distances)} distances are wrong, in ms: {wrong[:12]}")
    return f"{len(wanted)} pictures from {begin} on"


def runs(numbers):
    """Returns a short text for numbers, most of which follow each other."""
    found = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    text = " ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in found[:12])
    return text + (" ..." if len(found) > 12 else "")


class Viewer:
    """A viewer joins a stream whose exporter waits in the middle of a group of pictures, and goes on then, picture by
    picture: the viewer shows none of the pictures from before, and the next ones at once."""

    BEFORE = GOP + GOP * 4 // 5
    # Pictures that a parser and a decoder hold, and one that the sink shows.
    HELD = 3

    def __init__(self, studio):
        self.studio = studio
        studio.run(
            "encode-viewer",
            f"filesrc location=pictures.raw blocksize={WIDTH * HEIGHT * 3 // 2} ! rawvideoparse format=i420 width={WIDTH} height={HEIGHT} "
            f"framerate={RATE}/1 ! {X264} bframes=0 aud=true ! video/x-h264,stream-format=byte-stream ! filesink location=viewer.h264",
        )
        delimiter = b"\0\0\0\1\x09"
        units = (studio.folder / "viewer.h264").read_bytes().split(delimiter)[1:]
        self.units = iter([delimiter + unit for unit in units])

    def publish(self, exporter, count):
        for _ in range(count):
            exporter.stdin.write(next(self.units))
            exporter.stdin.flush()
            time.sleep(1 / RATE)

    def check(self):
        studio = self.studio
        exporter = studio.start(
            "viewer-exporter",
            "fdsrc fd=0 blocksize=65536 do-timestamp=true ! h264parse ! video/x-h264,alignment=au "
            "! framesharesink stream=viewer encoded=true sync=false async=false",
            stdin=subprocess.PIPE,
        )
        studio.wait_for("exporter of the viewer", lambda: studio.has_stream("viewer") or exporter.poll() is not None)
        self.publish(exporter, self.BEFORE)
        viewer = studio.start(
            "viewer",
            f"-v framesharesrc stream=viewer ! h264parse ! {DECODERS['h264']} ! videoconvert ! video/x-raw,format=GRAY8 "
            "! filesink location=shown.gray sync=true buffer-mode=unbuffered",
        )
        studio.wait_for("viewer", lambda: re.search(r"avdec_h264-?0.*sink: caps", studio.log("viewer")) or viewer.poll() is not None)
        time.sleep(1)
        shown, published = studio.folder / "shown.gray", self.BEFORE
        while not (numbers_in(shown) if shown.exists() else []) and published < PICTURES - 1:
            self.publish(exporter, 1)
            published += 1
        numbers = numbers_in(shown) if shown.exists() else []
        exporter.stdin.close()
        studio.finish("viewer-exporter", exporter)
        studio.finish("viewer", viewer)
        text = f"{self.BEFORE} pictures were published before it joined, {published} when it showed its first ones: {runs(numbers)}"
        # The newest picture from before may be shown: it is the present one.
        if not numbers or numbers[0] < self.BEFORE - self.HELD or published > self.BEFORE + self.HELD:
            raise Failed(text)
        return text


def main():
    plugins = Path(sys.argv[1]).resolve()
    named = sys.argv[2:]
    unknown = set(named) - {*RECORDINGS, "viewer"}
    if unknown:
        sys.exit(f"no such recording: {' '.join(unknown)}")
    names = [name for name in RECORDINGS if not named or name in named]
    folder = Path(tempfile.mkdtemp(prefix="frameshare-recordings-"))
    studio = Studio(folder, plugins)
    failed = False

    def report(name, test):
        nonlocal failed
        try:
            print(f"PASS recording-{name}: {test()}", flush=True)
        except (Failed, OSError) as why:
            failed = True
            print(f"FAIL recording-{name}: {why}", flush=True)

    try:
        (folder / "pictures.raw").write_bytes(b"".join(map(picture, range(PICTURES))))
        possible = []
        for name in names:
            stream, recorder, demuxer, _ = RECORDINGS[name]
            lacking = missing(*STREAMS[stream], recorder, demuxer, DECODERS[stream.split("-")[0]])
            if lacking:
                print(f"SKIP recording-{name}: element {lacking} is missing", flush=True)
            else:
                possible.append(name)
        streams = sorted({RECORDINGS[name].stream for name in possible})
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(studio.encode, streams))
            viewer = Viewer(studio) if not named or "viewer" in named else None
            watching = threading.Thread(target=report, args=("viewer", viewer.check)) if viewer else None
            if streams:
                exporter = studio.export(streams)
                if watching:
                    watching.start()
                studio.wait_for("exporter", lambda: all(map(studio.has_stream, streams)) or exporter.poll() is not None)
                time.sleep(JOIN)
                recorders = [(name, studio.record(name)) for name in possible]
                report("exporter", lambda: studio.finish("exporter", exporter) or f"{len(streams)} streams")

                def examine(name, recorder):
                    studio.finish(name, recorder)
                    stream, _, _, resolution = RECORDINGS[name]
                    return check(studio.decode(name), resolution, stream)

                list(pool.map(lambda recording: report(recording[0], lambda: examine(*recording)), recorders))
            elif watching:
                watching.start()
            if watching:
                watching.join()
    except Failed as why:
        failed = True
        print(f"FAIL recordings: {why}", flush=True)
    finally:
        studio.stop()
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(failed)


main()
