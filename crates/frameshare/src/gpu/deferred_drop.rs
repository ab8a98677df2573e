// SPDX-License-Identifier: MIT OR Apache-2.0

//! Deferred drop: frees GPU resources once no GPU work uses them.
//!
//! Unmapping removes memory from under queued work, and destroys the whole context with it. Freeing
//! an allocation, or unregistering host memory, waits for all work of the context instead, and
//! meanwhile the driver lets no thread create a stream (measured on an H200, driver 580); behind a
//! stream that waits for a dead process's event, that never ends. A thread of the process therefore
//! waits for the work that the context has at that moment; a resource whose work never ends is
//! never freed.

use super::{
    blockable,
    poller::{Polled, Poller},
};
use crate::sys::PerProcess;
use frameshare_cuda::{Error, Status, context::Context, event::Event, stream::Stream};
use std::{
    any::Any,
    cell::Cell,
    ffi::c_void,
    ops::{Deref, DerefMut},
    ptr,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// The work of a context at one moment, or a part of it.
pub(crate) struct Work {
    gpu: Arc<Context>,
    /// Events behind it. `None` until one could be recorded: not while a stream of the context is
    /// captured, or memory is used up.
    done: Option<Vec<Event>>,
}

impl Work {
    /// The work at the time of the first poll.
    pub(crate) fn of(gpu: &Arc<Context>) -> Self {
        Self { gpu: gpu.clone(), done: None }
    }

    /// Records an event behind the present work. Does not wait.
    fn record(&mut self) -> Result<(), Error> {
        self.gpu.check_capture_pause()?;
        let done = Event::new(&self.gpu)?;
        done.record_context()?;
        self.done = Some(vec![done]);
        Ok(())
    }

    /// Returns whether the work is unfinished. Failed work uses nothing any more.
    pub(crate) fn is_pending(&mut self) -> bool {
        if self.done.is_none() {
            match work_of(&self.gpu) {
                Ok(done) => self.done = Some(vec![done]),
                // Not known yet.
                Err(error) => return error.is_deferrable() || error.is_out_of_memory(),
            }
        }
        let is_pending = |done: &Event| matches!(done.query(), Ok(Status::Pending));
        self.done.as_ref().is_some_and(|done| done.iter().any(is_pending))
    }
}

/// A resource, and the work that may still use it.
struct Waiting {
    work: Work,
    since: Instant,
    memory: Option<Box<dyn Any + Send>>,
    /// Dropped last.
    _deferred: DeferredDrop,
}

/// Counts a GPU resource or context that its owner has dropped and that waits for its deferred
/// drop.
#[derive(Debug)]
#[must_use = "dropping it ends the count"]
pub(crate) struct DeferredDrop(());

#[derive(Default)]
struct Deferred {
    number: Mutex<usize>,
    /// Notified when it decreases.
    less: Condvar,
}

static DEFERRED: PerProcess<Deferred> = PerProcess::new(Deferred::default);

impl Deferred {
    fn lock(&self) -> MutexGuard<'_, usize> {
        self.number.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DeferredDrop {
    pub(crate) fn new() -> Self {
        *DEFERRED.lock() += 1;
        Self(())
    }
}

impl Drop for DeferredDrop {
    fn drop(&mut self) {
        // A forked child has not counted those of its parent.
        let deferred = DEFERRED.get();
        let mut number = deferred.lock();
        *number = number.saturating_sub(1);
        deferred.less.notify_all();
    }
}

thread_local! {
    /// Context of the resource that this thread drops: what the resource owns was used by the same
    /// work, and is dropped with it.
    static DROPPING: Cell<*mut c_void> = const { Cell::new(ptr::null_mut()) };
}

static POLLER: PerProcess<Poller<Waiting>> = PerProcess::new(|| Poller::new("frameshare-drop"));

/// Waits until all GPU memory and contexts that exporters and readers of this process have dropped
/// are freed, for `patience` at most. Returns whether they are. They are freed as soon as the GPU
/// has finished with them, and readers that must drop imports first have done so, which is mostly
/// at once. Call it before destroying a CUDA context.
pub fn wait_for_deferred_drops(patience: Duration) -> bool {
    let deferred = DEFERRED.get();
    let waited = deferred.less.wait_timeout_while(deferred.lock(), patience, |number| *number > 0);
    *waited.unwrap_or_else(PoisonError::into_inner).0 == 0
}

/// Drops `memory` when the present work of the context is done: at once if it is, or if the context
/// is lost. For resources that the driver frees only then, blocking the calling thread.
pub(crate) fn drop_when_idle(gpu: &Arc<Context>, memory: impl Any + Send) {
    if DROPPING.get() == gpu.as_raw() {
        return;
    }
    let mut waiting = Waiting::new(gpu, memory);
    // Before driver 555 no event can be recorded behind all work: this thread would have to wait
    // for it.
    let is_unnamed = matches!(waiting.work.record(), Err(Error::Missing { .. }));
    if is_unnamed || waiting.is_pending() {
        POLLER.add(waiting);
    } else {
        waiting.free();
    }
}

/// Drops `memory`, a resource of the context `gpu`, when the work behind the events `done` is done:
/// all the work that uses it. With `None`, drops it when all present work of the context is done
/// (see [`DropWhenIdle`]). Does not wait.
///
/// With events nothing is recorded behind the whole context, which would invalidate stream captures
/// of other code. The driver may wait for other work of the context to free the resource: that is
/// left to a background thread, and begins only behind the streams that another process can block.
pub fn drop_behind(gpu: &Arc<Context>, done: Option<Vec<Event>>, memory: impl Any + Send) {
    if DROPPING.get() == gpu.as_raw() {
        return drop_when_idle(gpu, memory);
    }
    match done.zip(blockable::ends(gpu)) {
        None => drop_when_idle(gpu, memory),
        Some((done, blockable)) => {
            let mut waiting = Waiting::new(gpu, memory);
            waiting.work.done = Some(done.into_iter().chain(blockable).collect());
            POLLER.add(waiting);
        }
    }
}

/// Owner of a resource that may be freed only when no GPU work uses it. Dropping it never waits:
/// the resource is freed when the present work of the context is done, at once if it is, or if the
/// context is lost.
#[derive(Debug)]
#[must_use = "dropping it frees the resource"]
pub struct DropWhenIdle<T: Any + Send> {
    gpu: Arc<Context>,
    /// Taken when this is dropped.
    memory: Option<T>,
}

impl<T: Any + Send> DropWhenIdle<T> {
    /// Wraps `memory`, which work of the context `gpu` may use.
    pub fn new(gpu: &Arc<Context>, memory: T) -> Self {
        Self { gpu: gpu.clone(), memory: Some(memory) }
    }
}

impl<T: Any + Send> Deref for DropWhenIdle<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.memory.as_ref().expect("taken only when this is dropped")
    }
}

impl<T: Any + Send> DerefMut for DropWhenIdle<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.memory.as_mut().expect("taken only when this is dropped")
    }
}

impl<T: Any + Send> Drop for DropWhenIdle<T> {
    fn drop(&mut self) {
        drop_when_idle(&self.gpu, self.memory.take());
    }
}

impl Waiting {
    fn new(gpu: &Arc<Context>, memory: impl Any + Send) -> Self {
        let (work, since) = (Work::of(gpu), Instant::now());
        Self { work, since, memory: Some(Box::new(memory)), _deferred: DeferredDrop::new() }
    }

    /// Frees the memory: later, if a stream that another process can block has got work meanwhile.
    fn free(mut self) {
        // A resource that another one owns is freed with it: this thread has begun already.
        let _no_new_work = DROPPING.get().is_null().then(blockable::begin_freeing);
        match blockable::ends(&self.work.gpu) {
            Some(ends) if ends.is_empty() => drop(self),
            ends => {
                self.work.done = ends;
                POLLER.add(self);
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let outer = DROPPING.replace(self.work.gpu.as_raw());
        drop(self.memory.take());
        DROPPING.set(outer);
    }
}

impl Polled for Waiting {
    fn is_pending(&mut self) -> bool {
        if self.work.is_pending() {
            return true;
        }
        let has_waits = blockable::has_waits();
        if has_waits {
            // Else a reader whose frames are always late could keep the memory from being freed.
            blockable::hold_off_waits();
        }
        has_waits
    }

    fn quiet_since(&self) -> Instant {
        self.since
    }

    fn done(self) {
        self.free();
    }
}

/// Returns an event behind all work of a context. Waits for the work if the driver has no such
/// event.
fn work_of(gpu: &Arc<Context>) -> Result<Event, Error> {
    gpu.check_capture_pause()?;
    let work = Event::new(gpu)?;
    match work.record_context() {
        Err(Error::Missing { .. }) => work.record_context_blocking(&Stream::new(gpu)?)?,
        recorded => recorded?,
    }
    Ok(work)
}
