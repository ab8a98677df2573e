// SPDX-License-Identifier: MIT OR Apache-2.0

//! Attempts to publish a frame.

use super::State;
use crate::exporter::{
    now::Now,
    system::{Slot, System},
    unit::Unit,
    unpublished::{NotPublished, Unpublished},
};
use frameshare_protocol::Sequence;

/// The end of one attempt to publish a frame.
pub enum Attempt<S: System> {
    /// It was handed out, or cannot be.
    Ended(Result<Sequence, Box<NotPublished<S>>>),
    /// It is to be downloaded, and there is no slot yet to copy it into.
    NeedsTarget,
    /// A lossless reader would lose it.
    NoRoom,
}

impl<S: System> State<S> {
    /// Publishes a frame if every reader is known to have room for it without a wait.
    /// Returns whether the readers are to be polled after it: release fences take calls of a GPU,
    /// which can wait until the readers are woken.
    pub fn try_at_once(&mut self, unpublished: &mut Unpublished<'_, S>, has_gpu: bool) -> (Attempt<S>, bool) {
        if unpublished.unit != Unit::Whole {
            self.report_skipped_before(unpublished.unit);
        }
        if !self.has_room() {
            return (Attempt::NoRoom, false);
        }
        // One pass over all claims, which share cache lines with what is published.
        let polls = self.needs_poll();
        let polls_first = polls && !has_gpu;
        if polls_first {
            self.reclaim();
            // A message that asks a reader for its memory may not fit into its socket.
            if !self.has_room() {
                return (Attempt::NoRoom, false);
            }
        }
        (self.attempt(unpublished), polls && !polls_first)
    }

    /// Publishes a frame of this weight unless a lossless reader would lose it.
    pub fn try_with_room(&mut self, unpublished: &mut Unpublished<'_, S>) -> Option<Attempt<S>> {
        if self.refusal(unpublished).is_none() {
            self.report_skipped_before(unpublished.unit);
            if self.would_lose(unpublished.weight(), unpublished.slot.id()) {
                return None;
            }
        }
        Some(self.attempt(unpublished))
    }

    /// Tells readers which frames were not for them, if this unit is.
    fn report_skipped_before(&mut self, unit: Unit) {
        let now = Now::default();
        self.each_link(|link| link.report_skipped_before(unit, &now));
    }

    /// Publishes a frame that every reader has room for.
    fn attempt(&mut self, unpublished: &mut Unpublished<'_, S>) -> Attempt<S> {
        if let Some(why) = self.refusal(unpublished) {
            return Attempt::Ended(Err(why));
        }
        if let Some(why) = self.refusal_in_place(unpublished.slot) {
            return Attempt::Ended(Err(why));
        }
        if !unpublished.was_target_sought && self.wants_download(unpublished.slot) {
            return Attempt::NeedsTarget;
        }
        // From here on only links fail.
        Attempt::Ended(self.hand_out(unpublished))
    }
}
