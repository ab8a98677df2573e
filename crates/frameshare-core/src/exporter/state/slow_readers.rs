// SPDX-License-Identifier: MIT OR Apache-2.0

//! Lossless readers that hold the stream back: reported, evicted.

use super::State;
use crate::exporter::{ending::Ending, limits::SlowReaders, link::Link, notice::Notice, system::System};
use frameshare_protocol::message::Reason;
use std::{collections::BTreeSet, time::Duration};

/// Time after which a lossless reader that holds the stream back is reported to the owner.
const BLOCKING_NOTICE: Duration = Duration::from_secs(1);

impl<S: System> State<S> {
    /// Records the end of the last wait: no reader is waited for, and none needs to send wake-ups.
    pub fn end_waits(&mut self) {
        for link in self.readers.present_mut() {
            link.end_wait();
        }
    }

    /// Evicts lossless readers that have held the stream back for too long, reports those that soon
    /// will have, and returns the time until the next check, if one is needed. Where `room` for a
    /// frame is awaited, a reader with room in its backlog does not hold the stream back.
    ///
    /// The time that the stream stands still counts for each reader that does nothing meanwhile:
    /// several stuck readers cost it no more than one.
    pub fn check_blocking_readers(&mut self, room: bool, standstill: Duration) -> Option<Duration> {
        let limit = self.limits.reader_timeout;
        let notice = BLOCKING_NOTICE.min(limit / 2);
        let (blocking, too_slow) = self.blocking_readers(room);
        let mut next: Option<Duration> = None;
        let mut notices = Vec::new();
        self.each_link(|link| {
            if !link.is_lossless() {
                return Ok(());
            }
            let stalled = link.note_standstill(standstill);
            if !blocking.contains(&link.info.id) {
                return Ok(());
            }
            if link.leases.vacant().is_some() && !link.has_waiting_messages() {
                return Ok(());
            }
            let waiting = link.backlog().frames();
            if waiting > 0 && too_slow.contains(&link.info.id) {
                let text = format!("{waiting} frames wait for it, which is as much as the exporter queues");
                return Err(Ending::new(Reason::TooSlow, text));
            }
            if stalled >= limit {
                let text = format!("it held the stream back for longer than the reader timeout ({limit:?})");
                return Err(Ending::new(Reason::TooSlow, text));
            }
            if stalled >= notice && !link.stall().is_reported() {
                link.stall().note_report();
                notices.push(Notice::ReaderBlocking { reader: link.info.clone(), blocked_for: stalled });
            }
            let until = if link.stall().is_reported() { limit } else { notice };
            let left = until.saturating_sub(stalled);
            next = Some(next.map_or(left, |next| next.min(left)));
            Ok(())
        });
        notices.into_iter().for_each(|notice| self.reports.tell(notice));
        next
    }

    /// Returns the readers that hold the stream back, and those among them that are evicted for it
    /// at once: the ones with the longest backlog, where readers do not hold a live stream back.
    fn blocking_readers(&self, room: bool) -> (BTreeSet<u64>, BTreeSet<u64>) {
        let blocks = |link: &&Link<S>| match room {
            true => {
                // Downloads under way come first.
                let download = self.first_download().filter(|_| link.downloads());
                self.holds_back(link, self.awaited) || download.is_some_and(|one| self.holds_back(link, one))
            }
            false => link.is_lossless() && link.is_full(),
        };
        let longest = |link: &&Link<S>| {
            let others = self.readers.present().iter().filter(|other| other.downloads() == link.downloads());
            others.map(|other| other.backlog().frames()).max() == Some(link.backlog().frames())
        };
        let disconnects = room && self.limits.slow_readers == SlowReaders::QueueThenDisconnect;
        let blocking = self.readers.present().iter().filter(blocks);
        let too_slow = blocking.clone().filter(longest).filter(|_| disconnects);
        (blocking.map(|link| link.info.id).collect(), too_slow.map(|link| link.info.id).collect())
    }
}
