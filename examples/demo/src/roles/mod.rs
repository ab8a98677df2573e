// SPDX-License-Identifier: MIT OR Apache-2.0

//! Roles of the demo. Each runs one pipeline and reports on its frames.

mod export;
mod film;
mod picture;
mod pipeline;
mod playback;
mod read;
mod record;

pub use {
    export::{PLAY, export},
    playback::play_back,
    read::{read_checksum, read_motion},
    record::record,
};
