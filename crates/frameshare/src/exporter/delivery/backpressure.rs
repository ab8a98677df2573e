// SPDX-License-Identifier: MIT OR Apache-2.0

//! Backpressure: waits for readers, for a slot, and for the end of the stream.

use crate::{
    Interrupt,
    exporter::{
        error::Interrupted,
        resources::Resources,
        slot::{AcquireError, Slot},
        state::Shared,
    },
    sys::backoff::{Backoff, Spin},
    sys::{Drained, Timeout, Wake, is_ready, wait},
};
use frameshare_core::exporter::{
    ending::Ending,
    link::Link,
    service,
    slot::{NoSlot, Purpose, Vacancy},
    state::State,
    wait::{Plan, Wait},
};
use rustix::event::{PollFd, PollFlags};
use std::{sync::Arc, time::Duration};

pub use frameshare_core::exporter::wait::Awaited;

/// Polling interval of a waiting thread without a wake-up descriptor, for lack of descriptors.
const WITHOUT_INTERRUPT: Duration = Duration::from_millis(1);

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
    let slot = |state: &mut State<Resources>| {
        if state.is_closed() { Some(None) } else { state.reuse_slot(size).map(Some) }
    };
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
    let is_useful = |state: &mut State<Resources>| match state.place(size, Purpose::Pool) {
        // There is no memory.
        Ok(Vacancy::Unallocated(_)) => is_full.then_some(()),
        Err(NoSlot::Exhausted { .. } | NoSlot::Memory(_)) => None,
        Ok(Vacancy::Free(_)) | Err(_) => Some(()),
    };
    Ok(wait_until(shared, interrupt, timeout, Awaited::Slot, is_useful)?.is_some())
}

pub fn drain(shared: &Shared, interrupt: &Interrupt, timeout: Timeout) -> Result<bool, Interrupted> {
    let drained = |state: &mut State<Resources>| {
        let mut lossless = state.readers().lossless();
        let on_the_way = |link: &Link<Resources>| link.downloads() && state.is_downloading();
        lossless.all(|link| link.is_idle() && !on_the_way(link)).then_some(())
    };
    wait_until(shared, interrupt, timeout, Awaited::Readers, drained).map(|drained| drained.is_some())
}

pub fn wait_for_reader(
    shared: &Shared,
    interrupt: &Interrupt,
    timeout: Timeout,
) -> Result<bool, Interrupted> {
    let is_there = |state: &mut State<Resources>| (!state.readers().present().is_empty()).then_some(());
    wait_until(shared, interrupt, timeout, Awaited::Readers, is_there).map(|reader| reader.is_some())
}

/// Waits until `condition` returns a value. Checks whenever a lossless reader ends a lease or a
/// reader joins or leaves, and polls where no notification comes. Returns `None` on timeout. Evicts
/// lossless readers that are full for longer than allowed.
pub fn wait_until<T>(
    shared: &Shared,
    interrupt: &Interrupt,
    timeout: Timeout,
    awaited: Awaited,
    condition: impl FnMut(&mut State<Resources>) -> Option<T>,
) -> Result<Option<T>, Interrupted> {
    let mut wait = Wait::new(awaited);
    let result = wait_with(&mut wait, shared, interrupt, timeout, condition);
    if wait.is_registered() {
        shared.with(|state| wait.end(state));
    }
    result
}

/// Implements [`wait_until`]. The descriptor of a waiting thread is open during the wait only,
/// since a process may have many exporters.
fn wait_with<T>(
    wait: &mut Wait,
    shared: &Shared,
    interrupt: &Interrupt,
    timeout: Timeout,
    mut condition: impl FnMut(&mut State<Resources>) -> Option<T>,
) -> Result<Option<T>, Interrupted> {
    let (mut spin, mut own) = (Spin::default(), None);
    let backoff = Backoff::of_a_waiter();
    loop {
        let mut state = shared.lock();
        if let Some(result) = wait.check(&mut state, &mut condition) {
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
        // Read once: a reader whose flag is not set is polled.
        let (make, polls_are_rare) = (|| Interrupt::new().ok(), backoff.is_slow());
        let plan = match wait.prepare(&mut state, &mut own, make, polls_are_rare, &mut condition) {
            Ok(result) => return Ok(Some(result)),
            Err(plan) => plan,
        };
        let Plan { announced, at_most, polls } = plan;
        let wake_of = |link: &Link<Resources>| (link.info.id, link.connection().wake().clone());
        let present = state.readers().present().iter();
        let wakes: Vec<_> = present.filter(|link| announced.contains(&link.info.id)).map(wake_of).collect();
        drop(state);
        let poll = if polls { backoff.next() } else { Timeout::Never };
        let until = timeout.min(Timeout::after(at_most)).min(poll);
        wait.sleeps(until.at());
        let wake_ups = sleep(own.as_ref(), interrupt, &wakes, until);
        shared.with(|state| wait.note_wake_ups(state, wake_ups.any, wake_ups.ended));
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
        wake_ups.ended.extend(service::ending_of(drained).map(|ending| (*reader, ending)));
    }
    wake_ups
}
