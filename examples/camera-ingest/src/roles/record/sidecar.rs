// SPDX-License-Identifier: MIT OR Apache-2.0

//! Results beside a segment: JSON lines, each with the time of its frame and its position.
//!
//! `{"time":1795568523000000001,"position":1.5,"source":"motion","score":0.1,"boxes":[…]}`, where
//! `time` is in ns since 1970, and `position` in seconds from the start of the segment. The time is
//! that of the recorded unit, if the frame was decoded from it; with a sub-stream it lies between
//! two units.

use super::files;
use crate::results::Value;
use anyhow::{Context, Result};
use serde::Serialize;
use std::{
    collections::VecDeque,
    fs::{File, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    time::Duration,
};

/// Segments that results may still belong to.
const MAX_SEGMENTS: usize = 3;
/// Units whose place is known: a minute and more of video.
const MAX_UNITS: usize = 4096;
/// Results that wait for their unit.
const MAX_PENDING: usize = 1024;
/// Maximum time between a frame and the last unit before it.
const NEAR: u64 = 1_000_000_000;

/// A line.
#[derive(Serialize)]
struct Line<'a> {
    time: u64,
    position: f64,
    source: &'a str,
    #[serde(flatten)]
    value: Rest<'a>,
}

/// A value without its time.
#[derive(Serialize)]
struct Rest<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    score: Option<f64>,
    boxes: &'a [crate::results::Region],
}

/// Finds the place of each result, and writes it.
#[derive(Default)]
pub struct Sidecar {
    segments: VecDeque<Segment>,
    /// Results of frames whose units are not recorded yet.
    pending: VecDeque<(&'static str, Value)>,
    /// Number of results that were not written: their frames are in no segment.
    pub unplaced: u64,
}

struct Segment {
    path: PathBuf,
    /// Opened with the first result.
    file: Option<File>,
    /// Length of its whole lines.
    bytes: u64,
    /// Times of the latest units, and their positions.
    units: VecDeque<(u64, Duration)>,
}

impl Sidecar {
    /// The following units are in this segment.
    pub fn begin(&mut self, segment: &Path) {
        self.segments.push_back(Segment {
            path: files::results(segment),
            file: None,
            bytes: 0,
            units: VecDeque::new(),
        });
        if self.segments.len() > MAX_SEGMENTS {
            self.segments.pop_front();
        }
    }

    /// A unit was recorded.
    pub fn unit(&mut self, time: u64, position: Duration) {
        let Some(segment) = self.segments.back_mut() else { return };
        segment.units.push_back((time, position));
        if segment.units.len() > MAX_UNITS {
            segment.units.pop_front();
        }
    }

    /// A result has arrived.
    pub fn result(&mut self, source: &'static str, value: Value) {
        self.pending.push_back((source, value));
        if self.pending.len() > MAX_PENDING {
            self.pending.pop_front();
            self.unplaced += 1;
        }
    }

    /// Writes the results of recorded units.
    ///
    /// # Errors
    /// If a file cannot be written; the result is counted as unplaced.
    pub fn write(&mut self) -> Result<()> {
        let newest = self.segments.iter().flat_map(|segment| segment.units.back()).map(|(time, _)| *time);
        let Some(newest) = newest.max() else { return Ok(()) };
        for (source, value) in std::mem::take(&mut self.pending) {
            if value.time > newest {
                self.pending.push_back((source, value));
            } else if !self.place(source, &value)? {
                self.unplaced += 1;
            }
        }
        Ok(())
    }

    /// Writes a result into the segment of its frame; false if there is none.
    fn place(&mut self, source: &str, value: &Value) -> Result<bool> {
        let time = value.time;
        for segment in self.segments.iter_mut().rev() {
            let after = segment.units.partition_point(|(unit, _)| *unit <= time);
            let Some((unit, position)) = after.checked_sub(1).map(|last| segment.units[last]) else {
                continue;
            };
            if time - unit > NEAR {
                return Ok(false);
            }
            let position = (position + Duration::from_nanos(time - unit)).as_secs_f64();
            let value = Rest { score: value.score, boxes: &value.boxes };
            segment.append(&Line { time, position, source, value })?;
            return Ok(true);
        }
        Ok(false)
    }
}

impl Segment {
    fn append(&mut self, line: &Line<'_>) -> Result<()> {
        let cannot = || format!("cannot write {}", self.path.display());
        let text = serde_json::to_string(line)? + "\n";
        if self.file.is_none() {
            let file = OpenOptions::new().create(true).append(true).open(&self.path);
            self.file = Some(file.with_context(cannot)?);
        }
        let Some(file) = &mut self.file else { return Ok(()) };
        let written = file.write_all(text.as_bytes());
        match &written {
            Ok(()) => self.bytes += text.len() as u64,
            // A full disk may have taken a part of the line.
            Err(_) => file.set_len(self.bytes).with_context(cannot)?,
        }
        written.with_context(cannot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn value(time: u64) -> Value {
        Value { time, score: Some(0.5), boxes: Vec::new() }
    }

    #[test]
    fn results_are_beside_the_segment_of_their_unit() {
        let folder = tempfile::tempdir().unwrap();
        let [first, second] = ["a", "b"].map(|name| folder.path().join(format!("{name}.mkv.part")));
        let mut sidecar = Sidecar::default();
        sidecar.result("motion", value(50)); // before the first unit
        sidecar.begin(&first);
        for number in 1..=10 {
            sidecar.unit(100 * number, Duration::from_millis(number - 1));
        }
        sidecar.result("motion", value(300));
        sidecar.result("model", value(450)); // of a sub-stream
        sidecar.result("motion", value(1100)); // its unit is recorded later
        sidecar.write().unwrap();
        sidecar.begin(&second);
        sidecar.unit(1100, Duration::ZERO);
        sidecar.unit(3_000_000_000, Duration::from_secs(3));
        sidecar.result("motion", value(1000)); // late
        sidecar.result("motion", value(2_900_000_000)); // in a gap
        sidecar.write().unwrap();
        assert_eq!(sidecar.unplaced, 2);
        let lines = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!(
            lines("a.jsonl"),
            "{\"time\":300,\"position\":0.002,\"source\":\"motion\",\"score\":0.5,\"boxes\":[]}\n\
             {\"time\":450,\"position\":0.00300005,\"source\":\"model\",\"score\":0.5,\"boxes\":[]}\n\
             {\"time\":1000,\"position\":0.009,\"source\":\"motion\",\"score\":0.5,\"boxes\":[]}\n"
        );
        assert_eq!(lines("b.jsonl").lines().count(), 1);
    }
}
