// SPDX-License-Identifier: MIT OR Apache-2.0

//! Streams that another process can block, and leave blocked if it dies: those that record events
//! which that process can record as well.
//!
//! A call that waits for all work of a context does not return while such a stream is blocked, not
//! even if the stream has been destroyed, and meanwhile the driver lets no thread create a stream
//! or an event (measured on an H200, driver 580: cuMemHostUnregister, cuMemFree, cuMemFreeHost). So
//! memory whose release is such a call is dropped behind these streams.

use super::deferred_drop::drop_behind;
use frameshare_cuda::{Status, context::Context, event::Event, stream::Stream};
use once_cell::sync::Lazy;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

static STREAMS: Lazy<Mutex<Vec<Weak<Stream>>>> = Lazy::new(Mutex::default);

fn streams() -> MutexGuard<'static, Vec<Weak<Stream>>> {
    STREAMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A stream that another process can block. It is destroyed when its work is done: never, if that
/// process blocked it and died.
#[derive(Debug)]
pub(crate) struct BlockableStream(Arc<Stream>);

impl BlockableStream {
    pub fn new(stream: Stream) -> Self {
        let stream = Arc::new(stream);
        let mut streams = streams();
        streams.retain(|stream| stream.strong_count() > 0);
        streams.push(Arc::downgrade(&stream));
        drop(streams);
        Self(stream)
    }
}

impl std::ops::Deref for BlockableStream {
    type Target = Stream;

    fn deref(&self) -> &Stream {
        &self.0
    }
}

impl Drop for BlockableStream {
    fn drop(&mut self) {
        if matches!(self.0.query(), Ok(Status::Pending)) {
            // The end of its own work is among those that are added.
            drop_behind(self.0.context(), Some(Vec::new()), self.0.clone());
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
    let end = |stream: Arc<Stream>| {
        let end = Event::new(gpu).ok()?;
        end.record(&stream).ok()?;
        Some(end)
    };
    streams.into_iter().filter(is_busy).map(end).collect()
}
