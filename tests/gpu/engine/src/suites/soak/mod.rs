//! The long run: streams with three readers each that join, leave and are killed at random, while frames change their
//! size twice a second. Every frame that is read is compared with what was published; at the end nothing may have
//! grown.
//!
//! It takes as long as its frames do at their pace, on any machine: where one falls behind, fewer are published. A line
//! every ten seconds says how far it is. A stream that does not get on for a minute has failed.

mod guest;
mod stream;
mod watched;

use std::sync::{Arc, Barrier, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use frameshare_tests::tally::Tally;
use serde::Serialize;

use self::stream::{PACE_US, RENEW, Rest, Stream};
use self::watched::Watched;
use super::{Case, Needs, frames};

pub const CASES: &[Case] = &[Case {
    suite: SUITE,
    name: NAME,
    // As long as the frames take; whatever hangs is noticed before.
    seconds: 24 * 3600,
    needs: Needs::Nothing,
    conduct: come_and_go,
}];

const SUITE: &str = "engine-soak";
const NAME: &str = "streams-that-come-and-go";

/// Fewer frames show nothing, nor does what was there before all sizes have been, and readers that came and went.
const SHORTEST: u64 = 200;
const WARM_UP: u64 = 10 * RENEW;
/// How often people are told how far it is, and how often streams are looked at.
const TELL: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_secs(1);
/// What takes longer hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// How far it is, in a line of its own.
#[derive(Serialize)]
struct Line {
    suite: &'static str,
    case: &'static str,
    so_far: SoFar,
}

/// Of all streams, since the case began.
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

/// Streams that play at the same time.
struct Together {
    barrier: Barrier,
    streams: Vec<Watched>,
}

impl Together {
    /// Waits until all streams have come so far.
    fn wait(&self, number: usize) {
        self.streams[number].rests();
        self.barrier.wait();
    }

    /// The frames that were published, and what came of them.
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

    /// What a stream hangs over, if one does.
    fn hangs(&self) -> Option<String> {
        self.streams.iter().enumerate().find_map(|(number, stream)| {
            let what = stream.hangs(LIMIT)?;
            Some(format!("stream {number}: {what} is not over after {} s", LIMIT.as_secs()))
        })
    }
}

/// How many frames each stream publishes after the warm-up.
fn length() -> u64 {
    frames().max(SHORTEST)
}

/// How many it publishes before.
fn warm_up() -> u64 {
    (length() / 4).max(WARM_UP)
}

/// How long so many frames take.
fn time_of(frames: u64) -> Duration {
    Duration::from_micros(frames * PACE_US)
}

/// One stream from the start to the end. Peers go with the thread that started them, so it is one thread for all.
fn live(number: usize, seed: u64, together: &Together) -> Result<[Rest; 2]> {
    let is_doomed = number + 1 == together.streams.len();
    let mut stream = Stream::start(number, is_doomed, seed, &together.streams[number])?;
    together.wait(number);
    stream.play(time_of(warm_up()))?;
    together.wait(number);
    let before = stream.at_rest(None)?;
    together.wait(number);
    stream.play(time_of(length()))?;
    together.wait(number);
    let after = stream.at_rest(Some(&before))?;
    let growth = before.growth(&after);
    ensure!(growth.is_none(), "has grown: {}", growth.unwrap_or_default());
    // Nobody goes while others are being looked at.
    together.wait(number);
    Ok([before, after])
}

/// Streams of every kind of memory and fence, of which the last loses its exporter now and then. `--frames` is how many
/// frames each publishes, 50 a second.
fn come_and_go(seed: u64) -> Result<String> {
    let begin = Instant::now();
    let count = (length() / 1000).clamp(3, 8) as usize;
    let streams = (0..count).map(|_| Watched::default()).collect();
    let together = Arc::new(Together { barrier: Barrier::new(count), streams });
    let (sender, receiver) = mpsc::channel();
    for number in 0..count {
        let (together, sender) = (together.clone(), sender.clone());
        // Nobody waits for these threads to end: they may hang, and go with this process.
        std::thread::spawn(move || sender.send((number, live(number, seed, &together))));
    }
    let (mut ends, mut told) = (Vec::new(), 0);
    while ends.len() < count {
        if let Ok((number, end)) = receiver.recv_timeout(LOOK) {
            ends.push(end.with_context(|| format!("stream {number}"))?);
        }
        if let Some(hangs) = together.hangs() {
            bail!("{hangs}");
        }
        if begin.elapsed() >= TELL * (told + 1) {
            println!("{}", together.so_far(begin.elapsed())?);
            told += 1;
        }
    }
    let (frames, tally) = together.sum();
    let rests: Vec<_> = ends.iter().map(|[before, after]| format!("{before}; in the end {after}")).collect();
    Ok(format!("{count} streams, {frames} frames published: {tally}. {}", rests.join(". ")))
}
