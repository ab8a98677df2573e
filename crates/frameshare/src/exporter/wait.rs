// SPDX-License-Identifier: MIT OR Apache-2.0

//! Backpressure: waits for readers, for a slot, and for the end of the stream.

use super::{
    Interrupted,
    departure::Ending,
    link::Link,
    notice::Notice,
    shared::Shared,
    slot::{AcquireError, Slot},
    state::State,
};
use crate::{
    Interrupt,
    sys::backoff::{Backoff, Spin},
    sys::{Drained, SENT_OVER_WAKE, Timeout, Wake, is_ready, wait},
};
use frameshare_protocol::message::Reason;
use rustix::event::{PollFd, PollFlags};
use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

/// Time after which a lossless reader that holds the stream back is reported to the owner.
const BLOCKING_NOTICE: Duration = Duration::from_secs(1);
/// Polling interval of a waiting thread without a wake-up descriptor, for lack of descriptors.
const WITHOUT_A_BELL: Duration = Duration::from_millis(1);

/// The waiting threads, each with a wake-up descriptor of its own: a slot or credit that one of
/// them takes may be the one that another waits for.
#[derive(Debug)]
pub(super) struct Waiters {
    /// Number of waiting threads.
    count: usize,
    bells: Vec<Interrupt>,
    /// Wake-up descriptor for the next waiting thread; there is seldom more than one.
    spare: Option<Interrupt>,
}

impl Waiters {
    pub fn new() -> io::Result<Self> {
        Ok(Self { count: 0, bells: Vec::new(), spare: Some(Interrupt::new()?) })
    }

    /// The wake-up descriptors of all waiting threads.
    pub fn bells(&self) -> Vec<Interrupt> {
        self.bells.clone()
    }

    /// Registers a thread that begins to wait.
    fn enter(&mut self) -> Waiter {
        self.count += 1;
        let bell = self.spare.take().or_else(|| Interrupt::new().ok());
        self.bells.extend(bell.clone());
        Waiter { bell }
    }

    /// Removes a thread that no longer waits. Returns true if it was the last one.
    fn leave(&mut self, waiter: Waiter) -> bool {
        self.count -= 1;
        if let Some(bell) = waiter.bell {
            self.bells.retain(|other| !other.is_the_same(&bell));
            self.spare = Some(bell);
        }
        self.count == 0
    }

    /// Makes all other waiting threads check again.
    fn ring_others(&self, bell: Option<&Interrupt>) {
        let is_own = |other: &Interrupt| bell.is_some_and(|bell| bell.is_the_same(other));
        self.bells.iter().filter(|other| !is_own(other)).for_each(Interrupt::set);
    }
}

/// A waiting thread.
#[derive(Debug)]
struct Waiter {
    /// `None` if no descriptor was left: the thread polls.
    bell: Option<Interrupt>,
}

/// Waits for one of the existing slots, when no further one can be allocated for the reason `why`.
pub(super) fn wait_for_slot(
    shared: &Shared,
    size: u64,
    why: AcquireError,
    interrupt: &Interrupt,
) -> Result<Slot, AcquireError> {
    let (limit, has_slots) = shared.with(|state| (state.config.reader_timeout, state.has_slots(size)));
    if !has_slots {
        return Err(why);
    }
    // A reader that holds the stream back is evicted after `reader_timeout`: a slot that is not
    // free long after that never will be.
    let timeout = Timeout::after(Some(limit.saturating_mul(2)));
    let slot = |state: &mut State| if state.closed { Some(None) } else { state.make_do(size).map(Some) };
    match wait_until(shared, interrupt, timeout, Awaited::Slot, slot)? {
        Some(Some(slot)) => Ok(slot),
        Some(None) => Err(AcquireError::Closed),
        None => Err(why),
    }
}

pub(super) fn drain(shared: &Shared, timeout: Duration, interrupt: &Interrupt) -> Result<bool, Interrupted> {
    let drained = |state: &mut State| {
        let mut lossless = state.links.iter().filter(|link| link.is_lossless());
        let on_the_way = |link: &Link| link.downloads && state.is_downloading();
        lossless.all(|link| link.is_idle() && !on_the_way(link)).then_some(())
    };
    let timeout = Timeout::after(Some(timeout));
    wait_until(shared, interrupt, timeout, Awaited::Readers, drained).map(|drained| drained.is_some())
}

pub(super) fn wait_for_reader(shared: &Shared, interrupt: &Interrupt) -> Result<(), Interrupted> {
    let is_there = |state: &mut State| (!state.links.is_empty()).then_some(());
    wait_until(shared, interrupt, Timeout::Never, Awaited::Readers, is_there).map(|_| ())
}

/// The awaited condition.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Awaited {
    /// Room for one more frame at every lossless reader. Polling stops at the first reader without
    /// room.
    Room,
    /// A slot. Readers that lose frames, and upstream, free some too, without a notification.
    Slot,
    /// Another change of the readers. Lossless readers, and readers that join or leave, wake the
    /// waiting thread.
    Readers,
}

/// Waits until `condition` returns a value. Checks whenever a lossless reader ends a lease or a
/// reader joins or leaves, and polls where no notification comes. Returns `None` on timeout. Evicts
/// lossless readers that are full for longer than allowed.
pub(super) fn wait_until<T>(
    shared: &Shared,
    interrupt: &Interrupt,
    timeout: Timeout,
    awaited: Awaited,
    condition: impl FnMut(&mut State) -> Option<T>,
) -> Result<Option<T>, Interrupted> {
    let mut waiter = None;
    let result = wait_with(&mut waiter, shared, interrupt, timeout, awaited, condition);
    if let Some(waiter) = waiter {
        shared.with(|state| {
            if state.waiters.leave(waiter) {
                state.end_waits();
            }
        });
    }
    result
}

/// Implements [`wait_until`]. The thread is registered from its first sleep on.
fn wait_with<T>(
    waiter: &mut Option<Waiter>,
    shared: &Shared,
    interrupt: &Interrupt,
    timeout: Timeout,
    awaited: Awaited,
    mut condition: impl FnMut(&mut State) -> Option<T>,
) -> Result<Option<T>, Interrupted> {
    let mut spin = Spin::default();
    let backoff = Backoff::of_a_waiter();
    loop {
        let mut state = shared.lock();
        if awaited == Awaited::Room {
            state.look_for_room();
        } else {
            state.reclaim();
        }
        if let Some(result) = condition(&mut state) {
            shared.finish(state);
            return Ok(Some(result));
        }
        if interrupt.is_set() {
            shared.finish(state);
            return Err(Interrupted);
        }
        if timeout.is_over() {
            shared.finish(state);
            return Ok(None);
        }
        // GPU work is polled at the intervals below instead. The state is unlocked first: the
        // threads that admit readers and notice their deaths need it.
        if !state.fences_pending && !spin.is_over() {
            shared.finish(state);
            spin.again();
            continue;
        }
        let deadline = state.look_at_blockers();
        let bell = waiter.get_or_insert_with(|| state.waiters.enter()).bell.as_ref();
        // Set the waiting flags, then re-check every reader: a release before the flag is visible
        // sends no wake-up. A release with GPU work under way has to be polled, so its reader need
        // not send a wake-up, unless polls have become rare. If no flag is set, nothing has changed
        // since the first check except events that wake this thread anyway.
        let lossless = || state.links.iter().filter(|link| link.is_lossless());
        // Read once: a reader whose flag is not set is polled.
        let looks_are_rare = backoff.is_slow();
        let is_looked_at = |link: &Link| link.is_fenced() && !looks_are_rare;
        let told = |link: &Link| (link.info.id, link.announce_wait());
        let told: Vec<_> = lossless().filter(|link| !is_looked_at(link)).map(told).collect();
        let looks = lossless().any(is_looked_at);
        bell.into_iter().for_each(Interrupt::clear);
        if !told.is_empty() {
            state.reclaim();
            if let Some(result) = condition(&mut state) {
                shared.finish(state);
                return Ok(Some(result));
            }
        }
        // No notification follows the end of GPU work.
        let looks = looks || awaited == Awaited::Slot || state.gpu_is_busy();
        let look = if looks { backoff.next() } else { Timeout::Never };
        shared.finish(state);
        let heard = sleep(bell, interrupt, &told, timeout.min(deadline).min(look));
        let mut state = shared.lock();
        if heard.any {
            // The value taken here may have been meant for another waiting thread.
            state.waiters.ring_others(bell);
        }
        for (reader, ending) in heard.ended {
            state.end_link_of(reader, &ending, false);
        }
        shared.finish(state);
    }
}

/// The events that ended a sleep.
struct Heard {
    /// A reader sent a wake-up.
    any: bool,
    /// Readers whose wake-up socket ended, and the reasons.
    ended: Vec<(u64, Ending)>,
}

/// Sleeps until a reader sends a wake-up, the thread is interrupted, or time is over.
fn sleep(
    bell: Option<&Interrupt>,
    interrupt: &Interrupt,
    wakes: &[(u64, Arc<Wake>)],
    timeout: Timeout,
) -> Heard {
    let timeout = bell.map_or(timeout.min(Timeout::after(Some(WITHOUT_A_BELL))), |_| timeout);
    let mut fds = vec![PollFd::new(interrupt, PollFlags::IN)];
    fds.extend(wakes.iter().map(|(_, wake)| PollFd::new(&**wake, PollFlags::IN)));
    fds.extend(bell.iter().map(|bell| PollFd::new(*bell, PollFlags::IN)));
    if wait(&mut fds, timeout).is_err() {
        // The kernel lacks memory for poll(2): sleep instead of spinning.
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut heard = Heard { any: false, ended: Vec::new() };
    for (fd, (reader, wake)) in fds[1..].iter().zip(wakes).filter(|(fd, _)| is_ready(fd)) {
        heard.any = true;
        // A half-closed socket would make every poll return at once.
        let is_over = fd.revents().intersects(PollFlags::HUP | PollFlags::ERR);
        let ending = match wake.drain() {
            Drained::Open if !is_over => continue,
            Drained::Open | Drained::Closed => Ending::new(Reason::Stopped, "it hung up"),
            Drained::Descriptor => Ending::new(Reason::Violation, SENT_OVER_WAKE),
        };
        heard.ended.push((*reader, ending));
    }
    heard
}

impl State {
    /// Records the end of the last wait: no reader is waited for, and none needs to send wake-ups.
    fn end_waits(&mut self) {
        for link in &mut self.links {
            link.end_wait();
            link.blocked = None;
        }
    }

    /// Polls full readers, up to the first lossless one that stays full: the exporter does not wait
    /// for those behind it yet.
    fn look_for_room(&mut self) {
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
                pending |= link.collect_released(&mut ended, timeout)?;
                blocked = link.is_lossless() && link.is_full();
            }
            Ok(())
        });
        self.fences_pending |= pending;
        self.end_leases(ended);
    }

    /// Evicts lossless readers that have been full for too long, reports those that soon will be,
    /// and returns the time of the next check.
    fn look_at_blockers(&mut self) -> Timeout {
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
                link.collect_released(&mut ended, timeout)?;
            }
            if !holds_back(link) {
                link.blocked = None;
                return Ok(());
            }
            let blocked = link.blocked_for(now);
            if blocked >= limit {
                let text = format!("it held the stream back for longer than reader-timeout ({limit:?})");
                return Err(Ending::new(Reason::TooSlow, text));
            }
            if let Some((_, told)) = &mut link.blocked {
                if blocked >= notice && !*told {
                    *told = true;
                    notices.push(Notice::ReaderBlocking { reader: link.info.clone(), blocked_for: blocked });
                }
                let until = if *told { limit } else { notice };
                next = next.min(Timeout::after(Some(until.saturating_sub(blocked))));
            }
            Ok(())
        });
        self.notices.extend(notices);
        self.end_leases(ended);
        next
    }
}
