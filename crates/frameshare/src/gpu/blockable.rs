// SPDX-License-Identifier: MIT OR Apache-2.0

//! Streams that another process can block, and leave blocked if it dies: those that record events
//! which that process can record as well.
//!
//! A call that waits for all work of a context does not return while such a stream is blocked, not
//! even if the stream has been destroyed, and meanwhile the driver lets no thread create a stream
//! or an event (measured on an H200, driver 580: cuMemHostUnregister, cuMemFree, cuMemFreeHost). So
//! memory whose release is such a call is dropped behind these streams.

use crate::sys::PerProcess;
use frameshare_cuda::{Status, context::Context, event::Event, stream::Stream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

static STREAMS: PerProcess<Mutex<Vec<Weak<Stream>>>> = PerProcess::new(Mutex::default);

fn streams() -> MutexGuard<'static, Vec<Weak<Stream>>> {
    STREAMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds a stream that another process can block.
pub(super) fn add(stream: &Arc<Stream>) {
    let mut streams = streams();
    streams.retain(|stream| stream.strong_count() > 0);
    streams.push(Arc::downgrade(stream));
}

/// Returns an event behind the present work of each such stream of a context that has work. `None`
/// if the driver fails.
pub(super) fn ends(gpu: &Arc<Context>) -> Option<Vec<Event>> {
    // Unlocked before the calls: creating an event may wait for another thread's call.
    let streams: Vec<_> = streams().iter().filter_map(Weak::upgrade).collect();
    let is_busy = |stream: &Arc<Stream>| {
        stream.context().as_raw() == gpu.as_raw() && matches!(stream.query(), Ok(Status::Pending))
    };
    streams.iter().filter(|stream| is_busy(stream)).map(|stream| Event::behind(stream).ok()).collect()
}
