// SPDX-License-Identifier: MIT OR Apache-2.0

//! Pairs of accesses that need no order.

use crate::shadow::Access;

/// Life of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Life {
    #[default]
    Running,
    /// Dead, while its queues run on.
    Dying,
    /// Dead, with its queues at their end.
    Ended,
}

/// Returns why an access needs no order behind an earlier one of a process whose life is `earlier_life`.
pub fn reason(earlier: &Access, earlier_life: Life, later: &Access) -> Option<&'static str> {
    match earlier_life {
        Life::Running => None,
        // A survivor that reuses memory before that is reported: the queues of the dead process may
        // still access it.
        Life::Ended => Some("the kernel reports the process as exited only after its queues have ended"),
        Life::Dying if earlier.write && !later.write => Some(
            "the queues of a dead process store its timeline values without lines in the trace, and a reader that \
             sees one of them reads in order",
        ),
        Life::Dying if !earlier.write => Some(
            "the queues of a dead process store its release values without lines in the trace, and an exporter \
             that sees one of them reuses the memory in order",
        ),
        Life::Dying => None,
    }
}
