// SPDX-License-Identifier: MIT OR Apache-2.0

//! Waits of this process's GPU streams for frames that are not written yet, and the end of these
//! waits when the exporter dies.

mod pending;
mod speculative;
mod unblock;
mod watch;

pub(super) use speculative::{GpuWait, Recheck, Settings};
