// SPDX-License-Identifier: MIT OR Apache-2.0

//! Kills and restarts with frames of a real decoder or, without one, with uploaded frames.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::nvdec::{self, clip, parsed};
use super::source::{await_readers, settle};
use super::{CUDA, Case, Descriptions, Place, case, sink};
use crate::job::{Command, Connect, Jump, Read, ReadApart, Receive, Received, Side};
use crate::peer::Peer;

const SUITE: &str = "gst-faults";

pub const CASES: &[Case] = &[
    Case { seconds: 240, ..case(SUITE, "an-exporter-restarted-under-its-readers", restarted) },
    Case { seconds: 240, ..case(SUITE, "readers-killed-beside-others", killed) },
];

/// An endless stream that repeats the same frames, and ends on request.
struct Stream {
    pipeline: String,
    sums: Vec<u64>,
    is_decoded: bool,
}

impl Stream {
    /// Uses the decoder's surfaces, or memory of cudaupload.
    fn new() -> Result<Stream> {
        let is_decoded = Peer::new()?.number(Command::HasElement { name: "nvh264dec".into() })? == 1;
        let (pipeline, sums) = if is_decoded {
            let clip = clip("hd.h264")?;
            let again = parsed(&clip).replace("filesrc", "multifilesrc name=source loop=true");
            (format!("{again} ! nvh264dec {}", nvdec::SURFACES), nvdec::expected(&clip)?)
        } else {
            // The pattern repeats after this many frames.
            let pictures = sink::pictures_for("format=NV12,width=320,height=240", 256);
            let endless = pictures.replace("num-buffers=256", "name=source");
            (format!("{endless} ! cudaupload"), sink::expected(&pictures)?)
        };
        Ok(Stream { pipeline, sums, is_decoded })
    }

    /// Returns a pipeline with less than 100 frames a second, into a sink.
    fn to(&self, sink: &str) -> String {
        format!("{} ! {CUDA} ! identity sleep-time=10000 ! {sink}", self.pipeline)
    }

    fn sum(&self, sequence: u64) -> Result<u64> {
        Ok(self.sums[usize::try_from(sequence - 1)? % self.sums.len()])
    }

    /// Checks the checksums of frames.
    fn right(&self, frames: &[(u64, u64)]) -> Result<()> {
        for (sequence, sum) in frames {
            ensure!(*sum == self.sum(*sequence)?, "frame {sequence} has a wrong checksum");
        }
        Ok(())
    }
}

/// An exporter is killed ten times: four readers continue with each successor, mark the
/// discontinuity, and get intact frames. So does a fifth reader, which is suspended during each
/// restart and reconnects late.
fn restarted(_: u64) -> Result<String> {
    const RESTARTS: usize = 10;
    let stream = Stream::new()?;
    let place = Place::new()?;
    let readers = Peer::some(5)?;
    let late = &readers[4];
    for reader in &readers {
        // With speculative delivery some frames would be torn when the exporter is killed; it uses
        // event fences, which the reader did not ask for.
        let source = place.source("on-disconnect=wait connection-timeout=-1");
        let pipeline = format!("{source} ! {CUDA} ! appsink name=out");
        reader.begin(&Command::Receive(Receive { pipeline, ..Receive::default() }))?;
    }
    let mut first_frames = Vec::new();
    for round in 0..=RESTARTS {
        let mut exporter = Peer::new()?;
        let sink = ["export=in-place fence=event", "export=copy memory=vmm fence=event"]
            [if stream.is_decoded { round % 2 } else { 1 }];
        late.suspend()?;
        exporter.play(&stream.to(&place.sink(sink)))?;
        exporter.execute(Command::Go)?;
        settle(&exporter, 10)?;
        late.resume()?;
        await_readers(&exporter, readers.len())?;
        // Each reader may hold four frames: after this many further frames all of them have got
        // some.
        settle(&exporter, exporter.stats(Command::Stats)?.published + 30)?;
        first_frames.push(
            exporter.stats(Command::Stats)?.first_frame_at.context("no frame has arrived at the sink")?,
        );
        if round < RESTARTS {
            exporter.kill()?;
        } else {
            exporter.execute(Command::EndOfStream)?;
            exporter.execute(Command::AwaitEnd { ms: 20_000 })?;
        }
    }
    let (mut frames, mut latest) = (0, Duration::ZERO);
    for (number, reader) in readers.iter().enumerate() {
        let received = reader.received()?;
        let longest =
            goes_on(&stream, &received, &first_frames).with_context(|| format!("reader {number}"))?;
        if number < 4 {
            latest = latest.max(longest);
        } else {
            // Otherwise the case tests nothing: an exporter's first frame marks a discontinuity by
            // itself.
            let mut begins = received.jumps.iter().skip(1).map(|jump| received.frames[jump.index].0);
            ensure!(begins.all(|sequence| sequence > 1), "the fifth reader is not late");
        }
        frames += received.frames.len();
    }
    let what = if stream.is_decoded { "decoded" } else { "uploaded" };
    let text = format!(
        "{RESTARTS} restarts, {frames} {what} frames intact; at most {:.0} ms from an exporter's first frame to a reader's",
        latest.as_secs_f64() * 1e3
    );
    // A machine without a GPU may be arbitrarily slow.
    ensure!(latest < Duration::from_secs(1) || !stream.is_decoded, "{text}");
    Ok(text)
}

/// Checks that a reader got intact frames of every exporter and marked where each began; returns
/// its longest interruption.
fn goes_on(stream: &Stream, received: &Received, first_frames: &[u64]) -> Result<Duration> {
    ensure!(received.error.is_empty(), "after {} frames: {}", received.frames.len(), received.error);
    stream.right(&received.frames)?;
    let jumps = &received.jumps;
    ensure!(
        jumps.len() == first_frames.len(),
        "frames of {} exporters, not {}",
        jumps.len(),
        first_frames.len()
    );
    let ends = jumps.iter().skip(1).map(|jump| jump.index).chain([received.frames.len()]);
    for (jump, end) in jumps.iter().zip(ends) {
        ensure!(jump.discont, "frame {} is not marked as a discontinuity", jump.index);
        let session = &received.frames[jump.index..end];
        let gap = session.windows(2).find(|pair| pair[1].0 != pair[0].0 + 1);
        ensure!(gap.is_none(), "frames of one exporter are missing: {gap:?}");
    }
    let took = |(jump, first): (&Jump, &u64)| Duration::from_nanos(jump.at.saturating_sub(*first));
    Ok(jumps.iter().zip(first_frames).skip(1).map(took).max().unwrap_or_default())
}

/// Readers are killed while connecting, at their credit limit, between frames, and with pending
/// work on released frames. Two other readers lose nothing, and the stream never stops.
fn killed(_: u64) -> Result<String> {
    const KILLS: usize = 20;
    let stream = Stream::new()?;
    let place = Place::new()?;
    let exporter = Peer::new()?;
    exporter.play(&stream.to(&place.sink("")))?;
    let others = Peer::some(2)?;
    for other in &others {
        let pipeline = format!("{} ! {CUDA} ! appsink name=out", place.source(""));
        other.begin(&Command::Receive(Receive { pipeline, ..Receive::default() }))?;
    }
    await_readers(&exporter, others.len())?;
    exporter.execute(Command::Go)?;
    for number in 0..KILLS {
        let mut victim = Peer::new()?;
        kill_at(&place, &exporter, &mut victim, number).with_context(|| format!("kill {number}"))?;
        // The stream continues much sooner than a live reader would be evicted.
        let before = exporter.stats(Command::Stats)?.published;
        let begin = Instant::now();
        settle(&exporter, before + 20)?;
        ensure!(
            begin.elapsed() < Duration::from_secs(20),
            "kill {number}: {:?} for 20 frames",
            begin.elapsed()
        );
    }
    exporter.execute(Command::EndOfStream)?;
    exporter.execute(Command::AwaitEnd { ms: 20_000 })?;
    let stats = exporter.stats(Command::Stop)?;
    for (number, other) in others.iter().enumerate() {
        let received = other.received()?;
        let Received { frames, lost, error, .. } = &received;
        ensure!(error.is_empty(), "reader {number}, after {} frames: {error}", frames.len());
        stream.right(frames).with_context(|| format!("reader {number}"))?;
        let came: Vec<_> = frames.iter().map(|(sequence, _)| *sequence).collect();
        ensure!(
            came == (1..=stats.published).collect::<Vec<_>>() && *lost == 0,
            "reader {number} got {} of {} frames, {lost} were lost",
            came.len(),
            stats.published
        );
    }
    Ok(format!("{KILLS} kills, {} frames in each of {} readers", stats.published, others.len()))
}

/// Kills a reader at one of the moments, in rotation.
fn kill_at(place: &Place, exporter: &Peer, victim: &mut Peer, number: usize) -> Result<()> {
    let lossless = Connect { max_held: Some(4), ..place.lossless() };
    match number % 4 {
        0 => {
            victim.begin(&Command::Connect(lossless))?;
            std::thread::sleep(Duration::from_millis(number as u64 * 7));
        }
        1 => {
            victim.connect(lossless)?;
            victim.begin(&Command::Read(Read { frames: Some(4), hold: 4, ..Read::default() }))?;
            let read = victim.was_read()?;
            ensure!(read.frames.len() == 4, "{read:?}");
        }
        2 => {
            victim.connect(lossless)?;
            victim.begin(&Command::Read(Read { frames: Some(10), ..Read::default() }))?;
            let read = victim.was_read()?;
            ensure!(read.frames.len() == 10, "{read:?}");
        }
        _ => {
            let pipeline = format!("{} ! {CUDA} ! appsink name=out", place.source(""));
            let late = ReadApart { pipeline, frames: 100, slow_us: 60_000, side: Side::Same };
            victim.begin(&Command::ReadApart(late))?;
            await_readers(exporter, 3)?;
            // The reader releases frames at once; when its credit is used up, the copies of the
            // last frames are still pending.
            settle(exporter, exporter.stats(Command::Stats)?.published + 10)?;
            ensure!(!victim.has_reported()?, "the reader ended before it was killed");
        }
    }
    victim.kill()
}
