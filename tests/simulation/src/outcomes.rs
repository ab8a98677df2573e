// SPDX-License-Identifier: MIT OR Apache-2.0

//! Outcomes: named events that runs are meant to reach, counted.
//!
//! A world names all its outcomes beforehand with `outcomes!`, so that one that is never reached
//! shows as 0: a simulation that never evicts a reader says nothing about eviction.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fmt::{self, Display, Formatter},
};

/// Declares the outcomes of a world: an enum with `NAMES`, and `reach`, which counts one.
///
/// ```
/// frameshare_simulation::outcomes! {
///     /// Ends of a reader.
///     pub enum Outcome {
///         Closed = "reader: closed",
///         Evicted = "reader: evicted, too slow",
///     }
/// }
/// Outcome::Closed.reach();
/// assert_eq!(Outcome::NAMES[1], "reader: evicted, too slow");
/// ```
#[macro_export]
macro_rules! outcomes {
    ($(#[$attribute:meta])* $visibility:vis enum $name:ident {
        $($variant:ident = $text:literal),+ $(,)?
    }) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $visibility enum $name {
            $(#[doc = $text] $variant),+
        }

        impl $name {
            /// The names of all outcomes, in their order.
            pub const NAMES: &'static [&'static str] = &[$($text),+];

            /// Counts this outcome once, unless the task is dying.
            pub fn reach(self) {
                if !$crate::task::is_dying() {
                    $crate::outcomes::reach(Self::NAMES[self as usize]);
                }
            }
        }
    };
}

thread_local! {
    static REACHED: RefCell<BTreeMap<&'static str, u64>> = const { RefCell::new(BTreeMap::new()) };
}

/// Counts the outcome of this name, in this thread.
pub fn reach(name: &'static str) {
    REACHED.with_borrow_mut(|reached| *reached.entry(name).or_default() += 1);
}

/// A count for each outcome of a world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts(Vec<(&'static str, u64)>);

impl Counts {
    /// Returns counts of 0.
    pub fn new(names: &[&'static str]) -> Self {
        Self(names.iter().map(|&name| (name, 0)).collect())
    }

    /// Moves the counts of this thread to these. Outcomes of other names are dropped.
    pub fn take_from_thread(&mut self) {
        let reached = REACHED.take();
        self.0.iter_mut().for_each(|(name, count)| *count += reached.get(name).copied().unwrap_or_default());
    }

    /// Adds the counts of the same outcomes.
    pub fn merge(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|((_, count), (_, more))| *count += more);
    }

    /// Returns how often the outcome of this name was reached.
    pub fn of(&self, name: &str) -> u64 {
        self.0.iter().filter(|(other, _)| *other == name).map(|(_, count)| count).sum()
    }

    /// Checks that each outcome was reached.
    ///
    /// # Errors
    /// The names of those that were not.
    pub fn check_all_reached(&self) -> Result<(), Vec<&'static str>> {
        let missing: Vec<_> = self.0.iter().filter(|(_, count)| *count == 0).map(|(name, _)| *name).collect();
        if missing.is_empty() { Ok(()) } else { Err(missing) }
    }
}

impl Display for Counts {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(name, count)| writeln!(f, "{count:>14}  {name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::Counts;
    use std::thread;

    outcomes! {
        enum Outcome { Read = "read", Lost = "lost", Never = "never" }
    }

    #[test]
    fn counts_of_threads_are_merged() {
        let mut total = Counts::new(Outcome::NAMES);
        for _ in 0..2 {
            let counted = thread::spawn(|| {
                let reached = if Outcome::NAMES.len() == 3 { Outcome::Lost } else { Outcome::Never };
                [Outcome::Read, reached, Outcome::Read].into_iter().for_each(Outcome::reach);
                let mut counts = Counts::new(Outcome::NAMES);
                counts.take_from_thread();
                counts
            });
            total.merge(&counted.join().expect("the thread counts"));
        }
        assert_eq!(["read", "lost", "never"].map(|name| total.of(name)), [4, 2, 0]);
        assert_eq!(total.check_all_reached(), Err(vec!["never"]));
    }
}
