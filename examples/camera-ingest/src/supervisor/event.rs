// SPDX-License-Identifier: MIT OR Apache-2.0

//! Things that happen to the supervisor.

use crate::{report::Line, state::Command};

pub enum Event {
    /// Line of a process, and the number of its start.
    Line(String, u64, Line),
    Signal(i32),
    Command(Command),
}
