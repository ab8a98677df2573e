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
mod task;
mod threads;

pub(crate) use interests::Interests;
pub(crate) use task::{Next, Task};
pub(crate) use threads::{before_blocking, holds_baton};

use crate::sys::PerProcess;
use std::{
    fmt, io,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};
use task::Registering;
use threads::Threads;

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
        self.threads.start(self.id, Box::new(Registering::new(interests, task)))
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
