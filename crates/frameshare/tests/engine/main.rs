// SPDX-License-Identifier: MIT OR Apache-2.0

//! The engine as an application uses it: one exporter and some readers, as threads of one process.
//! Tests with several processes are in the workspace's `tests`.

mod backlog;
mod credit;
mod delivery;
mod endpoints;
mod foreign;
mod frames;
mod generations;
mod gop;
mod history;
mod layout;
mod messages;
mod metadata;
mod observers;
mod planes;
mod policies;
mod set;
mod sleeping;
mod slots;
mod stream;
mod waiting;
mod waking;
