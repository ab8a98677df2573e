// SPDX-License-Identifier: MIT OR Apache-2.0

//! States that the runs of an enumeration have reached.

use std::collections::HashSet;

/// States reached, as hashes. Two states with one hash would hide one of them: with 64 bits and a
/// million states, the probability is below 10^-7.
#[derive(Debug, Default)]
pub struct Seen(Option<HashSet<u64>>);

impl Seen {
    /// Returns an empty set that states are added to.
    pub fn collecting() -> Self {
        Self(Some(HashSet::new()))
    }

    /// Whether states are collected.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Adds a state. Returns false if it was there.
    pub fn insert(&mut self, state: u64) -> bool {
        self.0.as_mut().is_none_or(|seen| seen.insert(state))
    }

    /// Returns the number of states.
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, HashSet::len)
    }
}
