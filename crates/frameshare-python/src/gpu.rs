// SPDX-License-Identifier: MIT OR Apache-2.0

//! The GPU of a reader: its context, and streams that are kept from copy to copy.

use crate::fork::Process;
use frameshare::cuda::{self, Context, Stream};
use std::{
    mem,
    ops::Deref,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// A context, and its idle streams. Shared by a reader, its frames, and copies of them.
#[derive(Debug)]
pub struct Gpu {
    context: Arc<Context>,
    idle: Mutex<Vec<Arc<Stream>>>,
    process: Process,
}

impl Gpu {
    /// The GPU of a context.
    pub fn new(context: Arc<Context>) -> Arc<Self> {
        Arc::new(Self { context, idle: Mutex::default(), process: Process::current() })
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Arc<Stream>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a stream for one user: an idle one, or a new one. As many are made as
    /// threads copy at once.
    ///
    /// # Errors
    /// Any error that the driver returns.
    pub fn stream(self: &Arc<Self>) -> cuda::Result<Borrowed> {
        let idle = self.idle().pop();
        let stream = idle.map_or_else(|| Stream::new(&self.context).map(Arc::new), Ok)?;
        Ok(Borrowed { stream, gpu: Arc::clone(self) })
    }
}

impl Deref for Gpu {
    type Target = Arc<Context>;

    fn deref(&self) -> &Arc<Context> {
        &self.context
    }
}

/// A stream of a [`Gpu`]. Dropping it returns it, with the work that is queued there.
#[derive(Debug)]
pub struct Borrowed {
    stream: Arc<Stream>,
    gpu: Arc<Gpu>,
}

impl Deref for Borrowed {
    type Target = Arc<Stream>;

    fn deref(&self) -> &Arc<Stream> {
        &self.stream
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        let stream = Arc::clone(&self.stream);
        // In a forked child, another thread of the parent may have held the lock.
        if self.gpu.process.is_current() { self.gpu.idle().push(stream) } else { mem::forget(stream) }
    }
}
