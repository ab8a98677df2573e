#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Charts and tables of measurements, from the benches' raw files.

    tools/charts.py            writes docs/charts/*.svg and the marked tables of the documents
    tools/charts.py --check    exits with 1 if one of them is not what the raw files give

Raw files are tests/bench/results, by `make bench-table`, and tests/gpu/results. A table of a
document stands between `<!-- charts: NAME -->` and `<!-- charts: end -->`.
"""

import json
import pathlib
import re
import sys

from raw_figures import Runs, Sharing, all_cpu, exporter_cpu, p50, p99, rate, reader_cpu
from svg_bars import bars

ROOT = pathlib.Path(__file__).resolve().parent.parent
HOST = ROOT / "tests/bench/results"
GPU = ROOT / "tests/gpu/results"
GPU_DAY = "2026-11-27"
CHARTS = ROOT / "docs/charts"
DOCUMENTS = ["docs/performance.md", "README.md"]
READERS = [1, 4, 8]
ELEMENTS = ["lossless", "unixfd", "shm", "pipewire"]
ENGINES = ["engine", "iceoryx2"]
SURFACES = ["gpu", "cudaipc", "gpu-polling"]
DECODERS = ["decoded once, shared", "decoded in each reader"]
NAMES = {
    "lossless": "frameshare",
    "unixfd": "unixfd",
    "shm": "shm",
    "pipewire": "PipeWire",
    "engine": "frameshare's engine",
    "iceoryx2": "iceoryx2",
    "gpu": "frameshare",
    "gpu-pool": "frameshare, pool",
    "gpu-polling": "frameshare, polling",
    "cudaipc": "cudaipc",
}
BLOCK = re.compile(r"(<!-- charts: ([a-z0-9-]+) -->\n).*?(<!-- charts: end -->)", re.DOTALL)


def count(readers):
    return "1 reader" if readers == 1 else f"{readers} readers"


def row(*cells):
    return "| " + " | ".join(str(cell if cell is not None else "-") for cell in cells) + " |"


def head(*cells):
    return [row(*cells), "|" + " --- |" * len(cells)]


def measured(runs, transports, rates, readers=READERS, **where):
    """Rows of latency and CPU of transports, for each rate and number of readers."""
    text = head("", *(NAMES[transport] for transport in transports))
    for paced in rates:
        pace = f"{paced:,} frames/s" if paced else "full speed"
        figures = [("p50, µs", p50), ("p99, µs", p99)] if paced or runs.base else [("frames/s", rate)]
        figures += [("a reader's CPU a frame, µs", reader_cpu), ("exporter's CPU a frame, µs", exporter_cpu)]
        for name, figure in figures:
            for number in readers:
                cells = [runs.spread(transport, figure, number, paced, **where) for transport in transports]
                text.append(row(f"{pace}, {count(number)}: {name}", *cells))
    if rates != [0] and not where:
        text.append(row("lost frames, all runs", *(runs.lost(transport) for transport in transports)))
    return text


class Measured:
    """All raw figures, and where they were measured."""

    def __init__(self):
        self.host, self.bare = Runs(HOST / "elements.jsonl"), Runs(HOST / "iceoryx2.jsonl")
        gpu = lambda name: GPU / f"h200-driver580-cuda13-{GPU_DAY}-{name}.jsonl"
        rounds = "bench-polls", "bench-1199a96", "bench-f066273", "bench-2160-1199a96"
        self.gpu = Runs(*map(gpu, rounds), base="decoder")
        self.sharing, self.gpu_sharing = Sharing(HOST / "sharing.jsonl"), Sharing(gpu("sharing"))
        about = json.loads((HOST / "conditions.json").read_text())
        rounds = max(outcome["round"] for outcome in self.host.outcomes)
        load = "load {} before and {} after the runs".format(*about["load"])
        machine = f"{about['machine']}, GStreamer {about['gstreamer']}"
        self.where = f"{about['date']}, {machine}, {rounds} rounds, {load}"

    def ratios(self, figure):
        """Of frameshare to each rival at 60 frames a second, for each number of readers."""

        def row_of(runs, ours, rival, measured=READERS):
            return [runs.ratio(ours, rival, figure, n, 60) if n in measured else None for n in READERS]

        return {
            "unixfd": row_of(self.host, "lossless", "unixfd"),
            "shm": row_of(self.host, "lossless", "shm"),
            "PipeWire": row_of(self.host, "lossless", "pipewire"),
            "iceoryx2 (engine)": row_of(self.bare, "engine", "iceoryx2"),
            "cudaipc (H200)": row_of(self.gpu, "gpu", "cudaipc", [1, 8]),
        }

    def costs(self):
        """The same of CPU time, and of decoders in each reader."""
        each = [self.sharing.ratio(Sharing.cpu, number) for number in READERS]
        return self.ratios(all_cpu) | {"each decodes itself": each}

    def lost(self):
        """Frames that rivals lost."""
        return {
            "unixfd": self.host.lost("unixfd"),
            "shm": self.host.lost("shm"),
            "PipeWire": self.host.lost("pipewire"),
            "iceoryx2 (engine)": self.bare.lost("iceoryx2"),
            "cudaipc (H200)": self.gpu.lost("cudaipc"),
        }


def charts_of(all_):
    """SVGs by name."""
    host, bare, gpu, sharing = all_.host, all_.bare, all_.gpu, all_.sharing

    def groups(runs, transports, figure, paced, readers=READERS):
        found = lambda number: [runs.spread(transport, figure, number, paced) for transport in transports]
        return [(count(number), found(number)) for number in readers]

    def shared(figure):
        found = lambda number: [sharing.spread(shares, figure, number) for shares in (True, False)]
        return [(count(number), found(number)) for number in READERS]

    names = lambda transports: [NAMES[transport] for transport in transports]
    note = ["1080p; medians, and least to most of the rounds as a line.", all_.where]
    return {
        "summary": bars(
            "The cost of frameshare beside each rival, which is 1: shorter is better",
            ["1080p at 60 frames/s; ratios within a round, median, and least to most as a line.", all_.where],
            [count(number) for number in READERS],
            [
                ("Median latency, frameshare to rival", [*all_.ratios(p50).items()]),
                ("CPU of all processes a frame, frameshare to rival", [*all_.costs().items()]),
            ],
            line=1,
            kind="n",
        ),
        "latency": bars(
            "Latency from sink to source, µs",
            note,
            names(ELEMENTS),
            [
                ("60 frames/s, median", groups(host, ELEMENTS, p50, 60)),
                ("60 frames/s, p99", groups(host, ELEMENTS, p99, 60)),
                ("1,000 frames/s, median", groups(host, ELEMENTS, p50, 1000)),
            ],
        ),
        "cpu": bars(
            "CPU of exporter and all readers a frame, µs",
            note,
            names(ELEMENTS),
            [(f"{paced:,} frames/s", groups(host, ELEMENTS, all_cpu, paced)) for paced in (60, 1000)],
        ),
        "iceoryx2": bars(
            "Frameshare's engine and iceoryx2, both without GStreamer",
            note,
            names(ENGINES),
            [
                ("Median latency at 60 frames/s, µs", groups(bare, ENGINES, p50, 60)),
                ("p99 at 60 frames/s, µs", groups(bare, ENGINES, p99, 60)),
                ("CPU of all processes a frame at 60 frames/s, µs", groups(bare, ENGINES, all_cpu, 60)),
            ],
        ),
        "sharing": bars(
            "One decoder shared, and a decoder in each reader",
            ["H.264, 1280x720 at 30 frames/s, decoded on the CPU.", all_.where],
            DECODERS,
            [
                ("CPU of all processes for a frame in every reader, ms", shared(Sharing.cpu)),
                ("Memory of all processes (PSS), MB", shared(Sharing.memory)),
            ],
        ),
        "gpu": bars(
            "CUDA memory beside cudaipc",
            [f"H200, {GPU_DAY}; 1080p surfaces of NVIDIA's decoder in place, 60 frames/s."],
            names(SURFACES),
            [
                ("Median latency, µs", groups(gpu, SURFACES, p50, 60, [1, 8])),
                ("p99, µs", groups(gpu, SURFACES, p99, 60, [1, 8])),
            ],
        ),
    }


def summary(all_):
    """Both ratios of each rival with 1 and 8 readers; the same in short for the README."""
    late, lost = all_.ratios(p50), all_.lost()
    text = head("rival", "readers", "median latency, ratio", "CPU a frame, ratio", "lost by the rival")
    short = head("rival", "median latency, 1 reader", "8 readers", "CPU a frame, 1 reader", "8 readers")
    for name, costs in all_.costs().items():
        delays = late.get(name, [None] * len(READERS))
        ends = [0, len(READERS) - 1]
        for at in ends:
            text.append(row(name, READERS[at], delays[at], costs[at], lost.get(name)))
        cells = [spreads[at] for spreads in (delays, costs) for at in ends]
        short.append(row(name, *(cell and f"{cell.median:.2f}" for cell in cells)))
    return text, short


def decoding(sharing, *more):
    """Cost of one decoder and of a decoder in each reader."""
    text = head("", *DECODERS, "ratio")
    for name, figure in [
        ("CPU of all processes a frame, ms", Sharing.cpu),
        ("memory of all processes (PSS), MB", Sharing.memory),
        *more,
        ("frames/s of the slowest reader", Sharing.slowest),
    ]:
        for number in READERS:
            cells = [sharing.spread(shares, figure, number) for shares in (True, False)]
            text.append(row(f"{count(number)}: {name}", *cells, sharing.ratio(figure, number)))
    return text + [row(f"{count(number)}: decoders", 1, number, f"{1 / number:.2f}") for number in READERS]


def tables_of(all_):
    """Lines of tables by name."""
    long, short = summary(all_)
    return {
        "conditions": [f"{all_.where}; in each round all of them in turn (`make bench-table`)."],
        "summary": long,
        "readme": short,
        "host": measured(all_.host, ELEMENTS, [60, 1000]),
        "full-speed": measured(all_.host, ELEMENTS[:3], [0]),
        "iceoryx2": measured(all_.bare, ENGINES, [60, 1000, 0]),
        "sharing": decoding(all_.sharing),
        "gpu-sharing": decoding(all_.gpu_sharing, ("GPU memory of all processes, MB", Sharing.gpu_memory)),
        "gpu-1080": measured(all_.gpu, SURFACES, [0, 60], [1, 8], height=1080),
        "gpu-2160": measured(all_.gpu, SURFACES, [0, 60], [1, 8], height=2160),
    }


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        raise SystemExit(__doc__)
    all_ = Measured()
    charts, tables = charts_of(all_), tables_of(all_)
    texts = {CHARTS / f"{name}.svg": text for name, text in charts.items()}
    used = set()
    for document in DOCUMENTS:
        path = ROOT / document

        def block(found):
            used.add(found[2])
            return found[1] + "\n" + "\n".join(tables[found[2]]) + "\n\n" + found[3]

        texts[path] = BLOCK.sub(block, path.read_text())
    stale = [path for path, text in texts.items() if not path.exists() or path.read_text() != text]
    stale += [path for path in CHARTS.glob("*.svg") if path not in texts]
    if unused := tables.keys() - used:
        raise SystemExit(f"charts: no document has the tables {', '.join(sorted(unused))}")
    if check and stale:
        names = ", ".join(str(path.relative_to(ROOT)) for path in stale)
        raise SystemExit(f"charts: not what the raw files give: {names}; run make charts")
    if not check:
        CHARTS.mkdir(exist_ok=True)
        for path in stale:
            path.write_text(texts[path]) if path in texts else path.unlink()
    print(f"PASS charts: {len(charts)} charts and {len(used)} tables agree with the raw files")


if __name__ == "__main__":
    main()
