// SPDX-License-Identifier: MIT OR Apache-2.0

//! The parts of an exporter's state. Each owns its fields: no other file can read or change them.

mod announcement;
mod arrivals;
mod copies;
mod kept_frames;
mod polling;
mod publications;
mod readers;
mod refusals;
mod reports;
mod slots;
mod waiters;

pub use announcement::{Announcement, Change};
pub use arrivals::Arrivals;
pub use kept_frames::{Content, Kept, KeptUnits};
pub use polling::{Polling, Urgency};
pub use publications::{Publication, Publications};
pub use readers::Readers;
pub use reports::Reports;
pub use slots::{KEPT, Slots};
pub use waiters::{WaiterId, Waiters};
