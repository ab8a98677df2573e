// SPDX-License-Identifier: MIT OR Apache-2.0

//! Streams that another process can block: those that record events which that process can record
//! as well, which stay blocked if it dies, and those that wait for frames which it writes.
//!
//! A call that waits for all work of a context does not return while such a stream is blocked, not
//! even if the stream has been destroyed, and meanwhile the driver lets no thread create a stream,
//! record an event or copy (measured on an H200, driver 580: cuMemHostUnregister, cuMemFree,
//! cuMemFreeHost). So memory whose release is such a call is dropped behind these streams, and they
//! get no work while it is freed.

use crate::{monotonic_ns, sys::PerProcess};
use frameshare_cuda::{Status, context::Context, event::Event, stream::Stream};
use std::{
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        TryLockError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// How long work for such a stream waits for memory that is being freed, or is to be. The driver
/// frees it behind other work of the context, which mostly takes less than a frame.
const PATIENCE: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_micros(50);
/// Time from one [`hold_off_waits`] to the next. A process that frees memory for each frame is not
/// to get all frames late.
const PERIOD: Duration = Duration::from_millis(500);

/// Locked for writing while memory is freed, and for reading while such a stream gets work.
static FREEING: PerProcess<RwLock<()>> = PerProcess::new(RwLock::default);

static STREAMS: PerProcess<Mutex<Vec<Weak<Stream>>>> = PerProcess::new(Mutex::default);

/// Tells whether streams wait for frames: see [`set_waits`].
static HAS_WAITS: PerProcess<OnceLock<fn() -> bool>> = PerProcess::new(OnceLock::default);

/// Time, in ns of CLOCK_MONOTONIC, until which no stream may begin to wait for a frame.
static NO_WAITS_UNTIL: PerProcess<AtomicU64> = PerProcess::new(AtomicU64::default);

/// Keeps streams from waiting for frames for a while, unless that was done a short time ago: those
/// that wait already mostly continue within that time.
pub(super) fn hold_off_waits() {
    let (until, last) = (monotonic_ns() + PATIENCE.as_nanos() as u64, NO_WAITS_UNTIL.load(Ordering::SeqCst));
    if until >= last + PERIOD.as_nanos() as u64 {
        NO_WAITS_UNTIL.store(until, Ordering::SeqCst);
    }
}

/// Names the function that tells whether streams of this process wait for frames.
pub(crate) fn set_waits(has_waits: fn() -> bool) {
    HAS_WAITS.get_or_init(|| has_waits);
}

/// Returns whether a stream may begin to wait for a frame: not when memory is to be freed.
pub(crate) fn may_wait() -> bool {
    monotonic_ns() >= NO_WAITS_UNTIL.load(Ordering::SeqCst)
}

/// Returns whether streams wait for frames.
pub(super) fn has_waits() -> bool {
    HAS_WAITS.get().get().is_some_and(|has_waits| has_waits())
}

fn streams() -> MutexGuard<'static, Vec<Weak<Stream>>> {
    STREAMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds a stream that another process can block.
pub(super) fn add(stream: &Arc<Stream>) {
    let mut streams = streams();
    streams.retain(|stream| stream.strong_count() > 0);
    streams.push(Arc::downgrade(stream));
}

/// Keeps such streams from getting work while the caller frees memory.
pub(super) fn begin_freeing() -> RwLockWriteGuard<'static, ()> {
    FREEING.get().write().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps memory from being freed while the caller gives work to such a stream. `None` if memory is
/// being freed and that does not end in time: it may be the caller that it waits for.
pub(super) fn begin_work() -> Option<RwLockReadGuard<'static, ()>> {
    let until = Instant::now() + PATIENCE;
    loop {
        match FREEING.get().try_read() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() > until => return None,
            Err(TryLockError::WouldBlock) => thread::sleep(PAUSE),
        }
    }
}

/// Returns an event behind the present work of each such stream of a context that has work. `None`
/// if the driver fails.
pub(super) fn ends(gpu: &Arc<Context>) -> Option<Vec<Event>> {
    // Unlocked before the calls: creating an event may wait for another thread's call.
    let streams: Vec<_> = streams().iter().filter_map(Weak::upgrade).collect();
    let is_busy = |stream: &Arc<Stream>| {
        stream.context().as_raw() == gpu.as_raw() && matches!(stream.query(), Ok(Status::Pending))
    };
    streams.iter().filter(|stream| is_busy(stream)).map(|stream| Event::behind(stream, gpu).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_waits_for_freeing_but_not_without_end() {
        let freeing = begin_freeing();
        assert!(begin_work().is_none());
        drop(freeing);
        assert!(begin_work().is_some());
    }
}
