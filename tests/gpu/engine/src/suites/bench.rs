// SPDX-License-Identifier: MIT OR Apache-2.0

//! Cost of a hand-off: 1080p frames, each copied on the device, shared with up to 32 reader
//! processes.
//!
//! The workload equals that of floor.cpp, for direct comparison: the exporter copies a frame into a
//! slot on a stream and publishes it; each reader lets its stream wait, copies 64 bytes and
//! releases the frame. Each reader has the exporter's default maximum credit, and no frame is lost.
//!
//! | measure | from | to |
//! | --- | --- | --- |
//! | `frames_per_s` | frame 100 | release of the last frame by the last reader |
//! | `p50_us`, `p99_us` | publication, after the fences were queued | the reader receives the frame
//! |
//! | `done_p50_us`, `done_p99_us` | publication | the reader's CPU, polling only, observes
//! completion of its copy |
//! | `exporter_cpu_us`, `reader_cpu_us` | | CPU time of all threads of the process, per frame |
//!
//! Latencies and reader CPU time are those of the first reader, as in floor.cpp; `worst_p99_us`
//! covers all readers.

use anyhow::{Context as _, Result};
use frameshare::{FenceKind, MemoryKind, Policy};
use serde::Serialize;

use super::{Case, KINDS, Needs, Place, Setup, frames, to_the_end, whole};
use crate::job::{Bind, Command, Connect, Publish, Read, Use, WasRead, Where};
use crate::peer::Peer;

const SUITE: &str = "engine-bench";

pub const CASES: &[Case] = &[
    bench("timeline", |seed| matrix(FenceKind::Timeline, seed)),
    bench("event", |seed| matrix(FenceKind::Event, seed)),
    bench("slow-reader-timeline", |seed| slow_reader(FenceKind::Timeline, seed)),
    bench("slow-reader-event", |seed| slow_reader(FenceKind::Event, seed)),
];

const fn bench(name: &'static str, conduct: fn(u64) -> Result<String>) -> Case {
    Case { suite: SUITE, name, seconds: 235, needs: Needs::Nothing, conduct }
}

/// Bytes of an NV12 frame of 1920 × 1080.
const FRAME: u64 = 1920 * 1080 * 3 / 2;
/// Frames before the steady state.
const WARM: u64 = 100;
/// Credit of a reader: with eight, like the slots of floor.cpp, GPUs shared by many processes run
/// idle in between.
const HELD: u32 = 16;

/// One line of results.
#[derive(Serialize)]
struct Line {
    suite: &'static str,
    case: String,
    frames_per_s: f64,
    p50_us: f64,
    p99_us: f64,
    worst_p99_us: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    done_p50_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    done_p99_us: Option<f64>,
    exporter_cpu_us: f64,
    reader_cpu_us: f64,
}

/// Method by which readers wait for the next frame.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waiting {
    Asleep,
    Polling,
    /// As `Polling`, and also polls for completion of the GPU's work.
    Watching,
}

fn matrix(fence: FenceKind, seed: u64) -> Result<String> {
    let cores = std::thread::available_parallelism()?.get();
    // A trial on few cores checks that the suite works; it measures nothing.
    let counts: &[usize] = if frames() < 1000 { &[1, 2] } else { &[1, 4, 16, 32] };
    let most = counts.iter().copied().max().unwrap_or(1);
    let (exporter, readers) = (Peer::exporter()?, Peer::some(most)?);
    let mut setup = Setup { place: Place::new()?, exporter, seed };
    for kind in KINDS {
        for count in counts {
            let readers = &readers[..*count];
            for (waiting, pace_us, frames) in [
                (Waiting::Asleep, 0, frames() / 2),
                (Waiting::Asleep, 1000, frames() / 5),
                (Waiting::Polling, 0, frames() / 2),
                (Waiting::Polling, 1000, frames() / 5),
                (Waiting::Watching, 1000, frames() / 10),
            ] {
                if waiting != Waiting::Asleep && *count + 1 > cores {
                    continue;
                }
                let line = one(&mut setup, readers, kind, fence, waiting, pace_us, frames.max(10))
                    .with_context(|| format!("{kind} {fence}, {count} readers"))?;
                println!("{}", serde_json::to_string(&line)?);
            }
        }
    }
    Ok(format!("{cores} cores"))
}

fn one(
    setup: &mut Setup,
    readers: &[Peer],
    kind: MemoryKind,
    fence: FenceKind,
    waiting: Waiting,
    pace_us: u64,
    frames: u64,
) -> Result<Line> {
    // A new path: peers of the previous run may still be exiting.
    setup.place = Place::new()?;
    let count = u32::try_from(readers.len())?;
    let bind = Bind {
        path: setup.place.path(),
        memory: Some(kind),
        max_slots: Some(HELD * count + HELD),
        ..Bind::default()
    };
    setup.exporter.bind(bind)?;
    let polls = waiting != Waiting::Asleep;
    setup.join(readers, |number| Connect {
        max_held: Some(HELD),
        spin: if polls { 100 } else { 0 },
        ..setup.lossless(number, Some(fence))
    })?;
    let count_from = WARM.min(frames / 2);
    let what = if waiting == Waiting::Watching { Use::Watch } else { Use::Touch };
    for reader in readers {
        // As the bare hand-off: all work on one stream.
        let on = Where::OwnInOrder;
        reader.begin(&Command::Read(Read { what, on, count_from, ..to_the_end() }))?;
    }
    let publish =
        Publish { frames, size: FRAME, pace_us, copy: true, drain: true, count_from, ..Publish::default() };
    let published = setup.exporter.publish(publish)?;
    setup.exporter.execute(Command::EndOfStream)?;
    let mut reads: Vec<WasRead> = Vec::new();
    for reader in readers {
        let read = reader.was_read()?;
        whole(&read, frames)?;
        reads.push(read);
        reader.execute(Command::Disconnect)?;
    }
    let first = reads.first().context("no reader reported")?;
    let watched = (waiting == Waiting::Watching).then_some(first.done_us);
    let how = match waiting {
        Waiting::Asleep => "futex",
        Waiting::Polling => "spin",
        Waiting::Watching => "spin, watching the GPU",
    };
    Ok(Line {
        suite: SUITE,
        case: format!("{kind} {fence}, {count} reader(s), {pace_us} us a frame, {how}"),
        frames_per_s: (published.steady.frames as f64 * 1e6 / published.steady.us).round(),
        p50_us: tenths(first.wake_us.p50),
        p99_us: tenths(first.wake_us.p99),
        worst_p99_us: tenths(reads.iter().map(|read| read.wake_us.p99).fold(0.0, f64::max)),
        done_p50_us: watched.map(|done| tenths(done.p50)),
        done_p99_us: watched.map(|done| tenths(done.p99)),
        exporter_cpu_us: tenths(published.steady.cpu_per_frame()),
        reader_cpu_us: tenths(first.steady.cpu_per_frame()),
    })
}

/// Measures how much a third reader, which takes one frame a second and may lose the others, delays
/// two lossless readers: their latencies without and with it, alternating.
fn slow_reader(fence: FenceKind, seed: u64) -> Result<String> {
    const ROUNDS: usize = 5;
    let frames = (frames() * 3 / 10).max(10);
    let (exporter, readers) = (Peer::exporter()?, Peer::some(3)?);
    // A trial of few frames checks that the suite works and need not be slow.
    let sit_ms = frames.min(1000);
    let mut setup = Setup { place: Place::new()?, exporter, seed };
    let mut p99: [Vec<f64>; 2] = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (slow, p99) in p99.iter_mut().enumerate() {
            setup.place = Place::new()?;
            setup.exporter.bind(Bind { path: setup.place.path(), ..Bind::default() })?;
            let readers = &readers[..2 + slow];
            setup.join(readers, |number| Connect {
                policy: if number < 2 { Policy::Lossless } else { Policy::Latest },
                ..setup.lossless(number, Some(fence))
            })?;
            let publish = Publish { frames, size: FRAME, pace_us: 1000, copy: true, ..Publish::default() };
            let reads = setup.run(readers, publish, |number| Read {
                what: Use::Touch,
                on: Where::OwnInOrder,
                sit_ms: if number < 2 { 0 } else { sit_ms },
                ..to_the_end()
            })?;
            readers.iter().try_for_each(|reader| reader.execute(Command::Disconnect))?;
            reads[..2].iter().try_for_each(|read| whole(read, frames))?;
            p99.push(reads[..2].iter().map(|read| read.wake_us.p99).fold(0.0, f64::max));
        }
    }
    let [without, beside] = p99.map(|mut rounds| {
        rounds.sort_by(f64::total_cmp);
        [rounds[ROUNDS / 2], rounds[0], rounds[ROUNDS - 1]].map(tenths)
    });
    Ok(format!(
        "p99 of the worse, median (least to most) of {ROUNDS}: {} us ({} to {}) without, {} us ({} to {}) with the slow reader: {:.2}",
        without[0],
        without[1],
        without[2],
        beside[0],
        beside[1],
        beside[2],
        beside[0] / without[0]
    ))
}

fn tenths(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}
