// SPDX-License-Identifier: MIT OR Apache-2.0

//! Pairs of accesses that need no order: those of a process that has died, and of a survivor.

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

/// Whether two accesses need an order that they do not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// They need it.
    Order,
    /// They need it unless the process of the earlier access is dead. A process that was killed
    /// leaves no line at once: it is taken for dead if it writes no further line.
    OrderInLife,
    /// They need none.
    Nothing,
}

/// Returns the need of an access behind an earlier one, whose process has this life.
pub fn need(earlier: &Access, life: Life, later: &Access) -> Need {
    // The process counts as exited, for everybody who waits for that, only after its queues ended.
    if life == Life::Ended {
        return Need::Nothing;
    }
    // Two writes of one place: the queues of a dead process run on, and could write over what a
    // survivor has written.
    if earlier.write && later.write {
        return Need::Order;
    }
    // The results of a dead process's reads are lost with it. A survivor's reads of its frames may
    // be torn: the queues of the dead process store timeline values without lines in the trace, and
    // a reader stores them itself to unblock its streams, after it has reported the error.
    if life == Life::Dying { Need::Nothing } else { Need::OrderInLife }
}
