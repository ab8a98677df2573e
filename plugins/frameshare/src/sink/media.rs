// SPDX-License-Identifier: MIT OR Apache-2.0

//! The media that upstream sends, from its caps.

use super::units::Units;
use frameshare::exporter::Unit;

/// The media that upstream sends, and where its next buffer belongs in it. Caps are checked before
/// (`refusal.rs`, `negotiation.rs`), and readers are told elsewhere.
#[derive(Default)]
pub(super) struct Media {
    /// Upstream has sent caps.
    is_known: bool,
    /// The layout of raw video.
    info: Option<gst_video::VideoInfo>,
    units: Units,
    /// The last caps from upstream, accepted or not.
    offered: Option<gst::Caps>,
    /// An empty buffer was dropped.
    has_dropped: bool,
}

impl Media {
    /// Applies accepted caps; raw video has an `info`.
    pub(super) fn change(&mut self, caps: &gst::CapsRef, info: Option<gst_video::VideoInfo>) {
        (self.is_known, self.info, self.units) = (true, info, Units::of(caps));
    }

    /// Records caps from upstream that may be refused.
    pub(super) fn offer(&mut self, caps: gst::Caps) {
        self.offered = Some(caps);
    }

    /// Returns the last caps from upstream, accepted or not, and forgets them.
    pub(super) fn take_offered(&mut self) -> Option<gst::Caps> {
        self.offered.take()
    }

    /// Returns whether upstream has sent caps.
    pub(super) fn is_known(&self) -> bool {
        self.is_known
    }

    /// The layout of raw video; none for other media.
    pub(super) fn info(&self) -> Option<&gst_video::VideoInfo> {
        self.info.as_ref()
    }

    /// Ends the present unit: the next buffer follows a discontinuity.
    pub(super) fn end_unit(&mut self) {
        self.units.reset();
    }

    /// Returns the dependency of the next buffer.
    pub(super) fn next_unit(&mut self, buffer: &gst::BufferRef) -> Unit {
        self.units.next(buffer)
    }

    /// Returns whether a buffer is an empty one in raw video.
    pub(super) fn is_empty(&self, buffer: &gst::BufferRef) -> bool {
        self.info.is_some() && buffer.size() == 0
    }

    /// Records that an empty buffer is dropped. Returns whether it is the first one.
    pub(super) fn drop_empty(&mut self) -> bool {
        !std::mem::replace(&mut self.has_dropped, true)
    }
}
