#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""The camera ingest demo on a GPU, in the runtime of enter-runtime.sh. Called by tests/gpu/run.

    ingest.py capacity    cameras of 1920x1080 at 30 frames a second that the GPU decodes, each with three
                          readers on the GPU: decoded once, and decoded by each reader
    ingest.py soak        8 cameras for SOAK seconds (default 540), a random process killed every 10 s

Prints a JSON line for each case. INGEST="4 8" sets the numbers of cameras of `capacity`, ONCE and EACH those that are
decoded once and by each reader, INGEST_MPS=0 leaves out readers under MPS, and GROUP sets the cameras in one process.
"""

import collections
import glob
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request

RUNTIME = os.environ["RUNTIME"]
CLIP = "/work/camera.mp4"
PORT = 8095
RATE = 30
READERS = 3
# Cameras in one process, of each role. With 16 in each of nine decoding processes, among whose contexts the GPU takes
# turns, the readers of 144 cameras lost a sixth of the frames on an H200.
GROUP = int(os.environ.get("GROUP", "48"))
CAPS = "video/x-raw(memory:CUDAMemory)"
DECODER = "nvh264dec"
# Seconds without a further reader, after which the missing ones count as failed.
WITHOUT_PROGRESS = 25
# Folder of the MPS daemon in /tmp, of this run: another daemon may be left.
MPS = f"mps-{os.getpid()}"
VARIABLES = {
    "LD_LIBRARY_PATH": "/usr/local/nvidia/lib64:/cuda",
    "GST_REGISTRY": "/tmp/registry.bin",
    "GST_CUDA_NVRTC_LIBNAME": "/usr/lib/libnvrtc-shim.so",
    "GST_PLUGIN_PATH": "/work",
    "HOME": "/tmp",
    "XDG_RUNTIME_DIR": "/tmp/ingest",
}


def start(name, *command, **variables):
    """Start a command in the runtime; its output goes to /tmp/ingest/NAME.log there."""
    settings = [f"{key}={value}" for key, value in (VARIABLES | variables).items()]
    with open(f"{RUNTIME}/tmp/ingest/{name}.log", "a") as log:
        return subprocess.Popen(
            ["chroot", RUNTIME, "/usr/bin/env", *settings, *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def end(process, seconds=10):
    """Interrupt a process and return the seconds until its end; kill it after the limit."""
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return time.monotonic() - begin


class Site:
    """A running site with this many cameras."""

    def __init__(self, cameras, options):
        lines = [f'cam{camera} = "{CLIP}"' for camera in range(cameras)]
        text = "[cameras]\n" + "\n".join(lines) + f'\n[wall]\nlisten = "127.0.0.1:{PORT}"\n' + options
        pathlib.Path(f"{RUNTIME}/tmp/ingest/site.toml").write_text(text)
        self.process = start("site", "/work/camera-ingest", "run", "--config", "/tmp/ingest/site.toml")

    def metrics(self):
        """Values of the page's metrics by name and labels."""
        found = {}
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=5) as answer:
            for line in answer.read().decode().splitlines():
                match = re.match(r"ingest_(\w+)\{(.*)\} (\S+)$", line)
                if match:
                    labels = dict(re.findall(r'(\w+)="([^"]*)"', match[2]))
                    found.setdefault(match[1], []).append((labels, float(match[3])))
        return found

    def state(self):
        """The supervisor's state."""
        control = glob.glob(f"{RUNTIME}/tmp/camera-ingest-*/control.sock")[0]
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(5)
            connection.connect(control)
            return json.loads(connection.makefile().readline())

    def wait(self, what, seconds):
        """Wait until `what` of the metrics is true."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise RuntimeError("the site ended")
            try:
                if what(self.metrics()):
                    return True
            except OSError:
                pass
            time.sleep(0.5)
        return False


def gpu():
    """Use of the decoder and of the kernels in percent, and memory in MiB."""
    query = "--query-gpu=utilization.decoder,utilization.gpu,memory.used"
    output = subprocess.run(
        ["nvidia-smi", query, "--format=csv,noheader,nounits"], capture_output=True, text=True
    )
    return [float(value) for value in output.stdout.split("\n")[0].split(",")]


def cpu_seconds():
    """CPU time of all processes, by the name of their program and role."""
    times = collections.Counter()
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            fields = pathlib.Path(path).read_text().rsplit(")", 1)[1].split()
            words = pathlib.Path(path).with_name("cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if words[0].endswith("camera-ingest"):
            role = words[1] if words[1] != "process" else words[-2]
            times[role.split("-")[0]] += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        elif words[0].endswith("gst-launch-1.0"):
            times["readers"] += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return times


def reading(cameras, decode, mps):
    """Start the reading processes: each reads all cameras, or decodes each of them."""
    for_one = f"framesharesrc stream=cam{{}} connection-timeout=20000000000 ! {CAPS} ! fakesink sync=false"
    if decode:
        for_one = (
            "framesharesrc stream=cam{}.video policy=latest max-queued=14 max-held=16 "
            f"! h264parse ! {DECODER} ! {CAPS} ! fakesink sync=false"
        )
    words = " ".join(for_one.format(camera) for camera in range(cameras)).split()
    variables = {"CUDA_MPS_PIPE_DIRECTORY": f"/tmp/{MPS}"} if mps else {}
    names = [f"reader{number}" for number in range(READERS)]
    for name in names:
        # Only what the readers of this case say.
        pathlib.Path(f"{RUNTIME}/tmp/ingest/{name}.log").unlink(missing_ok=True)
    return {name: start(name, "gst-launch-1.0", "-q", *words, **variables) for name in names}


class Metrics:
    """Values of the readers of some streams, without those readers that belong to an earlier case."""

    def __init__(self, values, streams, earlier=()):
        self.values, self.streams, self.earlier = values, streams, earlier

    def of(self, name):
        """Values by stream and reader."""
        rows = self.values.get(name, [])
        found = {(labels["stream"], labels["reader"]): value for labels, value in rows}
        return {
            key: value for key, value in found.items() if key[0] in self.streams and key not in self.earlier
        }

    def running(self):
        """Number of readers of each stream that get frames."""
        found = collections.Counter(dict.fromkeys(self.streams, 0))
        found.update(stream for (stream, _), rate in self.of("reader_rate").items() if rate > 0)
        return found

    def rates(self):
        """Frames a second that readers took, and the units a second of their cameras, over the last seconds."""
        units = {
            labels["stream"].removesuffix(".video"): value
            for labels, value in self.values.get("stream_rate", [])
            if labels["stream"].endswith(".video")
        }
        return {
            key: (rate, units.get(key[0].removesuffix(".video"), 0)) for key, rate in self.of("reader_rate").items()
        }


def await_readers(site, of_case, streams, readers):
    """Wait for all readers, as long as further ones come. Returns what is missing, and the seconds."""
    begin = last = time.monotonic()
    most, missing = (0, 0), dict.fromkeys(streams, READERS)
    while time.monotonic() < last + WITHOUT_PROGRESS:
        ended = [name for name, process in readers.items() if process.poll() is not None]
        try:
            metrics = of_case(site.metrics())
        except OSError:
            metrics = of_case({})
        running = metrics.running()
        missing = {stream: READERS - running[stream] for stream in streams if running[stream] < READERS}
        if not missing or ended:
            break
        count = (running.total(), len(metrics.of("reader_sent_total")))
        if count > most:
            most, last = max(count, most), time.monotonic()
        time.sleep(0.5)
    return missing, time.monotonic() - begin


def print_missing(missing, readers):
    """Print which readers are missing, and the output of the reading processes."""
    if missing:
        shown = ", ".join(f"{stream} {count}" for stream, count in sorted(missing.items())[:20])
        print(f"missing readers: {sum(missing.values())} of {len(missing)} streams: {shown}", flush=True)
    for name, process in readers.items():
        code = process.poll()
        state = "runs" if code is None else f"ended with status {code}"
        print(f"--- {name}, process {process.pid}: {state}", flush=True)
        print_log(name, 15)


def measure(site, cameras, decode, mps, seconds=5):
    """One row: rates, losses, ages, CPU, decoder and memory with this many cameras."""
    streams = {f"cam{camera}.video" if decode else f"cam{camera}" for camera in range(cameras)}
    key = "decoded by each reader" if decode else "decoded once"
    case = f"{cameras} cameras, {key}" + (", readers under MPS" if mps else "")
    earlier = frozenset(Metrics(site.metrics(), streams).of("reader_sent_total"))
    of_case = lambda values: Metrics(values, streams, earlier)
    readers = reading(cameras, decode, mps)
    missing, waited = await_readers(site, of_case, streams, readers)
    # Rates are those of the last four seconds.
    time.sleep(3)
    before, busy, begin = site.metrics(), cpu_seconds(), time.monotonic()
    samples = []
    while time.monotonic() < begin + seconds:
        samples.append(gpu())
        time.sleep(0.5)
    after, elapsed = site.metrics(), time.monotonic() - begin
    used = cpu_seconds()
    cores = {role: round((used[role] - busy[role]) / elapsed, 2) for role in used if used[role] > busy[role]}
    if missing:
        print_missing(missing, readers)
    ended = max(end(reader) for reader in readers.values())
    first, last = of_case(before), of_case(after)

    def change(name):
        earlier = first.of(name)
        return {key: value - earlier.get(key, 0) for key, value in last.of(name).items()}

    # Of a reader, losses are revoked frames, which count as sent, and frames that were not sent.
    sent, lost = change("reader_sent_total"), change("reader_lost_total")
    pairs = last.rates().values()
    rates = sorted(rate for rate, _ in pairs)
    # A file in a loop makes a short pause at its end: what counts is the share of its frames.
    shares = sorted(rate / max(units, 1) for rate, units in pairs)
    ages = sorted(last.of("reader_age_seconds").values())
    middle = lambda values: values[len(values) // 2] if values else None
    columns = list(zip(*samples))
    few = sum(lost.values()) <= 0.001 * sum(sent.values())
    keeps = not missing and len(shares) >= cameras * READERS and few and shares[0] > 0.95
    row = {
        "suite": "ingest",
        "case": case,
        "result": "pass",
        "cameras": cameras,
        "readers": len(rates),
        "started": not missing,
        "started s": round(waited, 1),
        "keeps up": keeps,
        "frames/s least": round(rates[0], 1) if rates else 0,
        "frames/s median": round(middle(rates) or 0, 1),
        "least share": round(shares[0], 3) if shares else 0,
        "late readers": sum(share <= 0.95 for share in shares),
        "lost": int(sum(lost.values())),
        "age ms": round(1e3 * (middle(ages) or 0), 2),
        "age ms max": round(1e3 * (ages[-1] if ages else 0), 2),
        "decoder %": middle(sorted(columns[0])),
        "kernels %": middle(sorted(columns[1])),
        "GPU MiB": middle(sorted(columns[2])),
        "cores": cores,
        "end s": round(ended, 1),
    }
    print(json.dumps(row), flush=True)
    if not keeps:
        print_log("site", 25)
    return row


def worth_measuring(numbers, row):
    """Numbers after those that the decoder's use in a row shows to be far below its limit."""
    limit = row["cameras"] * 100 / max(row["decoder %"], 1)
    above = [number for number in numbers if number > row["cameras"]]
    far = [number for number in above if number < 0.7 * limit]
    return above[len(far) :] or above[-1:]


def rise(site, numbers, decode, mps):
    """Measure rising numbers of cameras until they no longer keep up. Returns the rows by number."""
    rows = {}
    while numbers:
        row = measure(site, numbers[0], decode, mps)
        if not row["keeps up"] and row["decoder %"] < 80 and row["readers"] >= row["cameras"] * READERS:
            # Frames were lost, and not for want of a decoder: once more, for a pause of the machine.
            row = measure(site, numbers[0], decode, mps)
        rows[numbers[0]] = row
        if not row["keeps up"]:
            break
        numbers = worth_measuring(numbers, row)
    return rows


def most_kept(rows):
    """The largest number of cameras that kept up."""
    return max((number for number, row in rows.items() if row["keeps up"]), default=0)


def compare(once, each):
    """The result: how many more cameras, and how much less of everything at the same number."""
    result = {
        "suite": "ingest",
        "case": "capacity",
        "result": "pass" if most_kept(once) and most_kept(each) else "fail",
        "decoded once": most_kept(once),
        "decoded by each reader": most_kept(each),
    }
    if most_kept(each):
        result["ratio"] = round(most_kept(once) / most_kept(each), 2)
    both = [number for number in once if number in each and once[number]["keeps up"]]
    if both:
        number = max(both)
        work = lambda row: row["cores"].get("decode", 0) + row["cores"].get("readers", 0)
        parts = {"decoder": lambda row: row["decoder %"], "GPU MiB": lambda row: row["GPU MiB"], "CPU": work}
        result["cameras compared"] = number
        for name, part in parts.items():
            result[f"{name} ratio"] = round(part(each[number]) / max(part(once[number]), 0.01), 2)
    print(json.dumps(result), flush=True)
    return result["result"] == "pass"


def numbers_of(variable, default):
    """Numbers in an environment variable."""
    return sorted(int(word) for word in os.environ.get(variable, "").split()) or default


def capacity():
    """Rising numbers of cameras, decoded once and by each reader, until they no longer keep up."""
    numbers = numbers_of("INGEST", [16, 48, 64, 96, 120, 144, 176, 208])
    for_once, for_each = numbers_of("ONCE", numbers), numbers_of("EACH", numbers)
    most = max(for_once + for_each)
    options = f"[defaults]\nrecord = false\nmotion = false\n[groups]\ncapture = {GROUP}\ndecode = {GROUP}\n"
    site = Site(most, options)
    try:
        up = lambda it: sum(
            value > 0
            for labels, value in it.get("stream_published_total", [])
            if ".video" in labels["stream"]
        )
        if not site.wait(lambda it: up(it) >= most, 40):
            raise RuntimeError("cameras did not start: see site.log")
        # First without the decoding processes, which keep their contexts.
        each = rise(site, for_each, True, False)
        once = rise(site, for_once, False, False)
        # The same number both ways.
        same = most_kept(each)
        if same and same not in once:
            once[same] = measure(site, same, False, False)
        passed = compare(once, each)
        if os.environ.get("INGEST_MPS") != "0" and multi_process_service():
            # Only the largest number and the next one: the effect of MPS is the question.
            rise(site, [number for number in for_once if number >= most_kept(once)][:2], False, True)
            rise(site, [number for number in for_each if number >= most_kept(each)][:2], True, True)
        return passed
    finally:
        stop_multi_process_service()
        print(f"the site ended after {end(site.process):.1f} s", flush=True)


def mps_variables():
    """Environment of NVIDIA's MPS daemon, with a folder of this run."""
    folder = f"{RUNTIME}/tmp/{MPS}"
    os.makedirs(folder, exist_ok=True)
    return os.environ | {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}


def multi_process_service():
    """Start the MPS daemon as an ordinary process. Prints why it does not start, and returns False."""
    begin = time.monotonic()
    try:
        done = subprocess.run(
            ["nvidia-cuda-mps-control", "-d"], env=mps_variables(), timeout=10, capture_output=True, text=True
        )
        why = f"status {done.returncode}: {done.stdout}{done.stderr}".strip()
        if done.returncode == 0:
            return True
    except (OSError, subprocess.TimeoutExpired) as error:
        why = str(error)
    row = {"suite": "ingest", "case": "readers under MPS", "result": "skip", "reason": why}
    print(json.dumps(row | {"s": round(time.monotonic() - begin, 1)}), flush=True)
    for log in pathlib.Path(f"{RUNTIME}/tmp/{MPS}").glob("*.log"):
        print(f"--- {log.name}\n{log.read_text(errors='replace')[-2000:]}", flush=True)
    return False


def stop_multi_process_service():
    """Stop the MPS daemon, if it runs."""
    if not os.path.exists(f"{RUNTIME}/tmp/{MPS}/control"):
        return
    try:
        subprocess.run(
            ["nvidia-cuda-mps-control"], input="quit\n", text=True, env=mps_variables(), timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"the MPS daemon does not stop: {error}", flush=True)


def usage(pid):
    """Private memory in kB and number of descriptors."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"RssAnon:\s+(\d+)", status)[1]), len(os.listdir(f"/proc/{pid}/fd"))


def pictures(file):
    """Number of pictures in a recorded segment, or None if it cannot be read."""
    out = f"{RUNTIME}/tmp/ingest/units.h264"
    caps = "video/x-h264,stream-format=byte-stream,alignment=au"
    inside = "/" + os.path.relpath(file, RUNTIME)
    pipeline = f"filesrc location={inside} ! matroskademux ! h264parse ! {caps} ! filesink location=/tmp/ingest/units.h264"
    if start("segments", "gst-launch-1.0", "-q", *pipeline.split()).wait(30):
        return None
    # Slices of type 1 and 5 whose first macroblock is the picture's first: a one in the first bit.
    return len(
        re.findall(
            rb"\x00\x00\x01[\x21\x41\x61\x01\x25\x45\x65\x05][\x80-\xff]", pathlib.Path(out).read_bytes()
        )
    )


def soak(seconds):
    """Kills of random processes for a long time; what survives stays as it is, and recordings are whole."""
    cameras = 8
    options = '[recording]\nfolder = "/tmp/ingest/recordings"\nsegment = "30s"\n[groups]\ndecode = 2\n'
    site = Site(cameras, options)
    victims, rows, kills, passed = [], [], collections.Counter(), False
    chance = random.Random(seed := time.time_ns())
    try:
        site.wait(lambda it: sum(value > 0 for _, value in it.get("reader_rate", [])) >= 2 * cameras, 40)
        # A reader on the GPU that lives through all restarts.
        words = " ".join(
            f"framesharesrc stream=cam{camera} on-disconnect=wait connection-timeout=-1 ! {CAPS} ! fakesink sync=false"
            for camera in range(cameras)
        )
        reader = start("soak-reader", "gst-launch-1.0", "-q", *words.split())
        time.sleep(5)
        begin = time.monotonic()
        while time.monotonic() < begin + seconds:
            running = {it["name"]: it["pid"] for it in site.state()["processes"] if it["pid"]}
            victims = sorted(name for name in running if name.startswith(("capture", "decode")))
            victim = chance.choice(victims)
            os.kill(running[victim], signal.SIGKILL)
            kills[victim] += 1
            time.sleep(10)
            if time.monotonic() > begin + 60:
                kept = {name: usage(pid) for name, pid in running.items() if name not in victims}
                kept |= {
                    "supervisor": usage(site.process.pid),
                    "reader": usage(reader.pid),
                    "GPU": (gpu()[2] * 1024, 0),
                }
                rows.append(kept)
        elapsed = time.monotonic() - begin
        restarts = {it["name"]: it["restarts"] for it in site.state()["processes"]}
        alive = reader.poll() is None
        end(reader)
        stopped = end(site.process)
        half = len(rows) // 2
        changes = {}
        for name in rows[0]:
            least = lambda part, index: min(row[name][index] for row in part if name in row)
            changes[name] = [least(part, index) for index in (0, 1) for part in (rows[:half], rows[half:])]
        flat = all(a * 1.25 + 16384 >= b and c + 8 >= d for a, b, c, d in changes.values())
        recorded = {}
        for camera in range(cameras):
            segments = sorted(
                glob.glob(f"{RUNTIME}/tmp/ingest/recordings/**/cam{camera}/**/*.mkv", recursive=True)
            ) or sorted(glob.glob(f"{RUNTIME}/tmp/ingest/recordings/cam{camera}/*.mkv"))
            counts = [pictures(segment) for segment in segments]
            recorded[f"cam{camera}"] = {
                "segments": len(counts),
                "unreadable": counts.count(None),
                "seconds": round(sum(filter(None, counts)) / RATE, 1),
            }
        whole = all(
            it["unreadable"] == 0 and it["seconds"] >= elapsed - 5 - 3 * kills[f"capture-{name}"]
            for name, it in recorded.items()
        )
        as_killed = all(restarts.get(name, 0) == count for name, count in kills.items())
        passed = flat and whole and as_killed and alive and stopped < 5
        print(
            json.dumps(
                {
                    "suite": "ingest-soak",
                    "case": "random-kills",
                    "result": "pass" if passed else "fail",
                    "s": round(elapsed),
                    "seed": seed,
                    "kills": sum(kills.values()),
                    "restarts": sum(restarts.values()),
                    "flat": flat,
                    "recordings": recorded,
                    "kB and descriptors, first and second half": changes,
                    "stopped s": round(stopped, 1),
                    "reader lives": alive,
                }
            ),
            flush=True,
        )
    finally:
        end(site.process)
    return passed


def print_log(name, lines):
    """Print the end of a log."""
    log = pathlib.Path(f"{RUNTIME}/tmp/ingest/{name}.log")
    text = log.read_text(errors="replace").splitlines() if log.exists() else []
    print(f"--- {name}.log, {len(text)} lines", *text[-lines:], sep="\n", flush=True)


def print_logs():
    """Print the ends of all logs."""
    for log in sorted(pathlib.Path(RUNTIME, "tmp/ingest").glob("*.log")):
        print_log(log.stem, 40)


def main():
    folder = pathlib.Path(RUNTIME, "tmp/ingest")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o755)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    case = sys.argv[1:]
    passed = False
    try:
        passed = capacity() if case == ["capacity"] else soak(int(os.environ.get("SOAK", "540")))
    finally:
        if not passed:
            print_logs()
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
