// SPDX-License-Identifier: MIT OR Apache-2.0

//! Readers in a context of which other code captures streams into CUDA graphs.

use anyhow::{Context as _, Result, ensure};
use frameshare::MemoryKind;
use frameshare_gpu_harness::graph::MODES;

use super::{
    Case, FENCES, FOREVER_US, KINDS, PATIENCE, SIZE, Setup, case, frames, to_the_end, wait_until, whole,
};
use crate::job::{CaptureLoop, Captured, Command, End, Publish, Read, Says};
use crate::peer::Peer;

const SUITE: &str = "engine-captures";

pub const CASES: &[Case] = &[
    case(SUITE, "frames-read-on-named-streams", named_streams),
    case(SUITE, "plain-addresses-while-a-blocking-stream-captures", blocking_stream),
    case(SUITE, "plain-addresses-and-announced-captures", announced),
    case(SUITE, "control-plain-addresses-break-captures", plain_addresses),
    case(SUITE, "frames-are-refused-to-a-captured-stream", inside),
    case(SUITE, "readers-come-and-go-beside-captures-of-the-exporter", exporters_captures),
    case(SUITE, "publications-go-on-after-a-broken-capture", publications_after_break),
    case(SUITE, "user-data-dropped-in-a-capture-calls-the-exporter", dropped_in_capture),
    case(SUITE, "disconnection-waits-for-no-other-stream", disconnection),
];

/// Reads to the end while another thread captures, and disconnects while it does.
fn beside(setup: &Setup, reader: &Peer, captures: CaptureLoop, read: Read, count: u64) -> Result<Captured> {
    reader.execute(Command::Capture(captures))?;
    reader.begin(&Command::Read(read))?;
    let publish = Publish { frames: count, size: SIZE, pace_us: 200, drain: true, ..Publish::default() };
    let published = setup.exporter.publish(publish);
    setup.exporter.execute(Command::EndOfStream)?;
    let read = reader.was_read();
    published?;
    whole(&read?, count)?;
    reader.execute(Command::Disconnect)?;
    setup.await_readers(0)?;
    setup.gets_all_slots_back(PATIENCE)?;
    reader.captured()
}

/// Runs a case of `count` frames with each capture mode and each fence; `check` judges the
/// captures.
fn each_mode(
    seed: u64,
    count: u64,
    captures: CaptureLoop,
    read: &Read,
    check: impl Fn(&Captured) -> Result<()>,
) -> Result<String> {
    let mut seen = Vec::new();
    for (name, mode) in MODES {
        for fence in FENCES {
            let setup = Setup::new(MemoryKind::Vmm, seed)?;
            let reader = Peer::new()?;
            reader.connect(setup.lossless(0, Some(fence)))?;
            setup.await_readers(1)?;
            let captured =
                beside(&setup, &reader, CaptureLoop { mode, ..captures.clone() }, read.clone(), count)?;
            ensure!(captured.graphs > 0, "{name}, {fence}: nothing was captured");
            check(&captured).map_err(|error| error.context(format!("mode {name}, {fence} fences")))?;
            seen.push(format!("{name}, {fence}: {} graphs, {} broken", captured.graphs, captured.broken));
        }
    }
    Ok(seen.join("; "))
}

fn count() -> u64 {
    frames().max(60)
}

fn all_intact(captured: &Captured) -> Result<()> {
    ensure!(captured.broken == 0, "{} of {} captures are broken", captured.broken, captured.graphs);
    Ok(())
}

/// No call for a frame whose streams are known invalidates a capture of another thread.
fn named_streams(seed: u64) -> Result<String> {
    each_mode(seed, count(), CaptureLoop::default(), &Read { named: true, ..to_the_end() }, all_intact)
}

/// The driver reports captures by blocking streams: records behind the whole context wait for their
/// end. A capture that begins between the report and the record is still broken.
fn blocking_stream(seed: u64) -> Result<String> {
    let captures = CaptureLoop { blocking: true, ..CaptureLoop::default() };
    each_mode(seed, count(), captures, &to_the_end(), |captured| {
        let (graphs, broken) = (captured.graphs, captured.broken);
        ensure!(4 * broken <= graphs, "{broken} of {graphs} captures are broken");
        Ok(())
    })
}

/// Records behind the whole context wait for the end of announced captures.
fn announced(seed: u64) -> Result<String> {
    let captures = CaptureLoop { announced: true, ..CaptureLoop::default() };
    each_mode(seed, count(), captures, &to_the_end(), all_intact)
}

/// Negative control: a record behind the whole context breaks an unannounced capture. The next
/// captures stay intact, since the release is not repeated at once. Few frames: with 10,000 in each
/// mode the driver itself crashed once (580, on an H200).
fn plain_addresses(seed: u64) -> Result<String> {
    each_mode(seed, count().min(60), CaptureLoop::default(), &to_the_end(), |captured| {
        let (graphs, broken) = (captured.graphs, captured.broken);
        ensure!(broken > 0, "no capture is broken, so the other cases test nothing");
        // A slow driver makes too few captures to tell how many of them are intact.
        ensure!(graphs < 40 || 2 * broken <= graphs, "{broken} of {graphs} captures are broken");
        Ok(())
    })
}

/// A captured stream gets no frame, and does not release one before its capture has ended.
fn inside(seed: u64) -> Result<String> {
    let mut seen = Vec::new();
    for fence in FENCES {
        let setup = Setup::new(MemoryKind::Vmm, seed)?;
        let reader = Peer::new()?;
        reader.connect(setup.lossless(0, Some(fence)))?;
        setup.await_readers(1)?;
        setup.exporter.publish(Publish { frames: 1, size: SIZE, ..Publish::default() })?;
        seen.extend(reader.texts(Command::ReadInCapture)?);
        setup.gets_all_slots_back(PATIENCE)?;
    }
    Ok(seen.join("; "))
}

/// The exporter's own context is not recorded as a whole when a reader joins, reads or leaves.
fn exporters_captures(seed: u64) -> Result<String> {
    let mut seen = Vec::new();
    for (name, mode) in MODES {
        for fence in FENCES {
            let setup = Setup::new(MemoryKind::Vmm, seed)?;
            let reader = Peer::new()?;
            let publish = Publish { frames: 4, size: SIZE, drain: true, ..Publish::default() };
            setup.exporter.publish(publish.clone())?;
            setup.exporter.execute(Command::Capture(CaptureLoop { mode, ..CaptureLoop::default() }))?;
            for _ in 0..8 {
                reader.connect(setup.lossless(0, Some(fence)))?;
                setup.await_readers(1)?;
                reader.begin(&Command::Read(Read { frames: Some(4), ..to_the_end() }))?;
                let published = setup.exporter.publish(publish.clone());
                ensure!(reader.was_read()?.end == End::Enough, "{name}, {fence}: a frame is missing");
                published?;
                reader.execute(Command::Disconnect)?;
                setup.await_readers(0)?;
            }
            let captured = setup.exporter.captured()?;
            ensure!(captured.graphs > 0, "{name}, {fence}: nothing was captured");
            all_intact(&captured).map_err(|error| error.context(format!("mode {name}, {fence} fences")))?;
            seen.push(format!("{name}, {fence}: {} graphs", captured.graphs));
        }
    }
    Ok(seen.join("; "))
}

/// A frame that any stream of the context may have written is published as soon as no capture is
/// under way, however many captures such publications have broken before.
fn publications_after_break(seed: u64) -> Result<String> {
    const ROUNDS: u32 = 8;
    let setup = Setup::new(MemoryKind::Vmm, seed)?;
    let publish = || {
        let says = Says::Somewhere;
        setup.exporter.publish(Publish { frames: 1, size: SIZE, says, ..Publish::default() })
    };
    for round in 0..ROUNDS {
        setup.exporter.execute(Command::Capture(CaptureLoop::default()))?;
        wait_until(PATIENCE, || Ok(publish().is_ok().then(|| "no publication met a capture".into())))?;
        setup.exporter.captured()?;
        publish().with_context(|| format!("round {round}, after the last capture"))?;
    }
    Ok(String::new())
}

/// User data whose GPU work cannot be recorded is dropped with nothing locked.
fn dropped_in_capture(seed: u64) -> Result<String> {
    let setup = Setup::new(MemoryKind::Vmm, seed)?;
    setup.exporter.execute(Command::DropAfterInCapture)?;
    setup.exporter.publish(Publish { frames: 2, size: SIZE, ..Publish::default() })?;
    Ok(String::new())
}

/// Frames that were read on named streams are torn down behind these streams alone. The driver
/// unregisters and frees memory when all work of the context is done: never on the thread that
/// drops the reader.
fn disconnection(seed: u64) -> Result<String> {
    for kind in KINDS {
        for fence in FENCES {
            let setup = Setup::new(kind, seed)?;
            let reader = Peer::new()?;
            reader.connect(setup.lossless(0, Some(fence)))?;
            setup.await_readers(1)?;
            setup.exporter.publish(Publish { frames: 4, size: SIZE, ..Publish::default() })?;
            let read = Read { frames: Some(4), named: true, ..to_the_end() };
            ensure!(reader.read(read)?.end == End::Enough, "{kind}, {fence}: not every frame was read");
            reader.execute(Command::StallReading { us: FOREVER_US })?;
            reader.begin(&Command::Disconnect)?;
            wait_until(PATIENCE, || {
                let waits = !reader.has_reported()?;
                Ok(waits.then(|| format!("{kind}, {fence}: the drop of the reader waits for another stream")))
            })?;
            reader.end().context("disconnecting")?;
            reader.execute(Command::Resume)?;
            setup.await_readers(0)?;
            setup.gets_all_slots_back(PATIENCE)?;
        }
    }
    Ok(String::new())
}
