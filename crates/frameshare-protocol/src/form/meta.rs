// SPDX-License-Identifier: MIT OR Apache-2.0

//! Form of the metas of a frame: a version byte, then items up to the end. A frame without metas
//! has no bytes.

use serde::{Deserialize, Serialize};

/// The version of the form, its first byte.
pub const VERSION: u8 = 2;
/// Maximum number of parameters of a region: GStreamer walks all of them to add one.
pub const MAX_PARAMS: u32 = 1024;

/// One meta, or the head of one.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are those of GStreamer's metas")]
pub enum Item<'a> {
    Video(Video),
    /// Left, top, width and height in pixels.
    Crop([u32; 4]),
    /// `params` structures follow.
    RegionOfInterest {
        kind: &'a str,
        id: i32,
        parent: i32,
        rect: [u32; 4],
        params: u32,
    },
    TimeCode(#[serde(borrow)] TimeCode<'a>),
    /// The reference's caps follow.
    ReferenceTimestamp {
        timestamp: u64,
        duration: Option<u64>,
    },
    /// `tags` texts follow, then the structure, of the meta's name.
    Custom {
        tags: u32,
    },
    Caption {
        kind: i32,
        data: &'a [u8],
    },
    ActiveFormat {
        field: u8,
        spec: i32,
        value: i32,
    },
    Bar {
        field: u8,
        is_letterbox: bool,
        first: u32,
        second: u32,
    },
    /// The form of an audio meta, which is the elements' own.
    Audio(&'a [u8]),
    /// A meta in GStreamer's own form (`gst_meta_serialize`, 1.24), and the name of its type. What
    /// reads it is code of the library or plugin that has registered the type.
    Serialized {
        name: &'a str,
        data: &'a [u8],
    },
}

/// A frame's `GstVideoMeta`, without the layout of its planes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Video {
    /// GstVideoFormat.
    pub format: i32,
    /// Pixels a row in memory; a crop meta says which of them to show.
    pub width: u32,
    /// Rows in memory.
    pub height: u32,
    /// GstVideoFrameFlags.
    pub flags: u32,
    /// Padding and alignment, if there is any.
    pub alignment: Option<Alignment>,
}

/// `GstVideoAlignment`: pixels around the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are those of GStreamer's struct")]
pub struct Alignment {
    pub top: u32,
    pub bottom: u32,
    pub left: u32,
    pub right: u32,
    /// One less than the power of two to which each plane's rows are aligned.
    pub masks: [u32; 4],
}

/// `GstVideoTimeCode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeCode<'a> {
    /// Numerator and denominator of the rate.
    pub fps: (i32, i32),
    /// GstVideoTimeCodeFlags.
    pub flags: u32,
    /// Hours, minutes, seconds.
    pub time: [u32; 3],
    /// Frames of the second.
    pub frames: u32,
    /// Fields of the frame.
    pub field_count: u32,
    /// ISO 8601.
    pub daily_jam: Option<&'a str>,
}
