// SPDX-License-Identifier: MIT OR Apache-2.0

//! Backpressure: waits for readers, for a slot, and for the end of the stream.

use crate::{
    Interrupt,
    exporter::{
        error::Interrupted,
        link::{Ending, Link},
        parts::WaiterId,
        slot::{AcquireError, Purpose, Slot, Vacancy},
        state::{Shared, State},
    },
    sys::backoff::{Backoff, Spin},
    sys::{Drained, Timeout, Wake, is_ready, wait},
};
use rustix::event::{PollFd, PollFlags};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Polling interval of a waiting thread without a wake-up descriptor, for lack of descriptors.
const WITHOUT_INTERRUPT: Duration = Duration::from_millis(1);

/// A wait that ends so much later than planned is one of a process that was stopped. Its time
/// counts for no reader, which may have been stopped, too.
const STOPPED: Duration = Duration::from_secs(1);

/// Waits for one of the existing slots of at least `size` bytes, for a copy. `None` if there are
/// none, or none became free in time.
pub fn wait_for_slot(
    shared: &Shared,
    interrupt: &Interrupt,
    timeout: Timeout,
    size: u64,
) -> Result<Option<Slot>, AcquireError> {
    let (limit, has_slots) = shared.with(|state| (state.config().reader_timeout, state.has_slots(size)));
    if !has_slots {
        return Ok(None);
    }
    // A reader that holds the stream back is evicted after `reader_timeout`: a slot that is not
    // free long after that never will be.
    let timeout = timeout.min(Timeout::after(Some(limit.saturating_mul(2))));
    let slot =
        |state: &mut State| if state.is_closed() { Some(None) } else { state.reuse_slot(size).map(Some) };
    match wait_until(shared, interrupt, timeout, Awaited::Slot, slot)? {
        Some(None) => Err(AcquireError::Closed),
        slot => Ok(slot.flatten()),
    }
}

/// Waits until another attempt to acquire a slot for a pool is of use, after one failed for this
/// reason. Returns false on timeout.
pub fn wait_for_pool_slot(
    shared: &Shared,
    interrupt: &Interrupt,
    timeout: Timeout,
    size: u64,
    why: &AcquireError,
) -> Result<bool, Interrupted> {
    let is_full = matches!(why, AcquireError::Exhausted { .. });
    if !is_full && !shared.with(|state| state.has_slots(size)) {
        return Ok(false);
    }
    let is_useful = |state: &mut State| match state.place(size, Purpose::Pool) {
        // There is no memory.
        Ok(Vacancy::Unallocated(_)) => is_full.then_some(()),
        Err(AcquireError::Exhausted { .. } | AcquireError::Memory(_)) => None,
        Ok(Vacancy::Free(_)) | Err(_) => Some(()),
    };
    Ok(wait_until(shared, interrupt, timeout, Awaited::Slot, is_useful)?.is_some())
}

pub fn drain(shared: &Shared, interrupt: &Interrupt, timeout: Timeout) -> Result<bool, Interrupted> {
    let drained = |state: &mut State| {
        let mut lossless = state.readers().lossless();
        let on_the_way = |link: &Link| link.downloads() && state.is_downloading();
        lossless.all(|link| link.is_idle() && !on_the_way(link)).then_some(())
    };
    wait_until(shared, interrupt, timeout, Awaited::Readers, drained).map(|drained| drained.is_some())
}

pub fn wait_for_reader(
    shared: &Shared,
    interrupt: &Interrupt,
    timeout: Timeout,
) -> Result<bool, Interrupted> {
    let is_there = |state: &mut State| (!state.readers().present().is_empty()).then_some(());
    wait_until(shared, interrupt, timeout, Awaited::Readers, is_there).map(|reader| reader.is_some())
}

/// The awaited condition.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Awaited {
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
pub fn wait_until<T>(
    shared: &Shared,
    interrupt: &Interrupt,
    timeout: Timeout,
    awaited: Awaited,
    condition: impl FnMut(&mut State) -> Option<T>,
) -> Result<Option<T>, Interrupted> {
    let mut waiter = None;
    let result = wait_with(&mut waiter, shared, interrupt, timeout, awaited, condition);
    if let Some(waiter) = waiter {
        shared.with(|state| state.end_wait(waiter.id));
    }
    result
}

/// A waiting thread. Its descriptor is open during the wait only, since a process may have many
/// exporters.
struct Waiter {
    id: WaiterId,
    /// `None` if no descriptor was left: the thread polls.
    own: Option<Interrupt>,
}

impl Waiter {
    fn new(state: &mut State) -> Self {
        let own = Interrupt::new().ok();
        Self { id: state.begin_wait(own.clone()), own }
    }
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
    let mut checked = None;
    let mut planned = Timeout::Never;
    let backoff = Backoff::of_a_waiter();
    loop {
        let mut state = shared.lock();
        if awaited == Awaited::Room {
            state.poll_full_readers();
        } else {
            state.reclaim();
        }
        if let Some(result) = condition(&mut state) {
            return Ok(Some(result));
        }
        if interrupt.is_set() {
            return Err(Interrupted);
        }
        if timeout.is_over() {
            return Ok(None);
        }
        // GPU work is polled at the intervals below instead. The state is unlocked first: the
        // threads that admit readers and notice their deaths need it.
        if !state.gpu_is_busy() && !spin.is_over() {
            drop(state);
            spin.again();
            continue;
        }
        let deadline = {
            let now = Instant::now();
            let was_stopped =
                matches!(planned, Timeout::At(at) if now.saturating_duration_since(at) >= STOPPED);
            let last = checked.replace(now).filter(|_| !was_stopped);
            let standstill = last.map_or(Duration::ZERO, |last| now.duration_since(last));
            state.check_blocking_readers(awaited == Awaited::Room, standstill)
        };
        let &mut Waiter { id, ref own } = waiter.get_or_insert_with(|| Waiter::new(&mut state));
        let own = own.as_ref();
        // Set the waiting flags, then re-check every reader: a release before the flag is visible
        // sends no wake-up. A release with GPU work under way has to be polled, so its reader need
        // not send a wake-up, unless polls have become rare. If no flag is set, nothing has changed
        // since the first check except events that wake this thread anyway.
        // Read once: a reader whose flag is not set is polled.
        let polls_are_rare = backoff.is_slow();
        let is_polled = |link: &Link| link.leases.is_fenced() && !polls_are_rare;
        let announce = |link: &Link| (link.info.id, link.announce_wait());
        let announced: Vec<_> =
            state.readers().lossless().filter(|link| !is_polled(link)).map(announce).collect();
        let must_poll = state.readers().lossless().any(is_polled);
        own.into_iter().for_each(Interrupt::clear);
        if !announced.is_empty() {
            state.reclaim();
            if let Some(result) = condition(&mut state) {
                return Ok(Some(result));
            }
        }
        // No notification follows the end of GPU work.
        let must_poll = must_poll || awaited == Awaited::Slot || state.gpu_is_busy();
        let poll = if must_poll { backoff.next() } else { Timeout::Never };
        drop(state);
        planned = timeout.min(deadline).min(poll);
        let wake_ups = sleep(own, interrupt, &announced, planned);
        let mut state = shared.lock();
        if wake_ups.any {
            // The value taken here may have been meant for another waiting thread.
            state.interrupt_other_waits(Some(id));
        }
        for (reader, ending) in wake_ups.ended {
            state.end_link_of(reader, &ending, false);
        }
        drop(state);
    }
}

/// The events that ended a sleep.
struct WakeUps {
    /// A reader sent a wake-up.
    any: bool,
    /// Readers whose wake-up socket ended, and the reasons.
    ended: Vec<(u64, Ending)>,
}

/// Sleeps until a reader sends a wake-up, the thread is interrupted, or time is over.
fn sleep(
    own: Option<&Interrupt>,
    interrupt: &Interrupt,
    wakes: &[(u64, Arc<Wake>)],
    timeout: Timeout,
) -> WakeUps {
    let timeout = own.map_or(timeout.min(Timeout::after(Some(WITHOUT_INTERRUPT))), |_| timeout);
    let mut fds = vec![PollFd::new(interrupt, PollFlags::IN)];
    fds.extend(wakes.iter().map(|(_, wake)| PollFd::new(&**wake, PollFlags::IN)));
    fds.extend(own.iter().map(|own| PollFd::new(*own, PollFlags::IN)));
    if wait(&mut fds, timeout).is_err() {
        // The kernel lacks memory for poll(2): sleep instead of spinning.
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut wake_ups = WakeUps { any: false, ended: Vec::new() };
    for (fd, (reader, wake)) in fds[1..].iter().zip(wakes).filter(|(fd, _)| is_ready(fd)) {
        wake_ups.any = true;
        // A half-closed socket would make every poll return at once.
        let is_over = fd.revents().intersects(PollFlags::HUP | PollFlags::ERR);
        let drained = match wake.drain() {
            Drained::Open if is_over => Drained::Closed,
            drained => drained,
        };
        wake_ups.ended.extend(Ending::of_wake(drained).map(|ending| (*reader, ending)));
    }
    wake_ups
}
