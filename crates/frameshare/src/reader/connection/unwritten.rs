// SPDX-License-Identifier: MIT OR Apache-2.0

//! Taken frames in dma-bufs that a device still writes.
//!
//! A frame is taken before its fences are signaled: the exporter cannot revoke it meanwhile, so
//! that a `latest` reader gets frames from a device that works on several at a time.

use crate::{
    reader::lease::Frame,
    sys::{Fences, PendingFences},
};
use frameshare_protocol::Sequence;
use std::{
    io,
    time::{Duration, Instant},
};

/// A frame that a device still writes.
#[derive(Debug)]
pub(super) struct Unwritten {
    frame: Frame,
    fences: PendingFences,
    since: Instant,
}

/// A taken frame.
#[derive(Debug)]
pub(super) enum Written {
    /// No device writes it any more.
    Yes(Frame),
    /// A device does.
    No(Unwritten),
}

impl Written {
    /// Polls the fences of a frame, if it is in a dma-buf.
    ///
    /// # Errors
    /// The error of a system call.
    pub fn of(frame: Frame) -> io::Result<Self> {
        let pending = frame.dma_buf().map(|(dma_buf, _)| PendingFences::of(dma_buf, Fences::Writers));
        Ok(match pending.transpose()?.flatten() {
            Some(fences) => Self::No(Unwritten { frame, fences, since: Instant::now() }),
            None => Self::Yes(frame),
        })
    }
}

impl Unwritten {
    /// Polls the fences again.
    ///
    /// # Errors
    /// The error of a system call.
    pub fn poll(self) -> io::Result<Written> {
        let signaled = self.frame.dma_buf().map(|(dma_buf, _)| self.fences.are_signaled(dma_buf));
        Ok(if signaled.transpose()? == Some(false) { Written::No(self) } else { Written::Yes(self.frame) })
    }

    pub fn sequence(&self) -> Sequence {
        self.frame.descriptor().sequence
    }

    /// Returns how long the reader has waited for the frame.
    pub fn waited(&self) -> Duration {
        self.since.elapsed()
    }
}
