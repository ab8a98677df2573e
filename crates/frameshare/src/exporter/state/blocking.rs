// SPDX-License-Identifier: MIT OR Apache-2.0

//! Lossless readers that hold the stream back: polled, reported, evicted.

use super::State;
use crate::{
    exporter::{
        link::{Ending, Link},
        observe::Notice,
    },
    sys::Timeout,
};
use frameshare_protocol::message::Reason;
use std::time::{Duration, Instant};

/// Time after which a lossless reader that holds the stream back is reported to the owner.
const BLOCKING_NOTICE: Duration = Duration::from_secs(1);

impl State {
    /// Records the end of the last wait: no reader is waited for, and none needs to send wake-ups.
    pub(super) fn end_waits(&mut self) {
        for link in &mut self.links {
            link.end_wait();
        }
    }

    /// Polls full readers, up to the first lossless one that stays full: the exporter does not wait
    /// for those behind it yet.
    pub fn poll_full_readers(&mut self) {
        // Downloads take room, too.
        if self.downloads.is_some() {
            self.reclaim();
            return;
        }
        let timeout = self.config.fence_timeout;
        let mut ended = Vec::new();
        let (mut blocked, mut pending) = (false, false);
        self.each_link(|link| {
            if !blocked && link.is_full() {
                pending |= link.leases.collect_released(&mut ended, timeout)?;
                blocked = link.is_lossless() && link.is_full();
            }
            Ok(())
        });
        self.fences_pending |= pending;
        self.end_leases(ended);
    }

    /// Evicts lossless readers that have been full for too long, reports those that soon will be,
    /// and returns the time of the next check.
    pub fn check_blocking_readers(&mut self) -> Timeout {
        let limit = self.config.reader_timeout;
        let notice = BLOCKING_NOTICE.min(limit / 2);
        let now = Instant::now();
        let timeout = self.config.fence_timeout;
        let mut next = Timeout::Never;
        let mut notices = Vec::new();
        let mut ended = Vec::new();
        self.each_link(|link| {
            let holds_back = |link: &Link| link.is_lossless() && link.is_full();
            // The reader may have released frames since the last poll.
            if holds_back(link) && link.blocked_for(now) >= notice {
                link.leases.collect_released(&mut ended, timeout)?;
            }
            if !holds_back(link) {
                link.unblock();
                return Ok(());
            }
            let blocked = link.blocked_for(now);
            if blocked >= limit {
                let text = format!("it held the stream back for longer than the reader timeout ({limit:?})");
                return Err(Ending::new(Reason::TooSlow, text));
            }
            if blocked >= notice && !link.is_reported() {
                link.note_report();
                notices.push(Notice::ReaderBlocking { reader: link.info.clone(), blocked_for: blocked });
            }
            let until = if link.is_reported() { limit } else { notice };
            next = next.min(Timeout::after(Some(until.saturating_sub(blocked))));
            Ok(())
        });
        self.notices.extend(notices);
        self.end_leases(ended);
        next
    }
}
