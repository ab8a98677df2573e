// SPDX-License-Identifier: MIT OR Apache-2.0

//! Service thread: one per process serves all exporters, and another one watches the exporters of
//! all readers.
//!
//! A [`Task`] is the background work of one stream. It waits for descriptors, times and wake-ups,
//! and handles them in turns. One thread, which holds the baton, waits for the descriptors of all
//! tasks and runs their turns one after another. Before an operation that may block, such as a lock
//! that another thread holds, a call to a GPU or a file system, or foreign code, it lends the baton
//! ([`before_blocking`]): if the turn takes longer than a millisecond, another thread takes the
//! baton, and serves all other tasks meanwhile. A turn that blocks thus delays the others for that
//! time, and no longer. The other thread starts with the first loan beside other tasks, and sleeps
//! unless a loan takes too long.
//!
//! The threads start with the first task and end with the last one. A forked child has none of
//! them: it gets its own with its first task, and tasks of its parent do nothing there.

mod interests;
mod schedule;
mod threads;

pub(crate) use interests::Interests;
pub(crate) use threads::{before_blocking, holds_baton};

use crate::sys::{Epoll, PerProcess, Timeout};
use std::{
    fmt, io,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};
use threads::Threads;

/// The background work of one stream.
pub(crate) trait Task: Send + 'static {
    /// Names the descriptors that the task waits for.
    type Key: Copy + Ord + Send;

    /// Handles the events of these descriptors, whatever else is due, and names the descriptors to
    /// wait for. Never called by two threads at once.
    fn turn(&mut self, ready: &[Self::Key], interests: &mut Interests<Self::Key>) -> Next;

    /// Tells the stream that a turn has panicked: the task has no other turn, and is dropped.
    fn fail(&mut self) {}
}

/// The next turn of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// After an event or a wake-up, or at this time.
    At(Timeout),
    /// None: the task is dropped.
    End,
}

/// Starts tasks on the threads of one name.
pub(crate) struct Service {
    name: &'static str,
    threads: Mutex<Weak<Threads>>,
}

/// The service thread of all exporters.
pub(crate) static EXPORTERS: PerProcess<Service> = PerProcess::new(|| Service::new("frameshare"));

/// Handle of a task. Dropping it does not end the task.
pub(crate) struct Handle {
    threads: Arc<Threads>,
    id: u32,
}

/// A task and its registrations, whatever its keys are.
trait Run: Send {
    fn run(&mut self, epoll: &Epoll, ready: &[u32]) -> Next;

    fn fail(&mut self);

    /// Removes the task's registrations.
    fn end(&mut self, epoll: &Epoll);
}

struct Registering<T: Task> {
    interests: Interests<T::Key>,
    task: T,
}

impl<T: Task> Run for Registering<T> {
    fn run(&mut self, epoll: &Epoll, ready: &[u32]) -> Next {
        let ready = self.interests.fired(ready);
        let Next::At(timeout) = self.task.turn(&ready, &mut self.interests) else { return Next::End };
        let retry = self.interests.apply(epoll);
        Next::At(retry.map_or(timeout, |at| timeout.min(Timeout::At(at))))
    }

    fn fail(&mut self) {
        self.task.fail();
    }

    fn end(&mut self, epoll: &Epoll) {
        self.interests.clear(epoll);
    }
}

impl Service {
    pub(crate) const fn new(name: &'static str) -> Self {
        Self { name, threads: Mutex::new(Weak::new()) }
    }

    /// Reserves a place for a task, which can be woken from now on.
    ///
    /// # Errors
    /// A lack of descriptors.
    pub fn reserve(&self) -> io::Result<Handle> {
        let mut current = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let threads = match current.upgrade() {
            Some(threads) => threads,
            None => {
                let threads = Threads::new(self.name)?;
                *current = Arc::downgrade(&threads);
                threads
            }
        };
        let id = threads.lock().schedule.reserve();
        Ok(Handle { threads, id })
    }
}

impl Handle {
    /// Starts the task.
    ///
    /// # Errors
    /// The system grants no thread.
    pub fn start<T: Task>(&self, task: T) -> io::Result<()> {
        let interests = Interests::new(self.id);
        self.threads.start(self.id, Box::new(Registering { interests, task }))
    }

    /// Makes a turn due at once.
    pub fn wake(&self) {
        self.threads.change(|schedule| schedule.wake(self.id));
    }

    /// Makes a turn due after this time at the latest.
    pub fn wake_within(&self, time: Duration) {
        let at = Instant::now() + time;
        self.threads.change(|schedule| schedule.wake_by(self.id, at));
    }

    /// Makes a turn due after this time, unless there is one before; in place of earlier calls.
    pub fn wake_after(&self, time: Duration) {
        let at = Instant::now() + time;
        self.threads.change(|schedule| schedule.wake_at(self.id, at));
    }

    /// Returns whether the calling thread runs a turn of this task.
    pub fn runs_here(&self) -> bool {
        self.threads.runs_here(self.id)
    }

    /// Returns whether the task is one of the parent process, before it forked this one.
    pub fn is_of_parent(&self) -> bool {
        self.threads.is_of_parent()
    }

    /// If no task is left, waits for a moment until the threads have ended.
    pub fn wait_for_threads(&self) {
        self.threads.wait_for_end();
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.threads.change(|schedule| schedule.cancel(self.id));
    }
}

#[cfg(test)]
mod tests;
