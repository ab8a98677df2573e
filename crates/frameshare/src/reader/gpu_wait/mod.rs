// SPDX-License-Identifier: MIT OR Apache-2.0

//! Waits of this process's GPU streams for frames that are not written yet, their bound, and the
//! end of these waits when the exporter dies.

mod bound;
mod pending;
mod speculative;
mod unblock;
mod watch;

pub(super) use bound::{WAITS, id};
pub(super) use speculative::{GpuWait, Recheck, Settings};
