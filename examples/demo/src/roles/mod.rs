//! The parts of the play. Each runs one pipeline and reports what it sees.

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
