//! Giving memory up once no GPU work uses it.
//!
//! Unmapping takes memory away from under the work that is queued on it, and with it the whole context. To free an
//! allocation, or to unregister host memory, waits for all work of the context instead, and meanwhile the driver lets
//! nobody make a stream (measured on an H200, driver 580): behind a stream that a dead process's event has stuck, that
//! is for ever. So the work of the context at that moment is waited for, on a thread that serves the whole process; what
//! it never gets to is never given up.

use crate::lookout::{Lookout, Pending};
use frameshare_cuda::{Error, Status, context::Context, event::Event, stream::Stream};
use once_cell::sync::Lazy;
use std::{
    any::Any,
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// The work that a context has at a moment.
pub(crate) struct Work {
    gpu: Arc<Context>,
    /// `None` as long as it cannot be named: while a stream of the context captures, or memory is used up.
    done: Option<Event>,
}

impl Work {
    /// What it has when this is first asked for its state.
    pub(crate) fn of(gpu: &Arc<Context>) -> Self {
        Self { gpu: gpu.clone(), done: None }
    }

    /// Names the work that the context has by now. Does not wait.
    fn record(&mut self) -> Result<(), Error> {
        let done = Event::new(&self.gpu)?;
        done.record_context()?;
        self.done = Some(done);
        Ok(())
    }

    /// Whether the work is not done. Work that failed uses nothing any more.
    pub(crate) fn is_pending(&mut self) -> bool {
        if self.done.is_none() {
            match work_of(&self.gpu) {
                Ok(done) => self.done = Some(done),
                // Whether there is work remains to be seen.
                Err(error) => return error.is_deferrable() || error.is_out_of_memory(),
            }
        }
        self.done.as_ref().is_some_and(|done| matches!(done.query(), Ok(Status::Pending)))
    }
}

/// Memory, and the work that may still use it.
struct Waiting {
    work: Work,
    since: Instant,
    _memory: Box<dyn Any + Send>,
    /// Goes last.
    _in_hand: InHand,
}

/// Stands for GPU memory or a context that its owner has let go of and that some thread still has.
#[derive(Debug)]
pub(crate) struct InHand(());

/// How many there are, and that one went.
static IN_HAND: Mutex<usize> = Mutex::new(0);
static LESS: Condvar = Condvar::new();

impl InHand {
    pub(crate) fn new() -> Self {
        *IN_HAND.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        Self(())
    }
}

impl Drop for InHand {
    fn drop(&mut self) {
        *IN_HAND.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        LESS.notify_all();
    }
}

static LOOKOUT: Lazy<Lookout<Waiting>> = Lazy::new(|| Lookout::new("frameshare-idle"));

/// Waits until the GPU memory and the contexts that exporters and readers of this process have let go of are given up, for
/// `patience` at most; whether they are. That is as soon as the GPU is done with them, and those readers that must close
/// imports first have, mostly at once: for who must know, because a CUDA context is about to be destroyed, say.
pub fn wait_until_given_up(patience: Duration) -> bool {
    let in_hand = IN_HAND.lock().unwrap_or_else(PoisonError::into_inner);
    let waited = LESS.wait_timeout_while(in_hand, patience, |in_hand| *in_hand > 0);
    *waited.unwrap_or_else(PoisonError::into_inner).0 == 0
}

/// Drops `memory` when the work that the context has by now is done: at once if it is, or if the context is lost. For what
/// the driver gives up only then, and would have this thread wait for.
pub(crate) fn drop_when_idle(gpu: &Arc<Context>, memory: impl Any + Send) {
    let mut waiting = Waiting::new(gpu, memory);
    // Before driver 555 the work cannot be named: this thread would have to wait for it.
    let is_unnamed = matches!(waiting.work.record(), Err(Error::Missing { .. }));
    if is_unnamed || waiting.is_pending() {
        LOOKOUT.look_at(waiting);
    }
}

/// The same for those who must never wait, as a driver does that is too old to name the work: always on the thread.
pub(crate) fn drop_elsewhere_when_idle(gpu: &Arc<Context>, memory: impl Any + Send) {
    LOOKOUT.look_at(Waiting::new(gpu, memory));
}

/// Holds what may be given up only when no GPU work uses it. To drop this waits for nothing: what it holds goes when the
/// work that the context has by then is done, at once if it is, or if the context is lost.
#[derive(Debug)]
pub struct WhenIdle<T: Any + Send> {
    gpu: Arc<Context>,
    /// Taken when this is dropped.
    memory: Option<T>,
}

impl<T: Any + Send> WhenIdle<T> {
    /// `gpu` is the context whose work may use `memory`.
    pub fn new(gpu: &Arc<Context>, memory: T) -> Self {
        Self { gpu: gpu.clone(), memory: Some(memory) }
    }
}

impl<T: Any + Send> Drop for WhenIdle<T> {
    fn drop(&mut self) {
        drop_when_idle(&self.gpu, self.memory.take());
    }
}

impl Waiting {
    fn new(gpu: &Arc<Context>, memory: impl Any + Send) -> Self {
        let (work, since) = (Work::of(gpu), Instant::now());
        Self { work, since, _memory: Box::new(memory), _in_hand: InHand::new() }
    }
}

impl Pending for Waiting {
    fn is_pending(&mut self) -> bool {
        self.work.is_pending()
    }

    fn quiet_since(&self) -> Instant {
        self.since
    }
}

/// Stands for all work of a context. Waits for it where the driver is too old to name it.
fn work_of(gpu: &Arc<Context>) -> Result<Event, Error> {
    let work = Event::new(gpu)?;
    match work.record_context() {
        Err(Error::Missing { .. }) => work.record_context_blocking(&Stream::new(gpu)?)?,
        recorded => recorded?,
    }
    Ok(work)
}
