// SPDX-License-Identifier: MIT OR Apache-2.0

//! The ring: two slots, the numbers of values written and read, and a flag for its end.

use super::word::Word;
use crate::{
    mix,
    task::{block, now, set_state},
    trace,
};
use std::{rc::Rc, time::Duration};

const SLOTS: usize = 2;

crate::outcomes! {
    /// Outcomes of the ring.
    pub enum Outcome {
        Full = "writer: waits for room",
        Empty = "reader: waits for a value",
        TimedOut = "reader: gives up waiting",
        Complete = "reader: all values read",
        Died = "reader: the writer died",
    }
}

/// A bug of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The writer publishes a slot before it has written it.
    PublishesTooEarly,
    /// The writer does not close the ring at its end: the reader waits forever.
    ForgetsClosing,
}

/// The shared words. Value `n`, counted from 0, is `100 + n`.
#[derive(Debug, Default)]
pub struct Shared {
    slots: [Word; SLOTS],
    written: Word,
    read: Word,
    is_closed: Word,
}

impl Shared {
    /// Gives the hash of all words to an enumeration.
    pub fn hash_for_enumeration(self: &Rc<Self>) {
        let shared = Rc::clone(self);
        set_state(move || {
            let words = [&shared.written, &shared.read, &shared.is_closed];
            words.into_iter().chain(&shared.slots).fold(0, |hash, word| mix(hash ^ (word.peek() + 1)))
        });
    }

    /// Writes all values, and closes the ring.
    pub fn write(&self, values: u64, bug: Option<Bug>) {
        let _close = (bug != Some(Bug::ForgetsClosing)).then_some(CloseOnDrop(self));
        for number in 0..values {
            let has_room = || number - self.read.peek() < SLOTS as u64;
            if !has_room() {
                Outcome::Full.reach();
            }
            block("wait for room", None, has_room);
            let slot = &self.slots[number as usize % SLOTS];
            if bug == Some(Bug::PublishesTooEarly) {
                self.written.store("publish", number + 1);
                slot.store("write slot", 100 + number);
            } else {
                slot.store("write slot", 100 + number);
                self.written.store("publish", number + 1);
            }
        }
    }

    /// Reads values until all were read or the ring is closed.
    pub fn read(&self, values: u64, patience: Option<Duration>) {
        for number in 0..values {
            let has_value = || self.written.peek() > number || self.is_closed.peek() != 0;
            if !has_value() {
                Outcome::Empty.reach();
            }
            while !block("wait for a value", patience.map(|patience| now() + patience), has_value) {
                Outcome::TimedOut.reach();
                trace!("still waits for value {number}");
            }
            if self.written.load("load written") <= number {
                Outcome::Died.reach();
                return;
            }
            let value = self.slots[number as usize % SLOTS].load("read slot");
            assert_eq!(value, 100 + number, "value {number} is wrong");
            trace!("has read value {number}");
            self.read.store("give back", number + 1);
        }
        Outcome::Complete.reach();
        block("wait for the end", None, || self.is_closed.peek() != 0);
    }

    /// Closes the ring for a writer that died.
    pub fn close(&self) {
        self.is_closed.store("close", 1);
    }
}

/// Closes the ring when the writer is done. No effect if it was killed.
struct CloseOnDrop<'a>(&'a Shared);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}
