// SPDX-License-Identifier: MIT OR Apache-2.0

//! NVIDIA's decoder before the sink, read without GStreamer: the intended path is taken, sizes
//! change, and allocations are queried again. Every frame is compared with the decoder's output to
//! the CPU.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use frameshare_gpu_harness::Skip;

use super::{
    CUDA, Case, Descriptions, Place, autoplugging, case, complete, is_costly, listed, mistakes, play_to,
    right, whole,
};
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

/// Plays a clip to lossless readers, which must all get every frame; returns the sink's statistics,
/// and the number of wrong frames among those that may be wrong.
fn play(
    way: &Way,
    fence: &str,
    clip: &Path,
    sums: &[u64],
    readers: usize,
    may_be_wrong: fn(u64, u64) -> bool,
) -> Result<(Stats, usize)> {
    let place = Place::new()?;
    let exporter = Peer::new()?;
    let sink = place.sink(&format!("{} fence={fence}", way.sink));
    exporter.play(&format!("{} ! nvh264dec {} ! {CUDA} ! {sink}", parsed(clip), way.decoder))?;
    let readers = Peer::some(readers)?;
    for reader in &readers {
        reader.connect(place.lossless())?;
    }
    let mut forgiven = 0;
    for (number, read) in play_to(&readers, &exporter)?.iter().enumerate() {
        complete(read, sums).with_context(|| format!("reader {number}"))?;
        let wrong = mistakes(read, sums)?;
        let frames = sums.len() as u64;
        if wrong.iter().all(|(frame, instead)| may_be_wrong(*frame, frames) && instead.is_none()) {
            forgiven = forgiven.max(wrong.len());
        } else {
            right(read, sums).with_context(|| format!("reader {number}"))?;
        }
        ensure!(read.on_gpu == sums.len() as u64, "{} frames arrived in GPU memory", read.on_gpu);
    }
    let stats = exporter.stats(Command::Stop)?;
    let beyond = stats.reason("surfaces-held");
    ensure!(stats.path(way.path) + beyond == sums.len() as u64, "{stats:?}");
    // Readers hold four frames each, mostly the same ones: nearly all are shared in place.
    ensure!(beyond * 10 <= sums.len() as u64, "{stats:?}");
    Ok((stats, forgiven))
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
            let (stats, _) = play(way, fence, &clip, &sums, 1, |_, _| false)
                .with_context(|| format!("{}, {fence}", way.sink))?;
            seen.push(describe(way, &stats));
        }
    }
    Ok(seen.join("; "))
}

/// Number of frames of each part of the clip with several sizes.
const PART: u64 = 30;
/// Number of frames that the decoder outputs at once before a change of size: unless upstream is
/// live, it keeps two besides the last one. The clip has no frames in another order, of which it
/// would keep more.
const OUTPUT_AT_ONCE: u64 = 3;
/// Number of frames before a change of size that may be torn. The copies of those before may be
/// pending, too, since the decoder waits for none.
const MAY_BE_TORN: u64 = 2 * OUTPUT_AT_ONCE;
/// Number of pipelines without frameshare that load the GPU.
const LOADS: usize = 4;

/// Returns whether a frame, counted from 1, is one of the last before a change of size. The last
/// part ends without one.
fn is_before_a_change(frame: u64, frames: u64) -> bool {
    let left = PART - 1 - (frame - 1) % PART;
    left < MAY_BE_TORN && frame + PART <= frames
}

/// More than twenty changes of the size, on every path, with the GPU to itself and beside other
/// decoders.
///
/// At a change GStreamer 1.26 outputs the frames that it kept, queues their copies, and
/// reconfigures or destroys its decoder without waiting for any of them
/// (`gst_nv_decoder_configure`). On a loaded GPU they are pending, and torn for any consumer.
/// Control: the loads themselves, which contain no frameshare and do not wait for the GPU either.
/// Every other frame must be intact, with frameshare and without.
fn new_sizes(_: u64) -> Result<String> {
    let switch = std::fs::read(clip("switch.h264")?)?;
    let folder = tempfile::tempdir_in("/tmp")?;
    let clip = folder.path().join("long.h264");
    std::fs::write(&clip, switch.repeat(4))?;
    let sums = expected(&clip)?;
    ensure!((sums.len() as u64).is_multiple_of(PART), "{} frames are no whole parts", sums.len());
    let queue = "queue max-size-buffers=100 max-size-bytes=0 max-size-time=0";
    let without = format!(
        "{} ! nvh264dec ! {CUDA} ! {queue} ! cudadownload ! video/x-raw ! appsink name=out",
        parsed(&clip)
    );
    let mut seen = Vec::new();
    for way in [&WAYS[0], &WAYS[2], &WAYS[5], &WAYS[6]] {
        let (stats, torn) = play(way, "auto", &clip, &sums, 2, is_before_a_change)
            .with_context(|| format!("{} {}", way.name, way.sink))?;
        seen.push(format!("{}, {torn} torn", describe(way, &stats)));
    }
    seen.push(format!("{} torn without frameshare, after a queue", torn_without(&without, &sums)?));
    let loaded = std::thread::scope(|scope| -> Result<(usize, usize)> {
        let loads: Vec<_> = (0..LOADS).map(|_| scope.spawn(|| torn_without(&without, &sums))).collect();
        let played = play(&WAYS[0], "auto", &clip, &sums, 2, is_before_a_change);
        let torn: Result<Vec<_>> =
            loads.into_iter().map(|load| load.join().expect("a load does not panic")).collect();
        Ok((played.context("beside other decoders")?.1, torn?.into_iter().max().unwrap_or(0)))
    });
    let (with, without) = loaded?;
    seen.push(format!("beside {LOADS} other decoders {with} torn, without frameshare up to {without}"));
    Ok(seen.join("; "))
}

/// Plays a pipeline without frameshare. Returns the number of its torn frames, which must be among
/// the last before a change.
fn torn_without(pipeline: &str, sums: &[u64]) -> Result<usize> {
    let found = Peer::new()?.numbers(Command::Checksums { pipeline: pipeline.into() })?;
    ensure!(found.len() == sums.len(), "{} of {} frames without frameshare", found.len(), sums.len());
    let wrong = (1..).zip(found.iter().zip(sums)).filter(|(_, (found, expected))| found != expected);
    let wrong: Vec<u64> = wrong.map(|(frame, _)| frame).collect();
    let far = wrong.iter().find(|frame| !is_before_a_change(**frame, sums.len() as u64));
    ensure!(far.is_none(), "frame {far:?} is torn without frameshare, far from a change: {wrong:?}");
    Ok(wrong.len())
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
        for read in play_to(&[reader], &exporter)? {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_frames_before_a_change_may_be_torn() {
        let (parts, all) = (3, 3 * PART);
        let allowed: Vec<_> = (1..=all).filter(|frame| is_before_a_change(*frame, all)).collect();
        assert_eq!(allowed.len() as u64, (parts - 1) * MAY_BE_TORN);
        assert_eq!((allowed[0], *allowed.last().unwrap()), (PART - MAY_BE_TORN + 1, 2 * PART));
    }
}
