// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tasks, and their turns.

use super::interests::Interests;
use crate::sys::{Epoll, Timeout};

/// The background work of one stream.
pub(crate) trait Task: Send + 'static {
    /// Names the descriptors that the task waits for.
    type Key: Copy + Ord + Send;

    /// Handles the events of these descriptors, whatever else is due, and names the descriptors to
    /// wait for. Never called by two threads at once.
    fn turn(&mut self, ready: &[Self::Key], interests: &mut Interests<Self::Key>) -> Next;

    /// Tells the stream that a turn has panicked: the task has no other turn, and is dropped.
    fn fail(&mut self) {}
}

/// The next turn of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// After an event or a wake-up, or at this time.
    At(Timeout),
    /// None: the task is dropped.
    End,
}

/// A task and its registrations, whatever its keys are.
pub(super) trait Run: Send {
    fn run(&mut self, epoll: &Epoll, ready: &[u32]) -> Next;

    fn fail(&mut self);

    /// Removes the task's registrations.
    fn end(&mut self, epoll: &Epoll);
}

pub(super) struct Registering<T: Task> {
    interests: Interests<T::Key>,
    task: T,
}

impl<T: Task> Registering<T> {
    pub fn new(interests: Interests<T::Key>, task: T) -> Self {
        Self { interests, task }
    }
}

impl<T: Task> Run for Registering<T> {
    fn run(&mut self, epoll: &Epoll, ready: &[u32]) -> Next {
        let ready = self.interests.fired(ready);
        let Next::At(timeout) = self.task.turn(&ready, &mut self.interests) else { return Next::End };
        let retry = self.interests.apply(epoll);
        Next::At(retry.map_or(timeout, |at| timeout.min(Timeout::At(at))))
    }

    fn fail(&mut self) {
        self.task.fail();
    }

    fn end(&mut self, epoll: &Epoll) {
        self.interests.clear(epoll);
    }
}
