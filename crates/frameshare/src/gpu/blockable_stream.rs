// SPDX-License-Identifier: MIT OR Apache-2.0

//! Owner of a stream that another process can block: see [`blockable`].

use super::{blockable, deferred_drop::drop_behind};
use frameshare_cuda::{Status, stream::Stream};
use std::sync::Arc;

/// A stream that another process can block. It is destroyed when its work is done: never, if that
/// process blocked it and died.
#[derive(Debug)]
pub(crate) struct BlockableStream(Arc<Stream>);

impl BlockableStream {
    pub fn new(stream: Stream) -> Self {
        let stream = Arc::new(stream);
        blockable::add(&stream);
        Self(stream)
    }

    /// Queues work. No memory is freed meanwhile: behind a blocked stream that would not end.
    pub fn queue<T>(&self, work: impl FnOnce(&Stream) -> T) -> T {
        let _memory_stays = blockable::begin_work();
        work(&self.0)
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
