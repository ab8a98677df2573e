// SPDX-License-Identifier: MIT OR Apache-2.0

//! Threads of this process that wait for readers.

use std::mem;

/// Owns the list of waiting threads, and whether something has changed that they and the service
/// thread have to see. A `W` wakes one thread; who does that, and when, is not its business.
///
/// Each waiting thread has a `W` of its own: a slot or credit that one of them takes may be the one
/// that another waits for.
#[derive(Debug)]
pub struct Waiters<W> {
    /// A thread without a `W` polls.
    waiting: Vec<(WaiterId, Option<W>)>,
    next: u64,
    /// Readers joined or left, or the set of readers with waiting messages changed.
    readers_changed: bool,
}

/// The number of a waiting thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaiterId(u64);

impl<W> Default for Waiters<W> {
    fn default() -> Self {
        Self { waiting: Vec::new(), next: 0, readers_changed: false }
    }
}

impl<W: Clone> Waiters<W> {
    /// Adds a thread that begins to wait.
    pub fn begin(&mut self, wake: Option<W>) -> WaiterId {
        let id = WaiterId(self.next);
        self.next += 1;
        self.waiting.push((id, wake));
        id
    }

    /// Removes a thread that no longer waits. Returns true if it was the last one.
    pub fn end(&mut self, waiter: WaiterId) -> bool {
        self.waiting.retain(|(id, _)| *id != waiter);
        self.waiting.is_empty()
    }

    /// Returns for each waiting thread but this one what wakes it.
    pub fn others(&self, waiter: Option<WaiterId>) -> impl Iterator<Item = &W> {
        let others = self.waiting.iter().filter(move |(id, _)| Some(*id) != waiter);
        others.filter_map(|(_, wake)| wake.as_ref())
    }

    /// Notes that readers joined or left, or that messages wait for other ones than before.
    pub fn note_change(&mut self) {
        self.readers_changed = true;
    }

    /// Returns whether something has changed since [`Waiters::take_change`] was last called.
    pub fn has_change(&self) -> bool {
        self.readers_changed
    }

    /// Returns what wakes all waiting threads if something has changed since the last call.
    pub fn take_change(&mut self) -> Option<Vec<W>> {
        mem::take(&mut self.readers_changed).then(|| self.others(None).cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wake_up_that_one_thread_has_taken_goes_on_to_the_others() {
        let mut waiters = Waiters::default();
        let (first, second) = (waiters.begin(Some('a')), waiters.begin(Some('b')));
        let polling = waiters.begin(None);
        let others = |waiters: &Waiters<char>, own| waiters.others(own).copied().collect::<String>();
        assert_eq!(others(&waiters, Some(first)), "b");
        assert_eq!(others(&waiters, Some(polling)), "ab");
        assert_eq!((waiters.end(first), others(&waiters, None)), (false, "b".into()));
        assert!(!waiters.end(second) && waiters.end(polling), "the last one ends the waits");
    }

    #[test]
    fn change_is_told_once() {
        let mut waiters = Waiters::default();
        waiters.begin(Some('a'));
        assert_eq!((waiters.has_change(), waiters.take_change()), (false, None));
        waiters.note_change();
        assert!(waiters.has_change());
        waiters.note_change();
        assert_eq!((waiters.take_change(), waiters.take_change()), (Some(vec!['a']), None));
    }
}
