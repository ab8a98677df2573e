//! Which frames may be delivered ahead of their fences, and what becomes of them when the exporter is gone.

use super::{Connection, Over};
use crate::{
    fence::{FenceError, FenceFault},
    reader::{ReadError, rescue::rescue},
};
use frameshare_protocol::FenceKind;

/// What somebody who sleeps has to look at all the same, since nobody rings when a GPU is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::reader) enum Look {
    /// Nothing.
    Not,
    /// Whether frames that were delivered ahead of their fences are late.
    Late,
    /// Whether the next frame, which is published, is written.
    Written,
}

impl Connection {
    /// Whether a frame is written, or may be delivered ahead of its fence. One that is not written when the exporter
    /// is gone never will be.
    pub(super) fn may_be_delivered(&mut self, entry: usize, sequence: u64) -> Result<bool, ReadError> {
        match self.session.waits().fence.kind() {
            // A violation, which whoever makes the frame finds.
            FenceKind::None => return Ok(true),
            // An entry is used again only when its last frame has been written and read; its event speaks of this one
            // now. A word speaks of them all.
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

    /// Looks for how long the oldest frame that was delivered ahead of its fence, or else frame `next`, has kept everyone
    /// waiting.
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

    /// What is to be looked at before anybody rings.
    pub fn look(&self) -> Look {
        self.look
    }

    /// Frees the streams that wait for frames that will not be written.
    pub(super) fn rescue_streams(&mut self, said_goodbye: bool) {
        // An exporter in this process ends its work whether or not it says goodbye.
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
