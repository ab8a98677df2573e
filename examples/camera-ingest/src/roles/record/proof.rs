// SPDX-License-Identifier: MIT OR Apache-2.0

//! Proof of recordings: what a finished file yields, compared with the units that it was given.
//!
//! A muxer may drop a unit without an error. So a thread reads each finished segment once, which
//! the system still has in memory then.

use crate::roles::pipeline::{Pipeline, make};
use anyhow::{Context, Result};
use gst::prelude::*;
use std::{
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, Sender, channel},
    thread,
};

/// Rounding of times in a file, in ns: MKV has ms.
const ROUNDING: u64 = 1_000_000;

/// A unit that a segment was given: its time since the start in ns, and whether it is a key unit.
pub type Given = (u64, bool);

/// Numbers of units of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub received: u64,
    /// They are in the file.
    pub written: u64,
    /// So are all those that they depend on, up to their key unit.
    pub decodable: u64,
}

/// A segment that was read, and its numbers.
pub struct Proof {
    pub file: PathBuf,
    pub counts: Counts,
}

/// A finished file, and the units that it was given.
type Job = (PathBuf, Vec<Given>);

/// A thread that reads the segments of a camera. It ends with this.
pub struct Prover {
    jobs: Sender<Job>,
    proofs: Receiver<Proof>,
    /// Number of segments whose proof was not taken.
    open: usize,
}

impl Prover {
    pub fn start() -> Result<Self> {
        let (jobs, given) = channel();
        let (answers, proofs) = channel();
        thread::Builder::new().name("proof".into()).spawn(move || prove_all(&given, &answers))?;
        Ok(Self { jobs, proofs, open: 0 })
    }

    /// Has a file read, which was given these units.
    pub fn prove(&mut self, file: PathBuf, given: Vec<Given>) {
        self.open += usize::from(self.jobs.send((file, given)).is_ok());
    }

    /// Returns the next proof, if there is one by now.
    pub fn next(&mut self) -> Option<Proof> {
        let proof = self.proofs.try_recv().ok()?;
        self.open -= 1;
        Some(proof)
    }

    /// Returns whether all proofs were taken.
    pub fn is_done(&self) -> bool {
        self.open == 0
    }
}

fn prove_all(jobs: &Receiver<Job>, answers: &Sender<Proof>) {
    for (file, given) in jobs {
        let found = times(&file).unwrap_or_else(|error| {
            log::warn!("cannot read {}: {error:#}", file.display());
            Vec::new()
        });
        let _ = answers.send(Proof { counts: compare(&given, &found), file });
    }
}

/// Returns the times of the units of video in a file, in ns. A file may be cut.
fn times(file: &Path) -> Result<Vec<u64>> {
    let (source, demuxer) = (make("filesrc")?, make("matroskademux")?);
    source.set_property("location", file);
    let sink = gst_app::AppSink::builder().sync(false).build();
    let pipeline = Pipeline::new();
    pipeline.0.add_many([&source, &demuxer, sink.upcast_ref()])?;
    source.link(&demuxer)?;
    let video = sink.static_pad("sink").context("a sink without a pad")?;
    demuxer.connect_pad_added(move |_, pad| {
        if pad.name().starts_with("video") {
            // There is one: units that are not found are missing.
            let _ = pad.link(&video);
        }
    });
    pipeline.play()?;
    let mut found = Vec::new();
    while let Ok(sample) = sink.pull_sample() {
        found.extend(sample.buffer().and_then(gst::BufferRef::pts).map(gst::ClockTime::nseconds));
    }
    Ok(found)
}

/// Finds the given units among those of the file, in their order.
fn compare(given: &[Given], found: &[u64]) -> Counts {
    let mut found = found.iter().copied().peekable();
    let mut counts = Counts { received: given.len() as u64, ..Counts::default() };
    let mut is_decodable = false;
    for (time, is_key) in given {
        let is_written = found.next_if(|found| found.abs_diff(*time) <= ROUNDING).is_some();
        is_decodable = is_written && (*is_key || is_decodable);
        counts.written += u64::from(is_written);
        counts.decodable += u64::from(is_decodable);
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_behind_a_missing_one_wait_for_a_key_unit() {
        let given = [(0, true), (40, false), (80, false), (120, true), (160, false)];
        let given = given.map(|(ms, is_key)| (ms * 1_000_000, is_key));
        let of = |found: &[u64]| {
            let found: Vec<_> = found.iter().map(|ms| ms * 1_000_000 + 400_000).collect();
            let Counts { received, written, decodable } = compare(&given, &found);
            (received, written, decodable)
        };
        assert_eq!(of(&[0, 40, 80, 120, 160]), (5, 5, 5));
        assert_eq!(of(&[0, 80, 120, 160]), (5, 4, 3));
        assert_eq!(of(&[40, 80, 120]), (5, 3, 1));
        assert_eq!(of(&[]), (5, 0, 0));
    }
}
