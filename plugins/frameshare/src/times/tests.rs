// SPDX-License-Identifier: MIT OR Apache-2.0

//! Properties of the whole way, for pipelines and clocks from a seed.

use super::*;
use frameshare_tests::random::Random;
use gst::{ClockTime, FormattedSegment};

const MS: u64 = 1_000_000;

/// A pipeline with its own clock: how far that is from `CLOCK_MONOTONIC`, and the base time.
struct Pipeline {
    difference: Difference,
    base: u64,
}

impl Pipeline {
    /// One that begins at a time of `CLOCK_MONOTONIC`.
    fn at(monotonic: u64, random: &mut Random) -> Self {
        let base = random.below(1 << 50);
        Self { difference: Difference::between(ClockTime::from_nseconds(base), monotonic), base }
    }

    fn timestamps(&self) -> Timestamps {
        Timestamps::new(self.difference, ClockTime::from_nseconds(self.base))
    }
}

fn segment(random: &mut Random) -> FormattedSegment<ClockTime> {
    let mut segment = FormattedSegment::<ClockTime>::new();
    segment.set_rate([1.0, 2.0, 0.5][random.below(3) as usize]);
    segment.set_start(ClockTime::from_nseconds(random.below(1 << 55)));
    segment.set_time(ClockTime::from_nseconds(random.below(1 << 40)));
    segment.set_base(ClockTime::from_nseconds(random.below(1 << 40)));
    segment
}

/// The published times of a buffer `position` ns after the start of a segment.
fn published(pipeline: &Pipeline, segment: &FormattedSegment<ClockTime>, position: u64) -> Times {
    let pts = segment.start().unwrap() + ClockTime::from_nseconds(position);
    let running = Running::of(segment, Some(pts), None, None);
    running.published(pipeline.difference, pipeline.base.into())
}

#[test]
fn live_reader_keeps_distances_of_running_time() {
    gst::init().unwrap();
    for seed in 0..2000 {
        let random = &mut Random::new(seed);
        let exporter = Pipeline::at(1 << 51, random);
        let reader = Pipeline::at((1 << 51) + random.below(1 << 40), random);
        let segment = segment(random);
        let positions = [0, 20 * MS, 700 * MS].map(|position| position + random.below(MS));
        let arrived = positions.map(|position| {
            let pts = published(&exporter, &segment, position).pts.unwrap();
            reader.timestamps().signed(pts)
        });
        for (position, arrived_at) in positions.iter().zip(arrived).skip(1) {
            let sent = (position - positions[0]) as f64 / segment.rate();
            let distance = (arrived_at - arrived[0]) as f64;
            assert!((sent - distance).abs() <= 2.0, "seed {seed}: {distance} instead of {sent}");
        }
    }
}

#[test]
fn reader_that_is_not_live_gets_timestamps_back() {
    gst::init().unwrap();
    for seed in 0..2000 {
        let random = &mut Random::new(seed);
        let exporter = Pipeline::at(1 << 51, random);
        let segment = segment(random);
        let position = random.below(1 << 40);
        let times = published(&exporter, &segment, position);
        let timeline = Timeline::of(&segment, times.origin).unwrap();
        let found = Timestamps::of_exporter(timeline).signed(times.pts.unwrap());
        let sent = i128::from(segment.start().unwrap().nseconds() + position);
        assert!((found - sent).abs() <= 2, "seed {seed}: {found} instead of {sent}");
    }
}

/// Frames of one moment have one time, whatever pipeline they come from, and whatever its clock.
#[test]
fn moment_has_one_time() {
    for seed in 0..2000 {
        let random = &mut Random::new(seed);
        let moment = (1 << 52) + random.below(1 << 40);
        let times = [0, 1].map(|_| {
            let start = (1 << 51) + random.below(1 << 40);
            let pipeline = Pipeline::at(start, random);
            let segment = FormattedSegment::<ClockTime>::new();
            published(&pipeline, &segment, moment - start).pts
        });
        assert_eq!(times, [Some(moment), Some(moment)], "seed {seed}");
    }
}

/// A recorder's frames keep their distances across any pauses.
#[test]
fn recorder_notices_no_pause() {
    for seed in 0..2000 {
        let random = &mut Random::new(seed);
        let mut time = LiveTime::default();
        let mut captured = 0;
        // Time that the pipeline stood still.
        let mut paused = 0;
        for _ in 0..20 {
            let timestamp = captured - paused + time.lead();
            assert_eq!(timestamp, captured, "seed {seed}");
            captured += i128::from(random.below(100 * MS));
            if random.below(4) == 0 {
                let pause = i128::from(random.below(3000 * MS));
                (captured, paused) = (captured + pause, paused + pause);
                assert!(time.resume(pause, Consumer::Recorder));
            }
        }
    }
}
