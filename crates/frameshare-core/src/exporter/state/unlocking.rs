// SPDX-License-Identifier: MIT OR Apache-2.0

//! The work that a change of the state leaves for the moment at which it is unlocked.

use super::State;
use crate::exporter::{notice::Notice, parts::Order, system::System};
use std::any::Any;

/// The work to do when the state is unlocked, in this order. Notices are queued before, so that
/// no other thread queues later ones first.
pub struct Unlocked<S: System> {
    /// Readers to wake.
    pub sleepers: Option<S::Sleepers>,
    /// Polls that the service thread is asked for.
    pub polls: Order,
    /// The work that few changes leave.
    pub rest: Option<Box<Rest<S>>>,
}

/// The work that few changes of the state leave.
pub struct Rest<S: System> {
    /// Notices to the owner.
    pub notices: Vec<Notice>,
    /// Lines for the log.
    pub warnings: Vec<String>,
    /// Waiting threads, if they and the service thread have to see a change.
    pub change: Option<Vec<S::Waiter>>,
    /// The service thread has resources to drop.
    pub has_resources: bool,
    /// User data to drop.
    pub dropped: Vec<Box<dyn Any + Send>>,
}

impl<S: System> State<S> {
    /// Takes what is to be done when the state is unlocked.
    #[inline]
    pub fn unlock(&mut self) -> Unlocked<S> {
        let changes = self.readers.take_changes();
        if changes.has_blocked {
            self.waiters.note_change();
        }
        let sleepers = self.take_sleepers(changes.has_sleepers);
        let polls = self.polling.take_order();
        let leaves_more = self.deferred.has_any() || self.reports.has_any() || self.waiters.has_change();
        Unlocked { sleepers, polls, rest: leaves_more.then(|| self.take_rest()) }
    }

    #[cold]
    fn take_rest(&mut self) -> Box<Rest<S>> {
        Box::new(Rest {
            notices: self.reports.take_notices(),
            warnings: self.reports.take_warnings(),
            change: self.waiters.take_change(),
            has_resources: self.deferred.has_resources(),
            dropped: self.deferred.take_user_data(),
        })
    }

    /// Takes the readers that are to be woken, if there are some.
    #[inline]
    fn take_sleepers(&mut self, are_new: bool) -> Option<S::Sleepers> {
        let released = self.released_sleepers.take();
        if released.is_none() && !are_new {
            return None;
        }
        let mut sleepers = released.unwrap_or_default();
        self.readers.take_sleepers(&mut sleepers);
        Some(sleepers)
    }
}
