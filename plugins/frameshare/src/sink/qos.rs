// SPDX-License-Identifier: MIT OR Apache-2.0

//! Summary of the reports of all readers about quality of service.
//!
//! An element upstream that gets a late report skips frames, of which all readers have less. So
//! the summary is the report by which the fewest frames are skipped, and a reader without a report
//! in the last second counts as on time: frames are skipped only while every reader is late, and
//! one reader cannot make the stream worse for another.

use frameshare::upstream::Qos;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// Time for which a report counts.
const VALID: Duration = Duration::from_secs(1);
/// Minimum distance of two summaries.
const INTERVAL: Duration = Duration::from_millis(100);

/// The report for upstream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Summary {
    /// No frame is to be skipped.
    OnTime,
    /// The least demanding report of all readers.
    Report(Qos),
}

/// The readers, and their last reports.
#[derive(Debug, Default)]
pub(super) struct QosSummary {
    readers: BTreeMap<u64, Option<(Instant, Qos)>>,
    /// Time of the last summary.
    sent: Option<Instant>,
    /// The last summary may have frames skipped.
    is_late: bool,
}

impl QosSummary {
    /// Adds a reader, which is on time. Returns the summary if that changes it.
    pub fn add(&mut self, reader: u64, now: Instant) -> Option<Summary> {
        self.readers.insert(reader, None);
        self.withdraw(now)
    }

    /// Removes a reader. Returns the summary if none is left.
    pub fn remove(&mut self, reader: u64, now: Instant) -> Option<Summary> {
        self.readers.remove(&reader);
        self.withdraw(now)
    }

    /// Records a report. Returns the summary if one is due.
    pub fn report(&mut self, reader: u64, qos: Qos, now: Instant) -> Option<Summary> {
        *self.readers.get_mut(&reader)? = Some((now, qos));
        if self.is_someone_silent(now) {
            return self.withdraw(now);
        }
        if self.sent.is_some_and(|sent| now.saturating_duration_since(sent) < INTERVAL) {
            return None;
        }
        let reports = || self.readers.values().flatten().map(|(_, qos)| *qos);
        // Elements skip frames from before the time and twice the lateness.
        let until = |qos: &Qos| i128::from(qos.time) + 2 * i128::from(qos.jitter);
        let least = reports().min_by_key(until)?;
        let proportion = reports().map(|qos| qos.proportion).fold(least.proportion, f64::min);
        (self.sent, self.is_late) = (Some(now), true);
        Some(Summary::Report(Qos { proportion, ..least }))
    }

    /// Returns whether a reader has not reported of late.
    fn is_someone_silent(&self, now: Instant) -> bool {
        let is_valid = |at: Instant| now.saturating_duration_since(at) < VALID;
        self.readers.values().any(|report| !report.is_some_and(|(at, _)| is_valid(at)))
    }

    /// Ends the effect of the last summary if not all readers agree with it any more.
    fn withdraw(&mut self, now: Instant) -> Option<Summary> {
        let has_reason = self.readers.is_empty() || self.is_someone_silent(now);
        (has_reason && std::mem::take(&mut self.is_late)).then_some(Summary::OnTime)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn late(ms: i64) -> Qos {
        Qos { proportion: 1.0 + ms as f64 / 100.0, jitter: ms * 1_000_000, time: 5_000_000_000 }
    }

    fn of(qos: Qos) -> Option<Summary> {
        Some(Summary::Report(qos))
    }

    #[test]
    fn summary_is_the_report_that_is_least_late() {
        let (mut summary, now) = (QosSummary::default(), Instant::now());
        assert_eq!((summary.add(1, now), summary.add(2, now)), (None, None));
        assert_eq!(summary.report(1, late(80), now), None, "reader 2 may be on time");
        assert_eq!(summary.report(2, late(30), now), of(late(30)));
        let then = now + INTERVAL;
        assert_eq!(summary.report(1, late(90), then), of(late(30)));
        assert_eq!(summary.report(2, late(-10), then + INTERVAL), of(late(-10)), "one is early");
    }

    /// Such a report would have all frames skipped.
    #[test]
    fn report_about_the_far_future_is_not_the_summary() {
        let (mut summary, now) = (QosSummary::default(), Instant::now());
        summary.add(1, now);
        summary.add(2, now);
        let hostile = Qos { proportion: 9.0, jitter: 1, time: u64::MAX - 1 };
        summary.report(1, hostile, now);
        assert_eq!(summary.report(2, late(40), now), of(late(40)));
        // Alone it harms itself only.
        summary.remove(2, now);
        let then = now + INTERVAL;
        assert_eq!(summary.report(1, hostile, then), of(hostile));
        assert_eq!(summary.add(3, then), Some(Summary::OnTime));
    }

    #[test]
    fn summaries_have_a_distance_of_100_ms() {
        let (mut summary, start) = (QosSummary::default(), Instant::now());
        summary.add(1, start);
        let due = |ms| summary.report(1, late(5), start + Duration::from_millis(ms)).is_some();
        assert_eq!((0..1000).filter(|ms| ms % 10 == 0).map(due).filter(|due| *due).count(), 10);
    }

    #[test]
    fn reader_that_reports_nothing_ends_lateness_once() {
        let (mut summary, now) = (QosSummary::default(), Instant::now());
        summary.add(1, now);
        assert_eq!(summary.report(1, late(80), now), of(late(80)));
        assert_eq!(summary.add(2, now), Some(Summary::OnTime));
        assert_eq!(summary.report(1, late(80), now + INTERVAL), None);
        assert_eq!(summary.remove(2, now), None);
        assert_eq!(summary.report(1, late(80), now + 2 * INTERVAL), of(late(80)));
        assert_eq!(summary.remove(1, now), Some(Summary::OnTime), "no reader is left");
        assert_eq!(summary.report(1, late(80), now + 3 * INTERVAL), None, "it has left");
    }

    #[test]
    fn old_report_counts_as_on_time() {
        let (mut summary, now) = (QosSummary::default(), Instant::now());
        summary.add(1, now);
        summary.add(2, now);
        summary.report(1, late(80), now);
        assert_eq!(summary.report(2, late(30), now), of(late(30)));
        assert_eq!(summary.report(2, late(30), now + VALID), Some(Summary::OnTime));
        assert_eq!(summary.report(2, late(30), now + 2 * VALID), None);
    }
}
