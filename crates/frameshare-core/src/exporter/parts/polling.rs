// SPDX-License-Identifier: MIT OR Apache-2.0

//! When the exporter polls: some completions send no notification.

use std::{mem, time::Duration};

/// Polling urgency of the service thread, in ascending order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// Nothing is to be polled.
    #[default]
    None,
    /// As [`Urgency::Unhurried`], but publications follow each other, and poll themselves.
    Idle,
    /// Slots or memory are to be reclaimed, and no thread is likely to wait for them.
    Unhurried,
    /// A thread waits.
    Close,
}

impl Urgency {
    /// Returns the polling interval, if polls are regular.
    pub fn interval(self) -> Option<Duration> {
        match self {
            Self::None | Self::Close => None,
            Self::Idle => Some(Duration::from_millis(100)),
            Self::Unhurried => Some(Duration::from_millis(2)),
        }
    }
}

/// Owns the urgency of the service thread's polls, and what it depends on. It polls nothing itself:
/// it is told what work needs, and what polls have found. Times are in ns of `CLOCK_MONOTONIC`.
///
/// A decoder that sleeps for a free buffer never calls the exporter, and a GPU sends no
/// notification of the end of its work, so the service thread polls. While publications follow
/// each other it need not: they poll, and show that upstream has a buffer to go on with.
#[derive(Debug, Default)]
pub struct Polling {
    /// Urgency that work since the service thread's last turn requires.
    wanted: Urgency,
    /// Time until a poll that the next publication puts off.
    after_publication: Option<Duration>,
    /// Urgency of the service thread's present or next turn.
    watch: Urgency,
    demand: Demand,
    /// A release fence was pending at the last poll of all of them, or at a poll since.
    fences_pending: bool,
    /// All readers were polled for a slot since the last publication: the next one need not.
    is_polled: bool,
}

/// Polls that the service thread is asked for.
#[derive(Debug, PartialEq, Eq)]
pub struct Order {
    /// It polls at once, and then as often as it can.
    pub at_once: bool,
    /// It polls within this time.
    pub within: Option<Duration>,
    /// It polls after this time, unless another publication follows.
    pub after_publication: Option<Duration>,
}

impl Polling {
    /// Asks for polls of this urgency, or of the present one if that is greater.
    #[inline]
    pub fn want(&mut self, urgency: Urgency) {
        self.wanted = self.wanted.max(urgency);
    }

    /// Asks for a poll after the time of this urgency, which publications put off.
    #[inline]
    pub fn want_after_publication(&mut self, urgency: Urgency) {
        self.after_publication = urgency.interval();
    }

    /// Begins a turn of the service thread that leaves work of this urgency.
    pub fn begin_turn(&mut self, needed: Urgency) {
        self.watch = needed;
        if needed == Urgency::Idle {
            self.want_after_publication(needed);
        }
    }

    /// Urgency of the service thread's present or next turn.
    #[inline]
    pub fn watch(&self) -> Urgency {
        self.watch
    }

    /// Takes what was asked for.
    #[inline]
    pub fn take_order(&mut self) -> Order {
        let (wanted, watch) = (mem::take(&mut self.wanted), self.watch);
        self.watch = watch.max(wanted);
        Order {
            at_once: wanted == Urgency::Close && watch != Urgency::Close,
            within: wanted.interval(),
            after_publication: mem::take(&mut self.after_publication),
        }
    }

    /// Learns from a publication of an exporter with a GPU.
    #[inline]
    pub fn note_publication(&mut self, now: u64) {
        self.demand.note_publication(now);
    }

    /// Learns that a poll has given buffers back, `pause` after the last publication.
    pub fn note_return(&mut self, pause: u64, now: u64) {
        if pause >= Demand::PAUSE {
            self.demand.note_return(now);
        }
    }

    /// The urgency for a buffer that upstream may wait for.
    #[inline]
    pub fn demanded(&self) -> Urgency {
        self.demand.urgency()
    }

    /// Notes whether a poll of all readers has found a pending release fence.
    #[inline]
    pub fn set_fences_pending(&mut self, pending: bool) {
        self.fences_pending = pending;
    }

    /// Notes a pending release fence.
    pub fn note_pending_fence(&mut self) {
        self.fences_pending = true;
    }

    /// Returns whether a release fence was pending at the last poll.
    #[inline]
    pub fn fences_pending(&self) -> bool {
        self.fences_pending
    }

    /// Notes that all readers were polled for a slot.
    #[inline]
    pub fn note_poll(&mut self) {
        self.is_polled = true;
    }

    /// Returns whether a publication has to poll readers: the acquisition of its slot did not.
    #[inline]
    pub fn publication_polls(&mut self) -> bool {
        !mem::take(&mut self.is_polled)
    }
}

/// Whether upstream waits for buffers, by what its publications show.
#[derive(Debug)]
struct Demand {
    /// Time when a poll gave a buffer back after a pause of upstream.
    returned: Option<u64>,
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
    /// Upstream may have waited if it publishes nothing for so long, in ns.
    const PAUSE: u64 = 50_000_000;
    /// Upstream that publishes so soon after it got a buffer back, in ns, may have waited for it.
    const SOON: u64 = 1_000_000_000;
    /// The least and the most publications for which upstream is taken to wait.
    const FIRST: u64 = 16;
    const MOST: u64 = 1 << 14;

    /// Notes that a poll gave buffers back after a pause of upstream.
    fn note_return(&mut self, now: u64) {
        self.returned = Some(now);
    }

    fn note_publication(&mut self, now: u64) {
        let waited = self.returned.take().is_some_and(|at| now.saturating_sub(at) < Self::SOON);
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

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: u64 = 20_000_000;

    /// Publishes so many frames, of which none shows that upstream waited.
    fn go_on(demand: &mut Demand, now: &mut u64, frames: u64) {
        for _ in 0..frames {
            *now += PERIOD;
            demand.note_publication(*now);
        }
    }

    /// Upstream waits for a buffer until a poll gives it back.
    fn wait(demand: &mut Demand, now: &mut u64) {
        *now += 100_000_000;
        demand.note_return(*now);
        go_on(demand, now, 1);
    }

    #[test]
    fn polls_are_rare_until_upstream_has_waited() {
        let (mut demand, mut now) = (Demand::default(), 0);
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
        let (mut demand, mut now) = (Demand::default(), 0);
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
    fn wait_within_twice_the_time_continues_the_last_one() {
        for (frames, lasts) in
            [(2 * Demand::FIRST - 1, 2 * Demand::FIRST), (2 * Demand::FIRST, Demand::FIRST)]
        {
            let (mut demand, mut now) = (Demand::default(), 0);
            wait(&mut demand, &mut now);
            go_on(&mut demand, &mut now, frames);
            wait(&mut demand, &mut now);
            go_on(&mut demand, &mut now, lasts - 1);
            assert_eq!(demand.urgency(), Urgency::Unhurried, "{frames}");
            go_on(&mut demand, &mut now, 1);
            assert_eq!(demand.urgency(), Urgency::Idle, "{frames}");
        }
    }

    #[test]
    fn returned_buffer_after_a_pause_makes_polls_unhurried() {
        for (pause, urgency) in [(Demand::PAUSE - 1, Urgency::Idle), (Demand::PAUSE, Urgency::Unhurried)] {
            let mut polling = Polling::default();
            polling.note_publication(0);
            polling.note_return(pause, pause);
            assert_eq!(polling.demanded(), Urgency::Idle);
            polling.note_publication(pause + 1);
            assert_eq!(polling.demanded(), urgency, "{pause}");
        }
    }

    /// The order of polls of these times in ms.
    fn order(at_once: bool, within: Option<u64>, after_publication: Option<u64>) -> Order {
        let time = |ms: Option<u64>| ms.map(Duration::from_millis);
        Order { at_once, within: time(within), after_publication: time(after_publication) }
    }

    #[test]
    fn most_urgent_poll_is_ordered_once() {
        use Urgency::{Close, Idle, Unhurried};
        let nothing = || order(false, None, None);
        for (watch, wanted, expected, then) in [
            (Urgency::None, &[][..], nothing(), Urgency::None),
            (Urgency::None, &[Unhurried, Idle], order(false, Some(2), None), Unhurried),
            (Unhurried, &[Idle], order(false, Some(100), None), Unhurried),
            (Unhurried, &[Close, Unhurried], order(true, None, None), Close),
            // The service thread polls as often as it can already.
            (Close, &[Close], nothing(), Close),
            (Close, &[Unhurried], order(false, Some(2), None), Close),
        ] {
            let mut polling = Polling::default();
            polling.begin_turn(watch);
            wanted.iter().for_each(|urgency| polling.want(*urgency));
            assert_eq!(polling.take_order(), expected, "{watch:?} {wanted:?}");
            assert_eq!((polling.watch(), polling.take_order()), (then, nothing()));
        }
    }

    #[test]
    fn publications_put_off_idle_polls() {
        let mut polling = Polling::default();
        for (needed, after_publication) in [(Urgency::Idle, Some(100)), (Urgency::Unhurried, None)] {
            polling.begin_turn(needed);
            assert_eq!(polling.take_order(), order(false, None, after_publication));
        }
        polling.want_after_publication(Urgency::Unhurried);
        assert_eq!(polling.take_order(), order(false, None, Some(2)));
    }

    #[test]
    fn publication_polls_unless_its_slot_was_polled_for() {
        let mut polling = Polling::default();
        assert!(polling.publication_polls());
        polling.note_poll();
        assert!(!polling.publication_polls() && polling.publication_polls());
    }

    #[test]
    fn pending_fence_is_known_until_a_poll_finds_none() {
        let mut polling = Polling::default();
        assert!(!polling.fences_pending());
        polling.note_pending_fence();
        assert!(polling.fences_pending());
        for pending in [false, true] {
            polling.set_fences_pending(pending);
            assert_eq!(polling.fences_pending(), pending);
        }
    }

    #[test]
    fn pause_for_another_reason_is_no_wait() {
        let (mut demand, mut now) = (Demand::default(), 0);
        demand.note_return(now);
        now += Demand::SOON;
        demand.note_publication(now);
        assert_eq!(demand.urgency(), Urgency::Idle);
    }
}
