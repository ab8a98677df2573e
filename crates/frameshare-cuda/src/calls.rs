// SPDX-License-Identifier: MIT OR Apache-2.0

//! Driver call counts: calls that this process made through this crate.
//!
//! Take one [`snapshot`] before and one after an operation: [`Snapshot::since`] returns the
//! difference.

use std::collections::BTreeMap;
use std::fmt;

use crate::driver;

/// Counts by call name; calls never made are absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot(BTreeMap<&'static str, u64>);

impl Snapshot {
    /// Returns the number of calls of `call`.
    #[must_use]
    pub fn count(&self, call: &str) -> u64 {
        self.0.get(call).copied().unwrap_or(0)
    }

    /// Iterates over the calls and their counts, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.0.iter().map(|(call, count)| (*call, *count))
    }

    /// Returns the calls made since `earlier` was taken.
    #[must_use]
    pub fn since(&self, earlier: &Snapshot) -> Snapshot {
        let grown = self.iter().map(|(call, count)| (call, count - earlier.count(call).min(count)));
        Snapshot(grown.filter(|(_, count)| *count > 0).collect())
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (call, count)) in self.iter().enumerate() {
            write!(f, "{}{call} {count}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// Returns the current counts. Each count is exact; concurrent calls of other threads may or may
/// not be included.
#[must_use]
pub fn snapshot() -> Snapshot {
    Snapshot(driver::counts().filter(|(_, count)| *count > 0).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn difference_contains_only_increased_counts() {
        let before = Snapshot(BTreeMap::from([("cuInit", 1), ("cuEventQuery", 3)]));
        let after = Snapshot(BTreeMap::from([("cuInit", 1), ("cuEventQuery", 5), ("cuMemFree_v2", 1)]));
        assert_eq!(after.since(&before).to_string(), "cuEventQuery 2, cuMemFree_v2 1");
    }
}
