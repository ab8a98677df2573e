// SPDX-License-Identifier: MIT OR Apache-2.0

//! Sites of the long tests, and what they have recorded.
#![allow(dead_code, unused_imports)] // each test file uses a part

mod ffmpeg;
mod recording;
mod site;
mod witness;

pub use ffmpeg::Ffmpeg;
pub use recording::{Recording, numbers_of, runs};
pub use site::Site;
pub use witness::{Difference, Witness, compare};
