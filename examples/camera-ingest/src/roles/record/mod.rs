// SPDX-License-Identifier: MIT OR Apache-2.0

//! Recorder: copies the encoded streams of cameras into segments, without decoding, with the
//! results of motion detection and the model beside them.
//!
//! One thread for each camera reads its streams and writes its files; no camera waits for another
//! one's disk, and one more reads its finished segments. One for all deletes old segments.

mod camera;
mod files;
mod proof;
mod recorder;
pub mod retention;
mod segment;
mod sidecar;
#[cfg(test)]
mod tests;
mod unit;

pub use camera::record;

use super::Context;
use crate::report::{Condition, Report};

use retention::{Retention, Round};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant, SystemTime},
};

/// Time between two deletions of old segments.
const BETWEEN_DELETIONS: Duration = Duration::from_secs(5);
/// Time after a deletion for lack of space in which the disk counts as full of recordings.
const FULL: Duration = Duration::from_secs(3600);
const DAY: f64 = 86_400.0;

/// Deletes old segments until the role is stopped, if no other process does.
pub fn delete_old(context: &Context) {
    let recording = &context.config.recording;
    let mut retention = None;
    // While it comes now and then, the disk is full of recordings.
    let mut was_tight: Option<Instant> = None;
    loop {
        let report = match &mut retention {
            None => Retention::open(&recording.folder).map(|opened| retention = opened).err().map(failed),
            Some(retention) => Some(match retention.apply(recording, SystemTime::now()) {
                Ok(round) => {
                    if round.deleted > 0 {
                        log::info!("deleted {} old segments", round.deleted);
                    }
                    was_tight = round.was_tight.then(Instant::now).or(was_tight);
                    state(&round, was_tight.is_some_and(|at| at.elapsed() < FULL))
                }
                Err(error) => failed(error),
            }),
        };
        report.iter().for_each(|report| context.reporter.send(report));
        if !context.pause(BETWEEN_DELETIONS) {
            return;
        }
    }
}

fn failed(error: anyhow::Error) -> Report {
    let text = format!("cannot delete old segments: {error:#}");
    Report { camera: String::new(), condition: Condition::Failed, text, values: BTreeMap::new() }
}

/// The state of all recordings: a report without a camera.
fn state(round: &Round, is_tight: bool) -> Report {
    let (condition, text) = match (round.free < round.reserve, is_tight) {
        (true, _) => {
            (Condition::Failed, "less space is free than the reserve, and there are no segments to delete")
        }
        (false, true) => {
            (Condition::Running, "deletes the oldest segments, because the disk is full of them")
        }
        (false, false) => (Condition::Running, "deletes segments by age and size"),
    };
    let days = round.left.map(|left| ("days_left".to_owned(), left.as_secs_f64() / DAY));
    let values = days.into_iter().chain([("free_bytes".to_owned(), round.free as f64)]).collect();
    Report { camera: String::new(), condition, text: text.into(), values }
}
