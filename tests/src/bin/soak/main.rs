// SPDX-License-Identifier: MIT OR Apache-2.0

//! Soak test: eight streams with three readers each, which join, leave and are killed at random
//! while the frame size changes every few seconds. Every reported frame is compared with the
//! published one. At the end no resource count may have grown.
//!
//! `soak MINUTES [SEED]` (`make soak`). The exit status is 0 if every frame was right and nothing
//! leaked.

mod stream;

use frameshare_tests::{
    census::{Census, growth_of_all},
    process::TestRun,
    random::Random,
    tally::Tally,
};
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
/// Most slots that an exporter allocates; below it the number varies.
const MAX_SLOTS: usize = 64;
/// Largest allowed growth of a process in kilobytes, since its allocator keeps some memory.
const GROWTH_KB: u64 = 256;
/// Time for a stream to settle before its resources are counted.
const REST: Duration = Duration::from_secs(2);

/// Runs all streams for `time`, with readers that join, leave and are killed.
fn churn(streams: &mut [Stream], random: &mut Random, time: Duration, tally: &mut Tally) -> Result<()> {
    let begin = Instant::now();
    let mut reported = begin;
    while begin.elapsed() < time {
        for stream in &mut *streams {
            stream.step(random, tally)?;
        }
        if reported.elapsed() > Duration::from_secs(60) {
            reported = Instant::now();
            println!("{:5.1} min: {tally}", begin.elapsed().as_secs_f64() / 60.0);
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Removes the temporary readers, and counts the remaining resources.
fn count(streams: &mut [Stream], tally: &mut Tally) -> Result<Vec<[Census; 2]>> {
    streams.iter_mut().for_each(|stream| stream.clear(tally));
    thread::sleep(REST);
    streams.iter().map(Stream::census).collect()
}

fn run(minutes: f64, seed: u64) -> Result<()> {
    println!("{minutes} minutes with seed {seed}");
    let mut random = Random::new(seed);
    let run = TestRun::new();
    let mut tally = Tally::default();
    // The exporter of the last stream is killed now and then.
    let mut streams: Vec<_> =
        (0..STREAMS).map(|number| Stream::start(&run, number, number + 1 == STREAMS)).collect();
    let whole = Duration::from_secs_f64(minutes * 60.0);
    churn(&mut streams, &mut random, WARM_UP.min(whole / 4), &mut tally)?;
    let tolerant = |census: Census| census.with_slots_up_to(MAX_SLOTS).with_kilobytes(GROWTH_KB);
    let before = count(&mut streams, &mut tally)?;
    churn(&mut streams, &mut random, whole, &mut tally)?;
    let after = count(&mut streams, &mut tally)?;
    let mut growth = Vec::new();
    for (number, (before, after)) in before.into_iter().zip(&after).enumerate() {
        for (before, after) in before.iter().zip(after) {
            println!("stream {number}: {before}; in the end {after}");
        }
        let before = before.map(tolerant);
        growth
            .extend(growth_of_all(&before, after).into_iter().map(|what| format!("stream {number}: {what}")));
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
