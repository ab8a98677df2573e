// SPDX-License-Identifier: MIT OR Apache-2.0

//! The last minutes of a camera, for small plots.

use super::stream::StreamFigures;
use serde::Serialize;
use std::collections::VecDeque;

/// Entries that are kept, one a second.
const ENTRIES: usize = 300;

/// Units a second, frames a second, age in ms of the frames of the reader with the oldest ones, and
/// frames lost by all readers. `None`: not measured.
pub type Sample = [Option<f64>; 4];

/// Entries of one camera, oldest first.
#[derive(Default, Serialize)]
pub struct History(VecDeque<Sample>);

impl History {
    /// Adds an entry.
    pub fn add(&mut self, streams: &[StreamFigures]) -> Sample {
        let rate_of = |kind| {
            let stream = streams.iter().find(|stream| stream.kind == kind);
            stream.filter(|stream| stream.up).map(|stream| stream.rate)
        };
        let frames = streams.iter().filter(|stream| matches!(stream.kind, "video" | "sub" | "frames"));
        let readers = || frames.clone().flat_map(|stream| &stream.readers);
        let age = readers().filter_map(|reader| reader.age).reduce(f64::max);
        let lost = readers().map(|reader| reader.lost_now).sum::<u64>();
        let sample = [rate_of("video"), rate_of("frames"), age, Some(lost as f64)];
        if self.0.len() == ENTRIES {
            self.0.pop_front();
        }
        self.0.push_back(sample);
        sample
    }
}

#[cfg(test)]
mod tests {
    use super::{super::ReaderFigures, *};

    #[test]
    fn sample_has_oldest_age_and_all_losses() {
        let reader = |age, lost_now| ReaderFigures { age, lost_now, ..Default::default() };
        let readers = vec![reader(Some(2.0), 1), reader(Some(40.0), 3), reader(None, 0)];
        let frames = StreamFigures { kind: "frames", up: true, rate: 25.0, readers, ..Default::default() };
        let video = StreamFigures { kind: "video", rate: 25.0, ..Default::default() };
        let mut history = History::default();
        for _ in 0..=ENTRIES {
            let sample = history.add(&[video.clone(), frames.clone()]);
            assert_eq!(sample, [None, Some(25.0), Some(40.0), Some(4.0)]);
        }
        assert_eq!(history.0.len(), ENTRIES);
    }
}
