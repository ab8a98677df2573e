// SPDX-License-Identifier: MIT OR Apache-2.0

//! Waits for devices that still write the dma-buf of a published frame.

use crate::{
    memory::dma_buf::DmaBuf,
    sys::{Fences, PendingFences},
};
use frameshare_protocol::Sequence;
use std::{
    io,
    os::fd::AsFd,
    time::{Duration, Instant},
};

/// The fences of the next frame of one connection.
#[derive(Debug, Default)]
pub(super) struct ImplicitFence {
    pending: Option<Pending>,
    /// The last poll found them pending.
    is_waiting: bool,
}

/// The fences of one frame.
#[derive(Debug)]
struct Pending {
    sequence: Sequence,
    fences: PendingFences,
    since: Instant,
}

impl ImplicitFence {
    /// Begins another search for the next frame: the frame before may be revoked.
    pub fn begin(&mut self) {
        self.is_waiting = false;
    }

    /// Returns whether the last search found a frame that is not written.
    pub fn is_waiting(&self) -> bool {
        self.is_waiting
    }

    /// Returns how long the reader has waited for this frame; `None` if no device writes it any
    /// more.
    ///
    /// # Errors
    /// The error of a system call.
    pub fn poll(&mut self, sequence: Sequence, dma_buf: &DmaBuf) -> io::Result<Option<Duration>> {
        let known = self.pending.take().filter(|pending| pending.sequence == sequence);
        let pending = match known {
            Some(pending) if pending.fences.are_signaled(dma_buf.as_fd())? => return Ok(None),
            Some(pending) => pending,
            None => match dma_buf.pending(Fences::Writers)? {
                Some(fences) => Pending { sequence, fences, since: Instant::now() },
                None => return Ok(None),
            },
        };
        let waited = pending.since.elapsed();
        self.pending = Some(pending);
        self.is_waiting = true;
        Ok(Some(waited))
    }
}
