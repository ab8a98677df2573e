// SPDX-License-Identifier: MIT OR Apache-2.0

//! framesharesink with frames on a GPU, read without GStreamer.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use frameshare_gpu_harness::Skip;

use super::surfaces::{behind_decoder, decoded, decoder, settled};
use super::{CUDA, Case, Descriptions, FRAMES, Place, autoplugging, case, play_to, whole};
use crate::job::{Command, Connect, Decode, Read, Stats};
use crate::peer::Peer;

const SUITE: &str = "gst-sink";

pub const CASES: &[Case] = &[
    case(SUITE, "upstream-writes-into-slots", pool),
    case(SUITE, "a-kernel-writes-into-slots", converted),
    case(SUITE, "copied-on-the-gpu", copied),
    case(SUITE, "uploaded", uploaded),
    case(SUITE, "host-frames-stay-on-the-host", host),
    case(SUITE, "new-sizes-while-frames-are-held", renegotiates),
    case(SUITE, "behind-decodebin-and-playbin", autoplugged),
    case(SUITE, "no-slot-to-spare", no_slot),
    case(SUITE, "no-gpu-memory-left", no_memory),
    case(SUITE, "what-cannot-be-had", refused),
];

/// Returns a source of frames that change everywhere from one frame to the next.
pub(super) fn pictures(caps: &str) -> String {
    pictures_for(caps, FRAMES)
}

pub(super) fn pictures_for(caps: &str, frames: u64) -> String {
    let plate = "pattern=zone-plate kx2=3 ky2=3 kt=23";
    format!("videotestsrc {plate} num-buffers={frames} ! video/x-raw,{caps},framerate=30/1")
}

/// Returns the checksums of the frames that such a pipeline should deliver.
pub(super) fn expected(pictures: &str) -> Result<Vec<u64>> {
    Peer::new()?.numbers(Command::Checksums { pipeline: format!("{pictures} ! appsink name=out") })
}

/// Runs a pipeline with a GPU reader and one without GPU, which both must get every frame; returns
/// the sink's statistics.
fn play(place: &Place, pipeline: &str, sums: &[u64]) -> Result<Stats> {
    let exporter = Peer::new()?;
    exporter.play(pipeline)?;
    let readers = Peer::some(2)?;
    readers[0].connect(place.lossless())?;
    readers[1].connect(Connect { host: true, ..place.lossless() })?;
    for (number, read) in play_to(&readers, &exporter, 0)?.iter().enumerate() {
        whole(read, sums).with_context(|| format!("reader {number}"))?;
    }
    exporter.stats(Command::Stop)
}

/// cudaupload writes directly into slots of every kind; no frame is copied.
fn pool(_: u64) -> Result<String> {
    let mut seen = Vec::new();
    for (format, memory) in [("NV12", "vmm"), ("RGBA", "pool"), ("I420", "legacy"), ("NV12", "auto")] {
        let pictures = pictures(&format!("format={format},width=322,height=241"));
        let sums = expected(&pictures)?;
        for fence in ["event", "timeline"] {
            let place = Place::new()?;
            let sink = place.sink(&format!("memory={memory} fence={fence}"));
            let stats = play(&place, &format!("{pictures} ! cudaupload ! {CUDA} ! {sink}"), &sums)
                .with_context(|| format!("{format}, {memory}, {fence}"))?;
            ensure!(stats.path("pool") == FRAMES && stats.private == 0, "{memory}: {stats:?}");
            seen.push(stats.memory);
        }
    }
    Ok(seen.join("; "))
}

/// Conversion to another size and format, which needs kernels.
pub(super) const CONVERTED: &str =
    "cudaconvertscale ! video/x-raw(memory:CUDAMemory),format=RGBA,width=320,height=200";

/// Skips the case if the driver has no kernels: the converting element is not registered then.
pub(super) fn needs_kernels() -> Result<()> {
    if Peer::new()?.number(Command::HasElement { name: "cudaconvertscale".into() })? == 0 {
        return Err(Skip("cudaconvertscale is missing: it needs kernels and their compiler".into()).into());
    }
    Ok(())
}

/// cudaconvertscale writes directly into slots of every kind; no frame is copied.
fn converted(_: u64) -> Result<String> {
    needs_kernels()?;
    let pictures = pictures("format=NV12,width=640,height=480");
    let sums = expected(&format!("{pictures} ! cudaupload ! {CONVERTED} ! cudadownload ! video/x-raw"))?;
    let mut seen = Vec::new();
    for memory in ["vmm", "pool", "legacy"] {
        for fence in ["event", "timeline"] {
            let place = Place::new()?;
            let sink = place.sink(&format!("memory={memory} fence={fence}"));
            let stats = play(&place, &format!("{pictures} ! cudaupload ! {CONVERTED} ! {sink}"), &sums)
                .with_context(|| format!("{memory}, {fence}"))?;
            ensure!(stats.path("pool") == FRAMES && stats.private == 0, "{memory}: {stats:?}");
            ensure!(stats.reasons.values().sum::<u64>() == 0, "{memory}: {stats:?}");
            seen.push(stats.memory);
        }
    }
    Ok(seen.join("; "))
}

/// Frames in upstream's own memory are copied once.
fn copied(_: u64) -> Result<String> {
    for (format, memory) in [("NV12", "vmm"), ("BGRA", "pool"), ("Y444", "legacy")] {
        let pictures = pictures(&format!("format={format},width=322,height=241"));
        let sums = expected(&pictures)?;
        let place = Place::new()?;
        let sink = place.sink(&format!("memory={memory}"));
        let own = "identity drop-allocation=true";
        let stats = play(&place, &format!("{pictures} ! cudaupload ! {CUDA} ! {own} ! {sink}"), &sums)
            .with_context(|| format!("{format}, {memory}"))?;
        ensure!(stats.path("copied") == FRAMES && stats.reason("foreign-memory") == FRAMES, "{stats:?}");
    }
    Ok(String::new())
}

/// Host frames are uploaded if a kind of GPU memory is configured.
fn uploaded(_: u64) -> Result<String> {
    for (format, memory) in [("NV12", "vmm"), ("I420", "pool"), ("AYUV", "legacy"), ("YUY2", "vmm")] {
        let pictures = pictures(&format!("format={format},width=322,height=241"));
        let sums = expected(&pictures)?;
        let place = Place::new()?;
        let stats = play(&place, &format!("{pictures} ! {}", place.sink(&format!("memory={memory}"))), &sums)
            .with_context(|| format!("{format}, {memory}"))?;
        ensure!(stats.path("uploaded") == FRAMES && stats.memory.starts_with(memory), "{stats:?}");
    }
    Ok(String::new())
}

/// Without configured GPU memory, host frames are shared in host memory even if there is a GPU.
fn host(_: u64) -> Result<String> {
    let pictures = pictures("format=NV12,width=320,height=240");
    let sums = expected(&pictures)?;
    let place = Place::new()?;
    // Linked to an element that can output either memory, the sink has a GPU and gets system
    // memory.
    let pipeline = format!("{pictures} ! cudaupload ! {}", place.sink(""));
    let stats = play(&place, &pipeline, &sums)?;
    ensure!(stats.path("pool") == FRAMES && stats.memory.starts_with("host"), "{stats:?}");
    Ok(stats.memory)
}

/// The size changes while readers hold frames of old sizes, which stay unchanged.
fn renegotiates(_: u64) -> Result<String> {
    const EACH: u64 = 12;
    let sizes =
        ["width=320,height=240", "width=512,height=288", "width=160,height=120", "width=320,height=240"];
    for own in ["", "identity drop-allocation=true !"] {
        let mut sums = Vec::new();
        let mut pipeline = String::from("concat name=all");
        let place = Place::new()?;
        pipeline = format!("{pipeline} ! {own} {}", place.sink(""));
        for size in sizes {
            let part = pictures_for(&format!("format=NV12,{size}"), EACH);
            sums.extend(expected(&part)?);
            pipeline = format!("{pipeline} {part} ! cudaupload ! {CUDA} ! all.");
        }
        let exporter = Peer::new()?;
        exporter.play(&pipeline)?;
        let readers = Peer::some(2)?;
        readers[0].connect(place.lossless())?;
        readers[1].connect(Connect { max_held: Some(6), ..place.lossless() })?;
        exporter.execute(Command::Go)?;
        for (number, reader) in readers.iter().enumerate() {
            let read = Read { frames: Some(sums.len() as u64), hold: 3 * number, ..Read::default() };
            reader.begin(&Command::Read(read))?;
        }
        for reader in &readers {
            whole(&reader.was_read()?, &sums).with_context(|| own.to_owned())?;
        }
        for reader in &readers {
            reader.execute(Command::ReleaseHeld)?;
            reader.execute(Command::Disconnect)?;
        }
        exporter.execute(Command::AwaitEnd { ms: 20_000 })?;
        let stats = exporter.stats(Command::Stop)?;
        let path = if own.is_empty() { "pool" } else { "copied" };
        ensure!(stats.path(path) == sums.len() as u64, "{stats:?}");
    }
    Ok(String::new())
}

/// Autoplugging elements find a decoder for the sink, whatever its memory setting.
fn autoplugged(_: u64) -> Result<String> {
    let maker = Peer::new()?;
    if maker.number(Command::HasElement { name: "x264enc".into() })? == 0 {
        return Err(Skip("x264enc is missing, which makes the clip".into()).into());
    }
    let folder = tempfile::tempdir_in("/tmp")?;
    let clip = folder.path().join("clip.mkv").display().to_string();
    let pictures = pictures("format=I420,width=320,height=240");
    let place = Place::new()?;
    // A filesink named `sink` stands in for the framesharesink.
    let encode =
        format!("{pictures} ! x264enc tune=zerolatency ! matroskamux ! filesink name=sink location={clip}");
    maker.play(&encode)?;
    maker.execute(Command::Go)?;
    maker.execute(Command::AwaitEnd { ms: 30_000 })?;
    let raw = "video/x-raw,format=I420";
    let sums = expected(&format!("filesrc location={clip} ! decodebin ! {raw}"))?;
    ensure!(sums.len() as u64 == FRAMES, "the clip has {} frames", sums.len());
    for memory in ["auto", "vmm"] {
        let sink = place.sink(&format!("memory={memory}"));
        for pipeline in autoplugging(&clip, &sink) {
            let stats = play(&place, &pipeline, &sums).with_context(|| pipeline.clone())?;
            let path = if memory == "auto" { "pool" } else { "uploaded" };
            ensure!(stats.path(path) == FRAMES, "{pipeline}: {stats:?}");
        }
    }
    Ok(String::new())
}

/// Without a free slot, upstream writes to private memory, and the frame is copied.
fn no_slot(_: u64) -> Result<String> {
    let pictures = pictures("format=NV12,width=320,height=240");
    let sums = expected(&pictures)?;
    let place = Place::new()?;
    let exporter = Peer::new()?;
    // A live source, so that the reader connects first; then upstream holds more and more frames,
    // since the reader is slow.
    let pictures = pictures.replace("videotestsrc", "videotestsrc is-live=true");
    let queue = "queue max-size-buffers=12";
    let sink = place.sink("max-slots=8 slow-readers=wait");
    exporter.play(&format!("{pictures} ! cudaupload ! {CUDA} ! {queue} ! {sink}"))?;
    let reader = Peer::new()?;
    reader.connect(Connect { max_held: Some(3), ..place.lossless() })?;
    reader.begin(&Command::Read(Read { slow_us: 60_000, ..Read::default() }))?;
    exporter.execute(Command::Go)?;
    exporter.execute(Command::AwaitEnd { ms: 30_000 })?;
    whole(&reader.was_read()?, &sums)?;
    let stats = exporter.stats(Command::Stop)?;
    ensure!(stats.private > 0 && stats.reason("no-free-slot") == stats.private, "{stats:?}");
    Ok(format!("{} of {FRAMES} in private memory", stats.private))
}

/// An unavailable configuration is an error that says what to do.
fn refused(_: u64) -> Result<String> {
    let place = Place::new()?;
    let exporter = Peer::new()?;
    let mut seen = Vec::new();
    for (pipeline, word) in [
        (format!("videotestsrc ! {}", place.sink("memory=vmm cuda-device-id=7")), "device 7"),
        (format!("videotestsrc ! cudaupload ! {CUDA} ! {}", place.sink("memory=host")), ""),
        (
            format!(
                "videotestsrc ! cudaupload ! {CUDA} ! identity drop-allocation=true ! {}",
                place.sink("export=in-place")
            ),
            "export=in-place",
        ),
    ] {
        let result = exporter
            .play(&pipeline)
            .and_then(|()| exporter.execute(Command::Go))
            .and_then(|()| exporter.execute(Command::AwaitEnd { ms: 10_000 }));
        let Err(error) = result else { bail!("{pipeline} started without an error") };
        let error = format!("{error:#}");
        ensure!(error.contains(word), "{pipeline}: {error}");
        seen.push(error);
    }
    Ok(seen.join("; "))
}

/// With exhausted GPU memory, a frame waits for a slot when it is due: allocation is tried once, a
/// pause does not end the stream, and the stream continues when the reader releases frames.
fn no_memory(_: u64) -> Result<String> {
    const SIZE: (u32, u32) = (1920, 1080);
    let place = Place::new()?;
    let exporter = behind_decoder(&place, "memory=vmm export=copy")?;
    let reader = Peer::new()?;
    reader.connect(place.lossless())?;
    exporter.execute(Command::Go)?;
    let frame = || Decode { surfaces: 4, width: SIZE.0, height: SIZE.1, ..decoder(1) };
    let attempts = |stats: &Stats| stats.calls.get("cuMemCreate").copied().unwrap_or(0);
    reader.begin(&Command::Read(Read { frames: Some(2), hold: 2, ..Read::default() }))?;
    for frames in 1..=2 {
        exporter.decode(frame())?;
        settled(&exporter, frames)?;
    }
    let mut sums = reader.was_read()?;
    exporter.take_memory()?;
    let before = attempts(&exporter.stats(Command::Stats)?);
    exporter.decode(frame())?;
    let until = Instant::now() + Duration::from_secs(5);
    while attempts(&exporter.stats(Command::Stats)?) == before {
        ensure!(Instant::now() < until, "the sink did not try to allocate a slot");
    }
    // While the frame waits.
    std::thread::sleep(Duration::from_millis(50));
    let tried = attempts(&exporter.stats(Command::Stats)?) - before;
    ensure!(tried == 1, "{tried} attempts to allocate a slot for one frame");
    exporter.execute(Command::Pause)?;
    exporter.execute(Command::Go)?;
    std::thread::sleep(Duration::from_millis(50));
    let waiting = exporter.stats(Command::Stats)?;
    ensure!(waiting.published == 2, "{waiting:?}");
    reader.execute(Command::ReleaseHeld)?;
    settled(&exporter, 3)?;
    exporter.give_memory_back()?;
    reader.begin(&Command::Read(Read { frames: Some(1), ..Read::default() }))?;
    sums.frames.extend(reader.was_read()?.frames);
    whole(&sums, &decoded(3, SIZE)?)?;
    Ok(String::new())
}
