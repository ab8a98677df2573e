// SPDX-License-Identifier: MIT OR Apache-2.0

//! NVIDIA's decoder before the sink, read without GStreamer: the intended path is taken, sizes
//! change, and allocations are queried again. Every frame is compared with the decoder's output to
//! the CPU.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use frameshare_gpu_harness::Skip;

use super::{CUDA, Case, Descriptions, Place, autoplugging, case, is_costly, listed, play_to, whole};
use crate::job::{Command, Connect, Read, Stats};
use crate::peer::Peer;

const SUITE: &str = "gst-nvdec";

pub const CASES: &[Case] = &[
    case(SUITE, "into-slots", |_| one_reader("into-slots")),
    case(SUITE, "copied", |_| one_reader("copied")),
    case(SUITE, "in-place", |_| one_reader("in-place")),
    Case { seconds: 240, ..case(SUITE, "new-sizes", new_sizes) },
    case(SUITE, "allocation-asked-for-again", asked_again),
    case(SUITE, "steady-state", steady),
    case(SUITE, "behind-decodebin-and-playbin", autoplugged),
];

/// A path from the decoder to the readers: the decoder's and the sink's properties, and the path's
/// name in the statistics.
struct Way {
    name: &'static str,
    decoder: &'static str,
    sink: &'static str,
    path: &'static str,
}

const WAYS: [Way; 7] = [
    // With one output surface, the default since GStreamer 1.26, the decoder copies each frame into
    // the downstream pool.
    Way { name: "into-slots", decoder: "num-output-surfaces=1", sink: "memory=vmm", path: "pool" },
    Way { name: "into-slots", decoder: "num-output-surfaces=1", sink: "memory=pool", path: "pool" },
    Way { name: "into-slots", decoder: "num-output-surfaces=1", sink: "memory=legacy", path: "pool" },
    Way { name: "copied", decoder: SURFACES, sink: "export=copy memory=vmm", path: "copied" },
    Way { name: "copied", decoder: SURFACES, sink: "export=copy memory=pool", path: "copied" },
    Way { name: "copied", decoder: SURFACES, sink: "export=copy memory=legacy", path: "copied" },
    Way { name: "in-place", decoder: SURFACES, sink: "export=in-place", path: "in-place" },
];

/// Makes the decoder output its own surfaces, two more than downstream requests.
pub(super) const SURFACES: &str = "num-output-surfaces=0";

/// Returns a clip that is stored beside this program, or in its bundle.
pub(super) fn clip(name: &str) -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let folder = program.parent().context("the program has no parent folder")?;
    let found =
        [folder.join(name), folder.join("../clips").join(name)].into_iter().find(|path| path.exists());
    found.ok_or_else(|| Skip(format!("{name} is missing beside this program: run make gpu-bundle")).into())
}

/// Returns the pipeline that reads and parses a clip, up to a decoder.
pub(super) fn parsed(clip: &Path) -> String {
    format!("filesrc location={} ! h264parse", clip.display())
}

/// Returns the checksums of the decoder's output for a clip.
pub(super) fn expected(clip: &Path) -> Result<Vec<u64>> {
    let peer = Peer::new()?;
    if peer.number(Command::HasElement { name: "nvh264dec".into() })? == 0 {
        return Err(Skip("nvh264dec, the GPU's decoder, is missing".into()).into());
    }
    let pipeline = format!("{} ! nvh264dec ! video/x-raw ! appsink name=out", parsed(clip));
    let sums = peer.numbers(Command::Checksums { pipeline })?;
    ensure!(sums.len() > 50, "the decoder delivers only {} frames", sums.len());
    Ok(sums)
}

/// Plays a clip to lossless readers, which must all get every frame, and need this time on the GPU
/// for each, in µs. Returns the sink's statistics.
fn play(way: &Way, fence: &str, clip: &Path, sums: &[u64], readers: usize, slow_us: u64) -> Result<Stats> {
    let place = Place::new()?;
    let exporter = Peer::new()?;
    let sink = place.sink(&format!("{} fence={fence}", way.sink));
    exporter.play(&format!("{} ! nvh264dec {} ! {CUDA} ! {sink}", parsed(clip), way.decoder))?;
    let readers = Peer::some(readers)?;
    for reader in &readers {
        reader.connect(place.lossless())?;
    }
    for (number, read) in play_to(&readers, &exporter, slow_us)?.iter().enumerate() {
        whole(read, sums).with_context(|| format!("reader {number}"))?;
        ensure!(read.on_gpu == sums.len() as u64, "{} frames arrived in GPU memory", read.on_gpu);
    }
    let stats = exporter.stats(Command::Stop)?;
    let frames = sums.len() as u64;
    if way.path == "in-place" {
        let (held, changes) = (stats.reason("surfaces-held"), stats.reason("decoder-changes"));
        ensure!(stats.path(way.path) + held + changes == frames, "{stats:?}");
        // Readers hold four frames each, mostly the same ones: nearly all are shared in place.
        ensure!(held * 10 <= frames || slow_us > 0, "{stats:?}");
    } else {
        ensure!(stats.path(way.path) == frames, "{stats:?}");
    }
    Ok(stats)
}

fn describe(way: &Way, stats: &Stats) -> String {
    format!("{}: {} of {}, {}", way.sink, stats.path(way.path), stats.published, stats.memory)
}

/// Each kind of memory and fence, with one reader.
fn one_reader(name: &str) -> Result<String> {
    let clip = clip("hd.h264")?;
    let sums = expected(&clip)?;
    let mut seen = Vec::new();
    for way in WAYS.iter().filter(|way| way.name == name) {
        for fence in ["event", "timeline"] {
            let stats =
                play(way, fence, &clip, &sums, 1, 0).with_context(|| format!("{}, {fence}", way.sink))?;
            seen.push(describe(way, &stats));
        }
    }
    Ok(seen.join("; "))
}

/// Number of pipelines without frameshare that load the GPU.
const LOADS: usize = 4;

/// More than twenty changes of the size, on every path, with readers that are slow, and beside
/// other decoders.
///
/// At a change GStreamer 1.26 clears the surfaces of its decoder, without waiting for readers
/// ([`crate::reconfigured`]). Control: the loads, which contain no frameshare, and get cleared
/// frames behind a queue.
fn new_sizes(_: u64) -> Result<String> {
    let switch = std::fs::read(clip("switch.h264")?)?;
    let folder = tempfile::tempdir_in("/tmp")?;
    let clip = folder.path().join("long.h264");
    std::fs::write(&clip, switch.repeat(4))?;
    let sums = expected(&clip)?;
    let queue = "queue max-size-buffers=100 max-size-bytes=0 max-size-time=0";
    let without = format!(
        "{} ! nvh264dec {SURFACES} ! {CUDA} ! {queue} ! identity sleep-time=3000 ! cudadownload ! video/x-raw \
         ! appsink name=out",
        parsed(&clip)
    );
    let ways = [&WAYS[0], &WAYS[2], &WAYS[5], &WAYS[6]];
    let mut seen = Vec::new();
    for way in ways {
        let stats =
            play(way, "auto", &clip, &sums, 2, 3000).with_context(|| format!("{} {}", way.name, way.sink))?;
        seen.push(describe(way, &stats));
    }
    let wrong = std::thread::scope(|scope| -> Result<usize> {
        let loads: Vec<_> = (0..LOADS).map(|_| scope.spawn(|| wrong_without(&without, &sums))).collect();
        for way in ways {
            play(way, "auto", &clip, &sums, 2, 0).with_context(|| format!("{} beside others", way.sink))?;
        }
        let wrong: Result<Vec<_>> =
            loads.into_iter().map(|load| load.join().expect("a load does not panic")).collect();
        Ok(wrong?.into_iter().min().unwrap_or(0))
    })?;
    seen.push(format!("without frameshare, behind a queue, {wrong} or more frames are wrong"));
    Ok(seen.join("; "))
}

/// Plays a pipeline without frameshare. Returns the number of its wrong frames.
fn wrong_without(pipeline: &str, sums: &[u64]) -> Result<usize> {
    let found = Peer::new()?.numbers(Command::Checksums { pipeline: pipeline.into() })?;
    ensure!(found.len() == sums.len(), "{} of {} frames without frameshare", found.len(), sums.len());
    Ok(found.iter().zip(sums).filter(|(found, expected)| found != expected).count())
}

/// The decoder repeats the allocation query many times: afterwards it writes on streams that its
/// memories do not name.
fn asked_again(_: u64) -> Result<String> {
    let clip = clip("hd.h264")?;
    let sums = expected(&clip)?;
    let place = Place::new()?;
    let exporter = Peer::new()?;
    exporter.play(&format!("{} ! nvh264dec {SURFACES} ! {CUDA} ! {}", parsed(&clip), place.sink("")))?;
    let readers = Peer::some(2)?;
    for reader in &readers {
        reader.connect(place.lossless())?;
        reader.begin(&Command::Read(Read { slow_us: 2000, ..Read::default() }))?;
    }
    exporter.execute(Command::Go)?;
    for _ in 0..20 {
        exporter.execute(Command::Renegotiate)?;
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    exporter.execute(Command::AwaitEnd { ms: 60_000 })?;
    for reader in &readers {
        whole(&reader.was_read()?, &sums)?;
    }
    let stats = exporter.stats(Command::Stop)?;
    ensure!(stats.path("in-place") > 0, "{stats:?}");
    Ok(format!("{} in place, {} copied", stats.path("in-place"), stats.path("copied")))
}

/// From the middle of the clip on the sink makes no call that allocates, frees, imports, exports or
/// waits; in place, none that copies.
fn steady(_: u64) -> Result<String> {
    let clip = clip("hd.h264")?;
    expected(&clip)?;
    let mut seen = Vec::new();
    for (way, more) in [(&WAYS[0], "Memcpy"), (&WAYS[3], "Alloc"), (&WAYS[6], "Memcpy")] {
        let place = Place::new()?;
        let exporter = Peer::new()?;
        let sink = place.sink(&format!("{} fence=timeline", way.sink));
        exporter.play(&format!("{} ! nvh264dec {} ! {CUDA} ! {sink}", parsed(&clip), way.decoder))?;
        let reader = Peer::new()?;
        reader.connect(Connect { max_held: Some(2), ..place.lossless() })?;
        reader.begin(&Command::Read(Read { frames: Some(100), ..Read::default() }))?;
        exporter.execute(Command::Go)?;
        reader.was_read()?;
        let before = exporter.stats(Command::Stats)?;
        reader.begin(&Command::Read(Read { frames: Some(100), ..Read::default() }))?;
        reader.was_read()?;
        let after = exporter.stats(Command::Stats)?;
        let (calls, frames) = (after.calls_since(&before), after.published - before.published);
        let costly: Vec<_> = calls.iter().filter(|(call, _)| is_costly(call, more)).collect();
        ensure!(costly.is_empty(), "{}: {costly:?} in {frames} frames", way.sink);
        seen.push(format!("{}: {frames} frames, {}", way.sink, listed(&calls)));
    }
    Ok(seen.join("; "))
}

/// Autoplugging elements choose NVIDIA's decoder, which decodes into slots.
fn autoplugged(_: u64) -> Result<String> {
    let clip = clip("hd.h264")?;
    let sums = expected(&clip)?;
    let place = Place::new()?;
    for pipeline in autoplugging(clip.display(), &place.sink("")) {
        let (exporter, reader) = (Peer::new()?, Peer::new()?);
        exporter.play(&pipeline)?;
        reader.connect(place.lossless())?;
        for read in play_to(&[reader], &exporter, 0)? {
            whole(&read, &sums).with_context(|| pipeline.clone())?;
            ensure!(
                read.on_gpu == sums.len() as u64,
                "{pipeline}: {} frames arrived in GPU memory",
                read.on_gpu
            );
        }
        let stats = exporter.stats(Command::Stop)?;
        ensure!(stats.path("pool") == sums.len() as u64, "{pipeline}: {stats:?}");
    }
    Ok(String::new())
}
