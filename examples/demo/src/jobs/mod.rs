// SPDX-License-Identifier: MIT OR Apache-2.0

//! Jobs of the demo. Each runs one pipeline and reports on its frames.

mod export;
mod image;
mod pipeline;
mod playback;
mod read;
mod record;
mod video;

pub use {
    export::{START, export},
    playback::play_back,
    read::{read_checksum, read_motion},
    record::record,
};
