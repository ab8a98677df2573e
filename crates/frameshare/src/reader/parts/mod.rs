// SPDX-License-Identifier: MIT OR Apache-2.0

//! The parts of a reader. Each owns its fields: no other file can read or change them. They have no
//! socket, descriptor, mapping or clock: they are told what happened, and say what is to be done.

mod patience;
mod reconnection;

pub use patience::{HELD_PATIENCE, Patience};
pub use reconnection::Reconnection;
