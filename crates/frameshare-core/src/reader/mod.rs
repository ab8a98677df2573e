// SPDX-License-Identifier: MIT OR Apache-2.0

//! The decisions of a reader. Each type owns its fields: no other file can read or change them.
//! They have no socket, descriptor, mapping or clock: they are told what happened, and say what is
//! to be done.

mod arrival;
mod ending;
mod generations;
mod kept_units;
mod order;
mod patience;
mod progress;
mod reconnection;
mod sleeping;
mod violation;

pub use arrival::{Arrival, AtOnce, Unread};
pub use ending::{End, Ending};
pub use generations::{Announcement, Generations, Place};
pub use kept_units::{Kept, KeptUnits};
pub use order::{MAX_WAITING, Order, Ordered, Step};
pub use patience::Patience;
pub use progress::Progress;
pub use reconnection::{ConnectionStats, Reconnection};
pub use sleeping::{FutexSlept, MAX_FUTEX_SLEEP, SleepStep, Sleeping};
pub use violation::Violation;
