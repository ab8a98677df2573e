// SPDX-License-Identifier: MIT OR Apache-2.0

//! Connection to an exporter: handshake, trust, and the delivery of messages and frames in order.

mod areas;
mod control;
mod delivery;
mod exporter;
mod gpu;
mod handshake;
mod kept;
mod order;
mod setup;
mod sleep;
mod trust;
mod unwritten;

pub(super) use delivery::Connection;
pub(super) use handshake::{Search, connect};
pub use trust::TrustedUsers;
pub(crate) use trust::open_folder;
