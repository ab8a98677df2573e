// SPDX-License-Identifier: MIT OR Apache-2.0

//! Buffers that upstream gets back: those that publications keep, and the sources of copies.
//!
//! A decoder that sleeps for a free buffer never calls the exporter, and a GPU sends no
//! notification of the end of its work, so the service thread polls. While publications follow
//! each other it need not: they poll, and show that upstream has a buffer to go on with.

use super::{State, Urgency};
use crate::sys::monotonic_ns;
use std::time::{Duration, Instant};

/// Whether upstream waits for buffers, by what its publications show.
#[derive(Debug)]
pub struct Demand {
    /// Time when a poll gave a buffer back after a pause of upstream.
    returned: Option<Instant>,
    /// Number of publications since upstream had waited for a buffer, as it seems. The greatest
    /// number: never.
    since: u64,
    /// Number of publications for which it is taken to wait again.
    lasts: u64,
}

impl Default for Demand {
    fn default() -> Self {
        Self { returned: None, since: u64::MAX, lasts: Self::FIRST }
    }
}

impl Demand {
    /// Upstream may have waited if it publishes nothing for so long.
    const PAUSE: Duration = Duration::from_millis(50);
    /// Upstream that publishes so soon after it got a buffer back may have waited for it.
    const SOON: Duration = Duration::from_secs(1);
    /// The least and the most publications for which upstream is taken to wait.
    const FIRST: u64 = 16;
    const MOST: u64 = 1 << 14;

    /// Notes that a poll gave buffers back after a pause of upstream.
    fn note_return(&mut self, now: Instant) {
        self.returned = Some(now);
    }

    fn note_publication(&mut self, now: Instant) {
        let waited = self.returned.take().is_some_and(|at| now.duration_since(at) < Self::SOON);
        if !waited {
            self.since = self.since.saturating_add(1);
            return;
        }
        // Each wait costs upstream a polling interval: they become rarer and rarer.
        let again = self.since < self.lasts * 2;
        self.lasts = if again { (self.lasts * 2).min(Self::MOST) } else { Self::FIRST };
        self.since = 0;
    }

    fn urgency(&self) -> Urgency {
        if self.since < self.lasts { Urgency::Unhurried } else { Urgency::Idle }
    }
}

impl State {
    /// Learns from a publication. Has the service thread poll for what it keeps and for copies, in
    /// place of the poll that the publication before it asked for.
    pub(super) fn await_returns(&mut self, keeps: bool) {
        if self.config.gpu.is_none() {
            return;
        }
        self.demand.note_publication(Instant::now());
        if keeps || !self.pinned.is_empty() {
            self.poll_after_publication = self.demand.urgency().interval();
        }
    }

    /// Returns the polling urgency for a buffer that upstream may wait for.
    pub(super) fn demanded_urgency(&self) -> Urgency {
        // Without a GPU of its own the exporter does not learn from publications.
        if self.config.gpu.is_some() { self.demand.urgency() } else { Urgency::Unhurried }
    }

    /// Returns the polling urgency for buffers that upstream has not got back, and for GPU work
    /// of readers.
    pub(super) fn returns_urgency(&self) -> Urgency {
        if self.count_unreturned() == 0 && !self.fences_pending {
            Urgency::None
        } else if self.closed || self.announcement.has_ended() || !self.draining.is_empty() {
            // No publication follows, or a teardown waits.
            Urgency::Unhurried
        } else {
            self.demanded_urgency()
        }
    }

    /// Learns from a turn that found fewer buffers with readers or GPU work than there were before
    /// it, if upstream has published nothing for a while.
    pub(super) fn note_returns(&mut self, before: usize) {
        let pause = Duration::from_nanos(monotonic_ns().saturating_sub(self.publications.last_at()));
        if pause >= Demand::PAUSE && self.count_unreturned() < before {
            self.demand.note_return(Instant::now());
        }
    }

    /// Returns the number of buffers of an exporter with a GPU, and of sources of copies, that
    /// upstream has not got back.
    pub(super) fn count_unreturned(&self) -> usize {
        let leased = self.publications.leased().filter(|_| self.config.gpu.is_some());
        let kept = leased.filter(|(area, one)| one.keep.is_some() && !self.is_only_kept(*area));
        kept.count() + self.publications.unwritten().len() + self.pinned.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_millis(20);

    /// Publishes so many frames, of which none shows that upstream waited.
    fn go_on(demand: &mut Demand, now: &mut Instant, frames: u64) {
        for _ in 0..frames {
            *now += PERIOD;
            demand.note_publication(*now);
        }
    }

    /// Upstream waits for a buffer until a poll gives it back.
    fn wait(demand: &mut Demand, now: &mut Instant) {
        *now += Duration::from_millis(100);
        demand.note_return(*now);
        go_on(demand, now, 1);
    }

    #[test]
    fn polls_are_rare_until_upstream_has_waited() {
        let (mut demand, mut now) = (Demand::default(), Instant::now());
        go_on(&mut demand, &mut now, 100);
        assert_eq!(demand.urgency(), Urgency::Idle);
        wait(&mut demand, &mut now);
        go_on(&mut demand, &mut now, Demand::FIRST - 1);
        assert_eq!(demand.urgency(), Urgency::Unhurried);
        go_on(&mut demand, &mut now, 1);
        assert_eq!(demand.urgency(), Urgency::Idle);
    }

    #[test]
    fn upstream_that_goes_on_to_wait_does_so_less_and_less_often() {
        let (mut demand, mut now) = (Demand::default(), Instant::now());
        for doublings in 0..20 {
            assert_eq!(demand.urgency(), Urgency::Idle);
            wait(&mut demand, &mut now);
            let lasts = (Demand::FIRST << doublings).min(Demand::MOST);
            go_on(&mut demand, &mut now, lasts - 1);
            assert_eq!(demand.urgency(), Urgency::Unhurried, "{lasts}");
            go_on(&mut demand, &mut now, 1);
        }
        // It did not wait for as long again.
        go_on(&mut demand, &mut now, Demand::MOST);
        wait(&mut demand, &mut now);
        go_on(&mut demand, &mut now, Demand::FIRST);
        assert_eq!(demand.urgency(), Urgency::Idle);
    }

    #[test]
    fn pause_for_another_reason_is_no_wait() {
        let (mut demand, mut now) = (Demand::default(), Instant::now());
        demand.note_return(now);
        now += Demand::SOON;
        demand.note_publication(now);
        assert_eq!(demand.urgency(), Urgency::Idle);
    }
}
