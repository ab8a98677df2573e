// SPDX-License-Identifier: MIT OR Apache-2.0

//! `frameshare hz`.

use crate::{
    error::Error,
    frames::{Frames, Step},
    output::{Page, print_json},
};
use frameshare::{monotonic_ns, reader::Frame};
use serde_json::json;
use std::time::Duration;

/// Length of a line of the output, in time.
const PERIOD: u64 = 1_000_000_000;
/// Width of the longest bar of the histogram.
const BAR: u64 = 40;

/// Times between publications of successive frames, in classes of powers of two of microseconds.
#[derive(Debug, Default)]
struct Histogram([u64; 32]);

impl Histogram {
    fn add(&mut self, ns: u64) {
        let class = (ns / 1000).checked_ilog2().map_or(0, |class| class as usize + 1);
        self.0[class.min(self.0.len() - 1)] += 1;
    }

    /// Returns the classes from the first to the last one with an entry: the upper limit in
    /// microseconds, and the number of entries.
    fn classes(&self) -> Vec<(u64, u64)> {
        let classes: Vec<_> = self.0.iter().enumerate().map(|(class, count)| (1 << class, *count)).collect();
        let first = classes.iter().position(|(_, count)| *count > 0).unwrap_or(0);
        let end = classes.iter().rposition(|(_, count)| *count > 0).map_or(first, |last| last + 1);
        classes[first..end].to_vec()
    }
}

/// Frames of one period.
#[derive(Debug, Default)]
struct Period {
    frames: u64,
    lost: u64,
    /// Shortest and longest time between publications, and the sum, in ns.
    shortest: Option<u64>,
    longest: u64,
    sum: u64,
    intervals: u64,
}

impl Period {
    fn add(&mut self, interval: u64) {
        self.shortest = Some(self.shortest.map_or(interval, |shortest| shortest.min(interval)));
        self.longest = self.longest.max(interval);
        self.sum += interval;
        self.intervals += 1;
    }

    /// Returns the rate in frames per second: frames that this reader lost are counted too.
    fn rate(&self, length: u64) -> f64 {
        (self.frames + self.lost) as f64 * 1e9 / length.max(1) as f64
    }
}

/// Prints the rate for each second, and at the end the distribution of the times between frames.
pub fn hz(stream: &str, count: Option<u64>, json: bool) -> Result<(), Error> {
    let mut frames = Frames::join(stream)?;
    let mut histogram = Histogram::default();
    let mut last = None;
    let mut left = count.unwrap_or(u64::MAX);
    let mut is_open = true;
    while left > 0 && is_open {
        left -= 1;
        let begin = monotonic_ns();
        let mut period = Period::default();
        loop {
            let rest = (begin + PERIOD).saturating_sub(monotonic_ns());
            if rest == 0 {
                break;
            }
            match frames.next(Some(Duration::from_nanos(rest)))? {
                Step::Frame(frame) => note(&frame, &mut last, &mut period, &mut histogram),
                Step::Timeout => break,
                Step::End => {
                    is_open = false;
                    break;
                }
            }
        }
        // A second that the end cut short has no rate.
        if is_open {
            print_period(&period, monotonic_ns().saturating_sub(begin), json)?;
        }
    }
    print_histogram(&histogram, json)
}

/// Counts a frame. Times of frames with a loss between them say nothing about the exporter.
fn note(frame: &Frame, last: &mut Option<u64>, period: &mut Period, histogram: &mut Histogram) {
    let (published, lost) = (frame.descriptor().published, frame.lost_before());
    period.frames += 1;
    if let Some(last) = *last {
        period.lost += lost;
        if lost == 0 {
            let interval = published.saturating_sub(last);
            period.add(interval);
            histogram.add(interval);
        }
    }
    *last = Some(published);
}

fn print_period(period: &Period, length: u64, json: bool) -> Result<(), Error> {
    let rate = period.rate(length);
    let mean = period.sum.checked_div(period.intervals);
    if json {
        let seconds = |ns: u64| ns as f64 / 1e9;
        return print_json(&json!({
            "rate": rate,
            "frames": period.frames,
            "lost": period.lost,
            "interval": mean.map(|mean| json!({
                "mean": seconds(mean), "min": period.shortest.map(seconds), "max": seconds(period.longest),
            })),
        }));
    }
    let mut page = Page::new();
    let mut line = format!("{rate:8.2} frames/s");
    if let (Some(mean), Some(shortest)) = (mean, period.shortest) {
        let ms = |ns: u64| ns as f64 / 1e6;
        line += &format!("  every {:.3} ms ({:.3} to {:.3})", ms(mean), ms(shortest), ms(period.longest));
    }
    if period.lost > 0 {
        line += &format!("  {} not seen here", period.lost);
    }
    page.line(&line);
    page.print()
}

fn print_histogram(histogram: &Histogram, json: bool) -> Result<(), Error> {
    let classes = histogram.classes();
    if json {
        let classes =
            classes.iter().map(|(limit, count)| json!({ "below": *limit as f64 / 1e6, "count": count }));
        return print_json(&json!({ "histogram": classes.collect::<Vec<_>>() }));
    }
    let most = classes.iter().map(|(_, count)| *count).max().unwrap_or(0);
    let mut page = Page::new();
    if most > 0 {
        page.heading("time between frames");
    }
    for (limit, count) in classes {
        let bar = "#".repeat((count * BAR).div_ceil(most.max(1)) as usize);
        page.line(&format!("  < {:10.3} ms {count:8} {bar}", limit as f64 / 1e3));
    }
    page.print()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_has_classes_of_powers_of_two() {
        let mut histogram = Histogram::default();
        [0, 999, 1000, 1999, 2000, 33_000_000, u64::MAX].into_iter().for_each(|ns| histogram.add(ns));
        let classes = histogram.classes();
        assert_eq!(classes[..3], [(1, 2), (2, 2), (4, 1)]);
        assert_eq!(classes.iter().find(|(limit, _)| *limit == 32768).unwrap().1, 0);
        assert_eq!(classes.iter().find(|(limit, _)| *limit == 65536).unwrap().1, 1);
        assert_eq!(classes.iter().map(|(_, count)| count).sum::<u64>(), 7);
        assert_eq!(Histogram::default().classes(), []);
    }

    #[test]
    fn rate_counts_lost_frames() {
        let period = Period { frames: 20, lost: 10, ..Period::default() };
        assert_eq!(period.rate(PERIOD), 30.0);
    }
}
