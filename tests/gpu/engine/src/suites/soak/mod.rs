// SPDX-License-Identifier: MIT OR Apache-2.0

//! Soak test: several streams, each with three readers that join, leave and are killed at random,
//! while the frame size changes twice a second. Every frame that is read is compared with the
//! published one. At the end no resource may have grown.
//!
//! The duration follows from the number of frames and their rate, on any machine: a slow machine
//! publishes fewer frames. A line every ten seconds reports progress. A stream without progress for
//! a minute has failed.

mod limits;
mod stream;
mod temporary;
mod watched;

use std::sync::{Arc, Barrier, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use frameshare_tests::tally::Tally;
use serde::Serialize;

use self::limits::{LIMIT, PACE_US, RENEW};
use self::stream::{Rest, Stream};
use self::watched::Watched;
use super::{Case, Needs, frames};

pub const CASES: &[Case] = &[Case {
    suite: SUITE,
    name: NAME,
    // The number of frames limits the duration; a hang is detected earlier.
    seconds: 24 * 3600,
    needs: Needs::Nothing,
    conduct: churn,
}];

const SUITE: &str = "engine-soak";
const NAME: &str = "streams-that-come-and-go";

/// Minimum number of frames: with fewer, not all sizes occur before the first measurement, and too
/// few readers join and leave.
const SHORTEST: u64 = 200;
const WARM_UP: u64 = 10 * RENEW;
/// Interval of progress lines and of the checks for hanging streams.
const TELL: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_secs(1);
/// A progress line.
#[derive(Serialize)]
struct Line {
    suite: &'static str,
    case: &'static str,
    so_far: SoFar,
}

/// Totals of all streams since the start of the case.
#[derive(Serialize)]
struct SoFar {
    s: u64,
    of_s: u64,
    frames: u64,
    of_frames: u64,
    readers_joined: u64,
    readers_left: u64,
    readers_killed: u64,
    exporters_killed: u64,
}

/// Streams that run in parallel.
struct Together {
    barrier: Barrier,
    streams: Vec<Watched>,
}

impl Together {
    /// Waits until all streams have reached the same point.
    fn wait(&self, number: usize) {
        self.streams[number].rests();
        self.barrier.wait();
    }

    /// Returns the number of published frames and the sum of all tallies.
    fn sum(&self) -> (u64, Tally) {
        self.streams.iter().fold(Default::default(), |sum, stream| stream.plus(sum))
    }

    fn so_far(&self, time: Duration) -> Result<String> {
        let (frames, Tally { joined, left, killed, exporters_killed, .. }) = self.sum();
        let whole = warm_up() + length();
        let so_far = SoFar {
            s: time.as_secs(),
            of_s: time_of(whole).as_secs(),
            frames,
            of_frames: whole * self.streams.len() as u64,
            readers_joined: joined,
            readers_left: left,
            readers_killed: killed,
            exporters_killed,
        };
        Ok(serde_json::to_string(&Line { suite: SUITE, case: NAME, so_far })?)
    }

    /// Returns a description of a hanging stream, if any.
    fn hangs(&self) -> Option<String> {
        self.streams.iter().enumerate().find_map(|(number, stream)| {
            let what = stream.hangs(LIMIT)?;
            Some(format!("stream {number}: {what} not complete after {} s", LIMIT.as_secs()))
        })
    }
}

/// Returns the number of frames that each stream publishes after the warm-up.
fn length() -> u64 {
    frames().max(SHORTEST)
}

/// Returns the number of frames of the warm-up.
fn warm_up() -> u64 {
    (length() / 4).max(WARM_UP)
}

/// Returns the time that this number of frames takes.
fn time_of(frames: u64) -> Duration {
    Duration::from_micros(frames * PACE_US)
}

/// Runs one stream from start to end, on one thread, since peers exit with the thread that started
/// them.
fn live(number: usize, seed: u64, together: &Together) -> Result<[Rest; 2]> {
    let is_killed = number + 1 == together.streams.len();
    let mut stream = Stream::start(number, is_killed, seed, &together.streams[number])?;
    together.wait(number);
    stream.play(time_of(warm_up()))?;
    together.wait(number);
    let before = stream.at_rest(None)?;
    together.wait(number);
    stream.play(time_of(length()))?;
    together.wait(number);
    let after = stream.at_rest(Some(&before))?;
    let growth = before.growth(&after);
    ensure!(growth.is_none(), "resources have grown: {}", growth.unwrap_or_default());
    // No stream ends while others are being measured.
    together.wait(number);
    Ok([before, after])
}

/// Runs streams of every kind of memory and fence; the exporter of the last one is killed now and
/// then. `--frames` sets the number of frames for each stream, at 50 a second.
fn churn(seed: u64) -> Result<String> {
    let begin = Instant::now();
    let count = (length() / 1000).clamp(3, 8) as usize;
    let streams = (0..count).map(|_| Watched::default()).collect();
    let together = Arc::new(Together { barrier: Barrier::new(count), streams });
    let (sender, receiver) = mpsc::channel();
    for number in 0..count {
        let (together, sender) = (together.clone(), sender.clone());
        // These threads are not joined: a hanging one ends with the process.
        std::thread::spawn(move || {
            // The receiver was dropped if another stream has failed.
            let _ = sender.send((number, live(number, seed, &together)));
        });
    }
    let (mut ends, mut lines) = (Vec::new(), 0);
    while ends.len() < count {
        if let Ok((number, end)) = receiver.recv_timeout(LOOK) {
            ends.push(end.with_context(|| format!("stream {number}"))?);
        }
        if let Some(hangs) = together.hangs() {
            bail!("{hangs}");
        }
        if begin.elapsed() >= TELL * (lines + 1) {
            println!("{}", together.so_far(begin.elapsed())?);
            lines += 1;
        }
    }
    let (frames, tally) = together.sum();
    let rests: Vec<_> = ends.iter().map(|[before, after]| format!("{before}; in the end {after}")).collect();
    Ok(format!("{count} streams, {frames} frames published: {tally}. {}", rests.join(". ")))
}
