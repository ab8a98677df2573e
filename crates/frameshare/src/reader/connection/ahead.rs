//! Frames ahead of their fences: which may be delivered, and what becomes of them when the exporter is gone.

use super::{Connection, Over};
use crate::reader::{ReadError, rescue::rescue};
use frameshare_protocol::FenceKind;
use std::time::Instant;

impl Connection {
    /// Whether a frame is written, or may be delivered ahead of its fence. One that is not written when the exporter
    /// is gone never will be.
    pub(super) fn may_be_delivered(&mut self, entry: usize, sequence: u64) -> Result<bool, ReadError> {
        if self.session.fence.kind() == FenceKind::None {
            return Ok(true);
        }
        // An entry is used again only when its last frame has been written and read; its event speaks of this one now.
        self.ahead.retain(|(used, _)| *used != entry);
        let is_pending = self.is_pending(entry, sequence)?;
        self.look_ahead(is_pending.then_some(sequence))?;
        let may = !is_pending || (self.gpu_wait && self.over.is_none());
        if is_pending && may {
            self.ahead.push_back((entry, sequence));
        }
        Ok(may)
    }

    pub(super) fn is_pending(&self, entry: usize, sequence: u64) -> Result<bool, ReadError> {
        let written = self.session.is_written(entry, sequence);
        written.map(|written| !written).map_err(|error| ReadError::Fence(error.to_string()))
    }

    /// Looks whether frames that were delivered ahead of their fences have been written, and for how long the oldest that
    /// has not been, or else frame `next`, has kept everyone waiting: frames are written in order.
    pub(super) fn look_ahead(&mut self, next: Option<u64>) -> Result<(), ReadError> {
        while let Some(&(entry, sequence)) = self.ahead.front() {
            if self.is_pending(entry, sequence)? {
                break;
            }
            self.ahead.pop_front();
        }
        let Some(oldest) = self.ahead.front().map(|(_, sequence)| *sequence).or(next) else {
            self.unwritten = None;
            return Ok(());
        };
        match self.unwritten {
            Some((of, since)) if of == oldest => {
                if since.elapsed() > self.fence_timeout {
                    self.over.get_or_insert(Over::Stalled(oldest));
                }
            }
            _ => self.unwritten = Some((oldest, Instant::now())),
        }
        Ok(())
    }

    /// Whether the next frame is published, and waits for its fence.
    pub fn awaits_fence(&self) -> bool {
        self.unwritten.is_some()
    }

    /// How many frames were delivered ahead of a fence that never came.
    pub(super) fn count_torn(&self) -> u64 {
        let unwritten = |(entry, sequence): &&(usize, u64)| {
            !matches!(self.session.is_written(*entry, *sequence), Ok(true))
        };
        self.ahead.iter().filter(unwritten).count() as u64
    }

    /// Frees the streams that wait for frames that will not be written.
    pub(super) fn rescue_streams(&mut self, said_goodbye: bool) {
        // An exporter in this process ends its work whether or not it says goodbye.
        if self.session.fence.kind() == FenceKind::Timeline
            && self.peer.pid != std::process::id()
            && !self.rescued
        {
            self.rescued = true;
            rescue(self.session.clone(), self.peer.gone.take(), said_goodbye);
        }
    }
}
