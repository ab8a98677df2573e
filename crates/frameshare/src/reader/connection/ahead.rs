// SPDX-License-Identifier: MIT OR Apache-2.0

//! Speculative delivery: frames before their ready fences, and their fate when the exporter dies.

use super::{Connection, Over};
use crate::{
    fence::{FenceError, FenceFault},
    reader::{ReadError, rescue::rescue},
};
use frameshare_protocol::FenceKind;

/// The condition that a sleeping reader has to poll, since no notification follows the end of GPU
/// work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::reader) enum Look {
    /// None.
    Not,
    /// Speculatively delivered frames may be late.
    Late,
    /// The next frame is published and may be written.
    Written,
}

impl Connection {
    /// Returns whether a frame is written, or may be delivered speculatively. A frame that is not
    /// written when the exporter dies never will be.
    pub(super) fn may_be_delivered(&mut self, entry: usize, sequence: u64) -> Result<bool, ReadError> {
        match self.session.waits().fence.kind() {
            // A violation, which is found when the frame is made.
            FenceKind::None => return Ok(true),
            // An entry is reused only after its last frame was written and read, so its event
            // stands for the present one. One timeline value stands for all.
            FenceKind::Event => self.session.waits().forget(entry),
            FenceKind::Timeline => {}
        }
        let is_pending = self.session.waits().is_pending(entry, sequence).map_err(failed)?;
        self.look_ahead(is_pending.then_some(sequence))?;
        if !is_pending {
            return Ok(true);
        }
        let may = self.gpu_wait && self.over.is_none() && !self.session.waits().is_given_up();
        if may {
            self.session.waits().push(entry, sequence);
        } else {
            self.look = Look::Written;
        }
        Ok(may)
    }

    /// Checks the waiting time of the oldest speculatively delivered frame, or else of frame
    /// `next`.
    pub(super) fn look_ahead(&mut self, next: Option<u64>) -> Result<(), ReadError> {
        if self.session.waits().fence.kind() == FenceKind::None {
            return Ok(());
        }
        let unwritten = self.session.waits().oldest(next).map_err(failed)?;
        self.look = if unwritten.is_some() { Look::Late } else { Look::Not };
        if let Some((oldest, _)) = unwritten.filter(|(_, waited)| *waited > self.fence_timeout) {
            self.over.get_or_insert(Over::Stalled(oldest));
        }
        Ok(())
    }

    /// The condition to poll before a wake-up comes.
    pub fn look(&self) -> Look {
        self.look
    }

    /// Unblocks the streams that wait for frames that will not be written.
    pub(super) fn rescue_streams(&mut self, said_goodbye: bool) {
        // An exporter in this process finishes its work, with or without a close message.
        if self.session.waits().fence.kind() == FenceKind::Timeline && !self.local && !self.rescued {
            self.rescued = true;
            rescue(self.session.waits().clone(), self.peer.gone.take(), said_goodbye);
        }
    }
}

fn failed(error: FenceError) -> ReadError {
    match error.cause {
        FenceFault::WentBack { .. } => ReadError::Violation(error.to_string()),
        _ => ReadError::Fence(error.to_string()),
    }
}
