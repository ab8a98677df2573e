// SPDX-License-Identifier: MIT OR Apache-2.0

//! Latency of the stream: by how much frames come later than their times.
//!
//! Published times are those of the capture, without any latency, so that the frames of two
//! exporters that were captured at one moment have one time. Readers learn by how much frames come
//! later, as behind an encoder or where they wait for their time, and add it to the latency of
//! their own pipelines. It is measured, since many sources report more latency than their frames
//! have: `rtspsrc` 2 s.

use std::collections::VecDeque;

/// Number of frames of which the least late one counts: jitter is not latency.
const WINDOW: usize = 16;
/// Smallest change in ns that readers are told.
const STEP: u64 = 20_000_000;

/// Lateness of the last frames against their published times.
#[derive(Debug, Default)]
pub(crate) struct Latency {
    late: VecDeque<u64>,
    told: u64,
    /// Number of frames since the last one that was late, up to the window.
    in_time: usize,
}

impl Latency {
    /// Notes by how many ns a frame is late, at most `limit`. Returns the latency if readers have
    /// to be told another one. In a pipeline without latency, `late` is not called.
    pub fn note(&mut self, limit: u64, late: impl FnOnce() -> i128) -> Option<u64> {
        // All of the window is 0, and readers know: another 0 changes nothing.
        if limit == 0 && self.in_time == WINDOW {
            return None;
        }
        let late = u64::try_from(late()).unwrap_or(0).min(limit);
        if self.late.len() == WINDOW {
            self.late.pop_front();
        }
        self.late.push_back(late);
        self.in_time = if late == 0 { (self.in_time + 1).min(WINDOW) } else { 0 };
        let latency = self.late.iter().min().copied().unwrap_or(0);
        let is_news = latency.abs_diff(self.told) >= STEP || (latency == 0 && self.told > 0);
        is_news.then(|| std::mem::replace(&mut self.told, latency)).map(|_| latency)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i128 = 1_000_000;

    #[test]
    fn constant_delay_is_latency_and_jitter_is_none() {
        let mut latency = Latency::default();
        assert_eq!(latency.note(5_000_000_000, || 1400 * MS), Some(1_400_000_000), "an encoder's delay");
        for _ in 0..100 {
            assert_eq!(latency.note(5_000_000_000, || 1410 * MS), None);
        }
        // The first frame waited in a jitter buffer, the next ones do not.
        let mut latency = Latency::default();
        assert_eq!(latency.note(1_880_000_000, || 1900 * MS), Some(1_880_000_000));
        assert_eq!(latency.note(1_880_000_000, || -50 * MS), Some(0));
        for late in [10, 150, 0, 90] {
            assert_eq!(latency.note(1_880_000_000, || late * MS), None);
        }
    }

    #[test]
    fn latency_is_measured_anew_once_the_pipeline_has_some() {
        let mut latency = Latency::default();
        for _ in 0..2 * WINDOW {
            assert_eq!(latency.note(0, || 30 * MS), None);
        }
        for _ in 1..WINDOW {
            assert_eq!(latency.note(100_000_000, || 30 * MS), None, "some frames had none");
        }
        assert_eq!(latency.note(100_000_000, || 30 * MS), Some(30_000_000));
        assert_eq!(latency.note(0, || 30 * MS), Some(0));
    }
}
