// SPDX-License-Identifier: MIT OR Apache-2.0

//! Recordings: raw frames with their metadata, formats and events, in the order of the stream.
//!
//! A file begins with [`MAGIC`] and the version, a little-endian word of 32 bits. Chunks follow:
//!
//! | bytes | content, numbers little-endian |
//! | --- | --- |
//! | 4 | kind: 1 format, 2 event, 3 frame, 4 end of the stream, 5 end of the recording |
//! | 4 | length of the head |
//! | 8 | length of the body |
//! | 4 | CRC-32 of the 16 bytes above and the head |
//! | 4 | CRC-32 of the body |
//! | | head: JSON; times in ns of the recording machine's CLOCK_MONOTONIC |
//! | | body: the bytes of the frame behind its metadata, or the payload of the event |
//!
//! A file without the last chunk is truncated: its recorder was killed.

mod read;
mod write;

pub use read::{Damage, Recording};
pub use write::Recorder;

use frameshare::{Event, Format, Plane};

/// The first bytes: a transfer as text changes them.
const MAGIC: [u8; 16] = *b"frameshare-rec\r\n";
const VERSION: u32 = 1;
/// Length of the fixed part of a chunk.
const FIXED: usize = 24;
/// Maximum length of a head.
const MAX_HEAD: u32 = 1 << 20;
/// Maximum length of a body. A sparse file of a few bytes can have one of any length.
const MAX_BODY: u64 = 1 << 30;

/// The kinds of chunks.
mod kind {
    pub const FORMAT: u32 = 1;
    pub const EVENT: u32 = 2;
    pub const FRAME: u32 = 3;
    pub const END_OF_STREAM: u32 = 4;
    pub const END: u32 = 5;
}

/// A frame of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedFrame {
    pub sequence: u64,
    pub published: u64,
    pub pts: Option<u64>,
    pub dts: Option<u64>,
    pub duration: Option<u64>,
    pub media_offset: Option<u64>,
    pub media_offset_end: Option<u64>,
    pub flags: u64,
    /// Frames that the recorder lost before it.
    pub lost: u64,
    pub planes: Vec<Plane>,
    pub metadata: Vec<u8>,
    pub bytes: Vec<u8>,
}

/// An entry of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    Format(Format),
    Event(Event),
    Frame(RecordedFrame),
    EndOfStream,
}

#[cfg(test)]
mod tests;
