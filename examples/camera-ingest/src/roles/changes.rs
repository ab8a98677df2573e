// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reports of one camera: sent when the condition has changed, and figures now and then.

use crate::report::{Report, Reporter};
use std::time::{Duration, Instant};

/// Time between two reports of figures alone.
const BETWEEN_FIGURES: Duration = Duration::from_secs(2);

#[derive(Default)]
pub struct Changes {
    last: Option<(Report, Instant)>,
}

impl Changes {
    /// Sends a report if it is news.
    pub fn send(&mut self, reporter: &Reporter, report: Report) {
        let has_new_figures = |(last, sent): &(Report, Instant)| {
            last.values != report.values && sent.elapsed() >= BETWEEN_FIGURES
        };
        let last = self.last.as_ref();
        if report.is_news_after(last.map(|(last, _)| last)) || last.is_some_and(has_new_figures) {
            reporter.send(&report);
            self.last = Some((report, Instant::now()));
        }
    }
}
