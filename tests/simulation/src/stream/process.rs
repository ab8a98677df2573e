// SPDX-License-Identifier: MIT OR Apache-2.0

//! The numbers of processes.

use crate::Process;

/// The process of the exporter. Readers have the numbers behind it.
pub const EXPORTER: Process = 1;
/// The process of what happens to the others.
pub const FATE: Process = 100;
/// The number by which an exporter knows the first reader. The others have the next ones.
pub const FIRST_PID: u32 = 100;

/// The process of the reader that the exporter knows by this number.
pub fn of_reader(pid: u32) -> Process {
    pid - FIRST_PID + EXPORTER + 1
}

/// The number by which the exporter knows a reader.
pub fn pid_of(process: Process) -> u32 {
    process - EXPORTER - 1 + FIRST_PID
}
