// SPDX-License-Identifier: MIT OR Apache-2.0

//! The parts of an exporter's state. Each owns its fields: no other file can read or change them.

mod announcement;
mod arrivals;
mod copies;
mod deferred;
mod device_use;
mod downloads;
mod kept_frames;
mod pinned;
mod polling;
mod publications;
mod readers;
mod refusals;
mod reports;
mod slots;
mod waiters;

pub use announcement::{Announcement, Change};
pub use arrivals::Arrivals;
pub use deferred::Deferred;
pub use device_use::DeviceUse;
pub use downloads::{Download, Downloads};
pub use kept_frames::{Content, Kept, KeptUnits};
pub use pinned::Pinned;
pub use polling::{Order, Polling, Urgency};
pub use publications::{Publication, Publications};
pub use readers::{Changes, Readers};
pub use reports::Reports;
pub use slots::{KEPT, Slots};
pub use waiters::{WaiterId, Waiters};
