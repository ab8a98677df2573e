// SPDX-License-Identifier: MIT OR Apache-2.0

//! GPU work that outlives its caller.

mod blockable;
mod blockable_stream;
mod deferred_drop;
pub(crate) mod poller;

pub(crate) use blockable::{may_wait, set_waits};
pub(crate) use blockable_stream::BlockableStream;
pub(crate) use deferred_drop::DeferredDrop;
pub use deferred_drop::{DropWhenIdle, drop_behind, wait_for_deferred_drops};
