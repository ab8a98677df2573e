// SPDX-License-Identifier: MIT OR Apache-2.0

//! The origin of frames: the format of the stream, and the user of its exporter.

use crate::video::{VideoError, VideoFormat};
use frameshare_protocol::message::Format;

/// Properties of all frames between two formats.
#[derive(Debug)]
pub(super) struct Origin {
    pub video: Result<VideoFormat, VideoError>,
    /// The exporter runs as this process's user.
    pub is_own_user: bool,
}

impl Origin {
    /// The origin of frames before the first format.
    pub fn without_format(is_own_user: bool) -> Self {
        Self { video: Err(VideoError::NoFormat), is_own_user }
    }

    /// The origin of the frames after `format`.
    pub fn of(format: &Format, is_own_user: bool) -> Self {
        Self { video: VideoFormat::of_caps(&format.caps), is_own_user }
    }
}
