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
        let is_news = self.last.as_ref().is_none_or(|(last, sent)| {
            (last.condition, &last.text) != (report.condition, &report.text)
                || (last.values != report.values && sent.elapsed() >= BETWEEN_FIGURES)
        });
        if is_news {
            reporter.send(&report);
            self.last = Some((report, Instant::now()));
        }
    }
}
