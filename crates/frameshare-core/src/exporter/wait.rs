// SPDX-License-Identifier: MIT OR Apache-2.0

//! Waits of the exporter's threads for readers.

use super::{
    ending::Ending,
    link::Link,
    parts::WaiterId,
    state::State,
    system::{System, Waiter},
};
use std::time::{Duration, Instant};

/// A wait that ends so much later than planned is one of a process that was stopped. Its time
/// counts for no reader, which may have been stopped, too.
const STOPPED: Duration = Duration::from_secs(1);

/// The awaited condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Awaited {
    /// Room for one more frame at every lossless reader.
    Room,
    /// A slot. Readers that lose frames, and upstream, free some too, without a notification.
    Slot,
    /// Another change of the readers. Lossless readers, and readers that join or leave, wake the
    /// waiting thread.
    Readers,
}

/// Owns one wait of a thread, until a condition is true that depends on readers. It neither sleeps
/// nor knows how long the thread may wait.
///
/// The order: [`Wait::check`]; without a result [`Wait::prepare`], which checks once more, since a
/// reader that releases a frame before its waiting flag is set sends no wake-up; the thread sleeps
/// as it says; [`Wait::sleeps`] before, and [`Wait::note_wake_ups`] after the sleep, and again from
/// the beginning. [`Wait::end`] comes last in any case.
#[derive(Debug)]
pub struct Wait {
    awaited: Awaited,
    waiter: Option<WaiterId>,
    /// Time of the last check for readers that hold the stream back.
    checked: Option<Instant>,
    /// The planned end of the last sleep.
    planned: Option<Instant>,
}

/// The plan of a sleep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Readers that send a wake-up when they release a frame.
    pub announced: Vec<u64>,
    /// Maximum time of the sleep, if there is one.
    pub at_most: Option<Duration>,
    /// Something is awaited that sends no notification.
    pub polls: bool,
}

impl Wait {
    /// A wait for this.
    pub fn new(awaited: Awaited) -> Self {
        Self { awaited, waiter: None, checked: None, planned: None }
    }

    /// Ends released leases, and returns the result of `condition` if it has one.
    pub fn check<S: System, T>(
        &self,
        state: &mut State<S>,
        condition: &mut impl FnMut(&mut State<S>) -> Option<T>,
    ) -> Option<T> {
        state.reclaim();
        condition(state)
    }

    /// Prepares a sleep: evicts readers that hold the stream back for too long, has the others send
    /// wake-ups, and checks once more. The thread is registered from its first sleep on, with what
    /// `own` makes to wake it; without that it polls. A release with GPU work under way has to be
    /// polled, so its reader need not send a wake-up, unless `polls_are_rare`.
    ///
    /// # Errors
    /// The plan of the sleep, if the condition is not true.
    pub fn prepare<S: System, T>(
        &mut self,
        state: &mut State<S>,
        own: &mut Option<S::Waiter>,
        make: impl FnOnce() -> Option<S::Waiter>,
        polls_are_rare: bool,
        condition: &mut impl FnMut(&mut State<S>) -> Option<T>,
    ) -> Result<T, Plan> {
        let now = S::now();
        let was_stopped = self.planned.is_some_and(|at| now.saturating_duration_since(at) >= STOPPED);
        let last = self.checked.replace(now).filter(|_| !was_stopped);
        let standstill = last.map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        let at_most = state.check_blocking_readers(self.awaited == Awaited::Room, standstill);
        if self.waiter.is_none() {
            *own = make();
            self.waiter = Some(state.begin_wait(own.clone()));
        }
        // Set the waiting flags, then check every reader again: a release before the flag is
        // visible sends no wake-up. If no flag is set, nothing has changed since the first check
        // except events that wake this thread anyway.
        let is_polled = |link: &Link<S>| link.leases.is_fenced() && !polls_are_rare;
        let (mut announced, mut polls) = (Vec::new(), false);
        for link in state.readers().lossless() {
            if is_polled(link) {
                polls = true;
            } else {
                link.announce_wait();
                announced.push(link.info.id);
            }
        }
        own.iter().for_each(Waiter::clear);
        if !announced.is_empty() {
            state.reclaim();
            if let Some(result) = condition(state) {
                return Ok(result);
            }
        }
        // No notification follows the end of GPU work, nor a slot that upstream returns.
        let awaits_slots = match self.awaited {
            Awaited::Room => state.awaits_upstream(),
            Awaited::Slot => true,
            Awaited::Readers => false,
        };
        let polls = polls || awaits_slots || state.gpu_is_busy();
        Err(Plan { announced, at_most, polls })
    }

    /// Notes the planned end of the sleep that begins, if there is one.
    pub fn sleeps(&mut self, until: Option<Instant>) {
        self.planned = until;
    }

    /// Notes the wake-ups that ended a sleep: whether a reader sent one, and the readers whose
    /// wake-up sockets ended.
    pub fn note_wake_ups<S: System>(&self, state: &mut State<S>, any: bool, ended: Vec<(u64, Ending)>) {
        if any {
            // The value taken here may have been meant for another waiting thread.
            state.interrupt_other_waits(self.waiter);
        }
        for (reader, ending) in ended {
            state.end_link_of(reader, &ending, false);
        }
    }

    /// Ends the wait. After the last one, readers need not send wake-ups.
    pub fn end<S: System>(self, state: &mut State<S>) {
        if let Some(waiter) = self.waiter {
            state.end_wait(waiter);
        }
    }

    /// Returns whether the thread is registered.
    pub fn is_registered(&self) -> bool {
        self.waiter.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exporter::fake::{Connection, Fake, Work, drain, pass, queue_frame, stream};
    use frameshare_protocol::{MemoryKind, message::Reason};

    fn prepare(wait: &mut Wait, state: &mut State<Fake>) -> Plan {
        wait.prepare(state, &mut None, || None, false, &mut |_| None::<()>).unwrap_err()
    }

    #[test]
    fn condition_is_checked_after_ended_work_is_reclaimed() {
        let mut state = stream(MemoryKind::Host, Connection::default());
        state.drop_after(Work(true), Box::new(()));
        let busy = Wait::new(Awaited::Room).check(&mut state, &mut |state| Some(state.gpu_is_busy()));
        assert_eq!(busy, Some(false));
    }

    #[test]
    fn readers_send_wake_ups_unless_their_releases_are_polled() {
        use Awaited::{Readers, Slot};
        use MemoryKind::{Host, Vmm};
        const RARE: bool = true;
        for (kind, awaited, work, polls_are_rare, announced, polls) in [
            (Host, Readers, None, !RARE, &[1][..], false),
            // Upstream frees slots without a notification.
            (Host, Slot, None, !RARE, &[1], true),
            (Vmm, Readers, None, !RARE, &[], true),
            (Vmm, Readers, None, RARE, &[1], false),
            (Host, Readers, Some(Work(false)), !RARE, &[1], true),
            // The check after the waiting flags finds that the work is done.
            (Host, Readers, Some(Work(true)), !RARE, &[1], false),
        ] {
            let mut state = stream(kind, Connection::default());
            work.into_iter().for_each(|work| state.drop_after(work, Box::new(())));
            let mut wait = Wait::new(awaited);
            let never = &mut |_: &mut State<_>| None::<()>;
            let plan = wait.prepare(&mut state, &mut None, || None, polls_are_rare, never).unwrap_err();
            assert_eq!((plan.announced.as_slice(), plan.polls), (announced, polls), "{kind:?} {awaited:?}");
        }
    }

    #[test]
    fn condition_is_checked_again_once_waiting_flags_are_set() {
        for (kind, is_checked) in [(MemoryKind::Host, true), (MemoryKind::Vmm, false)] {
            let mut state = stream(kind, Connection::default());
            let mut wait = Wait::new(Awaited::Readers);
            assert!(!wait.is_registered());
            let found = wait.prepare(&mut state, &mut None, || None, false, &mut |_| Some(7));
            assert_eq!(found.ok(), is_checked.then_some(7));
            assert!(wait.is_registered());
            // A thread is registered once.
            let _ = wait.prepare(
                &mut state,
                &mut None,
                || panic!("the thread is registered"),
                false,
                &mut |_| Some(7),
            );
        }
    }

    #[test]
    fn standstill_counts_for_readers_unless_the_process_was_stopped() {
        let mut state = stream(MemoryKind::Host, Connection::default());
        let mut wait = Wait::new(Awaited::Readers);
        let ms = |ms| Some(Duration::from_millis(ms));
        // A reader is reported after 1 s.
        assert_eq!(prepare(&mut wait, &mut state).at_most, ms(1000));
        for (sleep, late, at_most) in [(300, 0, 700), (0, 999, 10_000 - 1299), (0, 1000, 10_000 - 1299)] {
            wait.sleeps(Some(Fake::now() + Duration::from_millis(sleep)));
            pass(Duration::from_millis(sleep + late));
            assert_eq!(prepare(&mut wait, &mut state).at_most, ms(at_most), "{sleep} {late}");
        }
    }

    #[test]
    fn only_waits_for_room_evict_readers_with_the_longest_backlog() {
        let mut state = stream(MemoryKind::Host, Connection::default());
        queue_frame(&mut state);
        prepare(&mut Wait::new(Awaited::Readers), &mut state);
        assert_eq!(state.readers().present().len(), 1);
    }

    #[test]
    fn reader_whose_wake_up_socket_ended_is_dropped() {
        let mut state = stream(MemoryKind::Host, Connection::default());
        drain(&mut state);
        let wait = Wait::new(Awaited::Readers);
        wait.note_wake_ups(&mut state, true, Vec::new());
        assert_eq!(state.readers().draining().len(), 1);
        wait.note_wake_ups(&mut state, false, vec![(1, Ending::new(Reason::Stopped, "it hung up"))]);
        assert!(state.readers().draining().is_empty());
    }
}
