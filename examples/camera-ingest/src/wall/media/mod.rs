// SPDX-License-Identifier: MIT OR Apache-2.0

//! Pictures, units, and results of cameras. Each is read and made only while a page wants it.

mod h264;
mod identity;
mod pictures;
mod results;
mod source;
mod units;

pub use identity::Identity;
pub use pictures::{Picture, Pictures, Size};
pub use results::Results;
pub use source::Subscription;
pub use units::{Unit, Units};
