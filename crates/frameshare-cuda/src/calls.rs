//! How often each driver call was made by this process, through this crate.
//!
//! Take a [`snapshot`], do something, take another: [`Snapshot::since`] says what it cost in calls.

use std::collections::BTreeMap;
use std::fmt;

use crate::driver;

/// Counts by the name of the call; calls that were never made are absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot(BTreeMap<&'static str, u64>);

impl Snapshot {
    /// How often `call` was made.
    #[must_use]
    pub fn count(&self, call: &str) -> u64 {
        self.0.get(call).copied().unwrap_or(0)
    }

    /// The calls and their counts, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.0.iter().map(|(call, count)| (*call, *count))
    }

    /// What was called after `earlier` was taken.
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

/// The counts so far. Each count is exact; calls of other threads that go on meanwhile may or may not be in.
#[must_use]
pub fn snapshot() -> Snapshot {
    Snapshot(driver::counts().filter(|(_, count)| *count > 0).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn difference_keeps_what_grew() {
        let before = Snapshot(BTreeMap::from([("cuInit", 1), ("cuEventQuery", 3)]));
        let after = Snapshot(BTreeMap::from([("cuInit", 1), ("cuEventQuery", 5), ("cuMemFree_v2", 1)]));
        assert_eq!(after.since(&before).to_string(), "cuEventQuery 2, cuMemFree_v2 1");
    }
}
