// SPDX-License-Identifier: MIT OR Apache-2.0

//! Lossless readers that hold the stream back: polled, reported, evicted.

use super::State;
use crate::{
    exporter::{
        config::SlowReaders,
        link::{Ending, Link},
        observe::Notice,
    },
    sys::Timeout,
};
use frameshare_protocol::message::Reason;
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

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
        // Downloads take room, too, and frames in backlogs take it first. With backlogs, no reader
        // blocks those behind it.
        if self.downloads.is_some() || self.has_backlogs() || self.config.slow_readers != SlowReaders::Wait {
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

    /// Evicts lossless readers that have held the stream back for too long, reports those that soon
    /// will have, and returns the time of the next check. Where `room` for a frame is awaited, a
    /// reader with room in its backlog does not hold the stream back.
    pub fn check_blocking_readers(&mut self, room: bool) -> Timeout {
        let limit = self.config.reader_timeout;
        let disconnects = self.config.slow_readers == SlowReaders::QueueThenDisconnect;
        let notice = BLOCKING_NOTICE.min(limit / 2);
        let now = Instant::now();
        let timeout = self.config.fence_timeout;
        let mut next = Timeout::Never;
        let mut notices = Vec::new();
        let mut ended = Vec::new();
        let blocks = |link: &Link| {
            if room {
                self.holds_back(link, self.awaited_bytes)
            } else {
                link.is_lossless() && link.is_full()
            }
        };
        let longest = |link: &Link| {
            let others = self.links.iter().filter(|other| other.downloads() == link.downloads());
            others.map(|other| other.backlog().frames()).max() == Some(link.backlog().frames())
        };
        let too_slow: BTreeSet<u64> = match room && disconnects {
            true => self
                .links
                .iter()
                .filter(|link| blocks(link) && longest(link))
                .map(|link| link.info.id)
                .collect(),
            false => BTreeSet::new(),
        };
        let blocking: BTreeSet<u64> =
            self.links.iter().filter(|link| blocks(link)).map(|link| link.info.id).collect();
        self.each_link(|link| {
            // The reader may have released frames since the last poll.
            if blocking.contains(&link.info.id) && link.is_full() && link.blocked_for(now) >= notice {
                link.leases.collect_released(&mut ended, timeout)?;
            }
            if !blocking.contains(&link.info.id)
                || link.leases.vacant().is_some() && !link.has_waiting_messages()
            {
                link.unblock();
                return Ok(());
            }
            let waiting = link.backlog().frames();
            if waiting > 0 && too_slow.contains(&link.info.id) {
                let text = format!("{waiting} frames wait for it, which is as much as the exporter queues");
                return Err(Ending::new(Reason::TooSlow, text));
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
