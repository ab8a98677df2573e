// SPDX-License-Identifier: MIT OR Apache-2.0

//! Soak test: eight streams with three readers each, which join, leave and are killed at random
//! while the frame size changes every few seconds. Every reported frame is compared with the
//! published one. At the end no resource count may have grown.
//!
//! `soak MINUTES [SEED]` (`make soak`). The exit status is 0 if every frame was right and nothing
//! leaked.

mod child;
mod stream;

use frameshare_tests::{census::Census, tally::Tally};
use std::{
    env,
    error::Error,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};
use stream::Stream;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const STREAMS: usize = 8;
/// Time until everything that is allocated once exists: slots of all sizes, pages of the allocator.
const WARM_UP: Duration = Duration::from_secs(60);
/// Largest allowed growth of a process in kilobytes, since its allocator keeps some memory.
const GROWTH_KB: u64 = 256;
/// Time for a stream to settle before its resources are counted.
const REST: Duration = Duration::from_secs(2);

/// Pseudo-random numbers (splitmix64), so that a run can be repeated.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ word >> 31) % end
    }
}

/// Runs all streams for `time`, with readers that join, leave and are killed.
fn churn(streams: &mut [Stream], dice: &mut Dice, time: Duration, tally: &mut Tally) -> Result<()> {
    let begin = Instant::now();
    let mut told = begin;
    while begin.elapsed() < time {
        for stream in &mut *streams {
            stream.turn(dice, tally)?;
        }
        if told.elapsed() > Duration::from_secs(60) {
            told = Instant::now();
            println!("{:5.1} min: {tally}", begin.elapsed().as_secs_f64() / 60.0);
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Removes the temporary readers, and counts the remaining resources.
fn count(streams: &mut [Stream], tally: &mut Tally) -> Result<Vec<Census>> {
    for stream in &mut *streams {
        stream.clear(tally)?;
    }
    thread::sleep(REST);
    streams.iter().map(Stream::census).collect()
}

fn run(minutes: f64, seed: u64) -> Result<()> {
    println!("{minutes} minutes with seed {seed}");
    let mut dice = Dice(seed);
    let folder = tempfile::Builder::new().prefix("soak").tempdir()?;
    let mut tally = Tally::default();
    let mut streams = Vec::new();
    for number in 0..STREAMS {
        // The exporter of the last stream is killed now and then.
        streams.push(Stream::start(folder.path(), number, number + 1 == STREAMS)?);
    }
    let whole = Duration::from_secs_f64(minutes * 60.0);
    churn(&mut streams, &mut dice, WARM_UP.min(whole / 4), &mut tally)?;
    let before = count(&mut streams, &mut tally)?;
    churn(&mut streams, &mut dice, whole, &mut tally)?;
    let after = count(&mut streams, &mut tally)?;
    let mut growth = Vec::new();
    for (number, (before, after)) in before.iter().zip(&after).enumerate() {
        println!("stream {number}: {before}; in the end {after}");
        // A new exporter in place of a killed one has counts of its own.
        if before.is_of_the_same_process_as(after) {
            growth.extend(before.growth(after, GROWTH_KB).map(|what| format!("stream {number}: {what}")));
        }
    }
    for stream in streams {
        stream.end(&mut tally)?;
    }
    println!("{tally}");
    if growth.is_empty() { Ok(()) } else { Err(growth.join("; ").into()) }
}

fn main() -> ExitCode {
    let mut arguments = env::args().skip(1);
    let minutes = arguments.next().and_then(|text| text.parse().ok());
    let seed = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(std::process::id().into());
    let Some(minutes) = minutes else {
        eprintln!("soak MINUTES [SEED]");
        return ExitCode::FAILURE;
    };
    match run(minutes, seed) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("soak: {error}");
            ExitCode::FAILURE
        }
    }
}
