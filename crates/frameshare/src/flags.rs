// SPDX-License-Identifier: MIT OR Apache-2.0

//! Flags of frames ([`Descriptor::flags`](crate::Descriptor)), as the elements define them. Other
//! publishers may use them, or bits of their own. [`video::CROPPED`](crate::video::CROPPED) is one,
//! too; bits 32 to 41 are GStreamer's flags of media libraries.

/// The source is live.
pub const LIVE: u64 = 1 << 0;
/// The frame does not follow the one before: after a seek, a loss or a change of the source.
pub const DISCONTINUITY: u64 = 1 << 2;
/// The content is damaged.
pub const CORRUPTED: u64 = 1 << 4;
/// The last packet of a frame, in streams of packets.
pub const MARKER: u64 = 1 << 5;
/// Headers of an encoded stream.
pub const HEADER: u64 = 1 << 6;
/// The content is filler, such as silence.
pub const GAP: u64 = 1 << 7;
/// May be dropped without harm to others.
pub const DROPPABLE: u64 = 1 << 8;
/// Cannot be decoded without the units before it.
pub const DELTA_UNIT: u64 = 1 << 9;
