// SPDX-License-Identifier: MIT OR Apache-2.0

//! Image layout of a frame.

use super::layout::{BadLayout, Layout};
use crate::meta::wire::{Metas, VideoValues as _};
use frameshare::Descriptor;
use frameshare::event::form::meta::Video;
use gst_video::VideoInfo;

/// Image in a frame.
pub(super) struct Picture<'a> {
    /// Size of the memory; a crop meta may select a part of it.
    pub info: VideoInfo,
    pub layout: Layout,
    /// The layout is that of a buffer without GstVideoMeta.
    pub is_default: bool,
    meta: Option<&'a Video>,
}

impl<'a> Picture<'a> {
    /// Returns the image of a frame; `info` comes from the caps.
    pub fn of(
        descriptor: &Descriptor,
        metas: &'a Metas,
        info: &VideoInfo,
        size: usize,
    ) -> Result<Self, BadLayout> {
        // Ignore a meta with a smaller size or another format than the caps: reads by the caps
        // would pass the end of the memory.
        let meta = metas.video().filter(|video| {
            video.format() == info.format() && video.width >= info.width() && video.height >= info.height()
        });
        let bigger = meta.filter(|video| (video.width, video.height) != (info.width(), info.height()));
        let of_memory = bigger.and_then(|video| {
            VideoInfo::builder(info.format(), video.width, video.height)
                .interlace_mode(info.interlace_mode())
                .build()
                .ok()
        });
        // A frame copied on its way has room only for the size in the caps.
        let bigger =
            of_memory.and_then(|info| Some((Layout::of(descriptor.used_planes(), &info, size).ok()?, info)));
        if let Some((layout, info)) = bigger {
            return Ok(Self { info, layout, is_default: false, meta });
        }
        let layout = Layout::of(descriptor.used_planes(), info, size)?;
        let is_default = layout == Layout::default_of(info);
        Ok(Self { info: info.clone(), layout, is_default, meta })
    }

    /// Applies a crop by moving the start of each plane; returns false if that is not possible.
    pub fn crop(&mut self, x: u32, y: u32, shown: &VideoInfo) -> bool {
        let inside =
            |start: u32, length: u32, whole: u32| start.checked_add(length).is_some_and(|end| end <= whole);
        if !inside(x, shown.width(), self.info.width()) || !inside(y, shown.height(), self.info.height()) {
            return false;
        }
        let Some(layout) = self.layout.starting_at(&self.info, x, y) else { return false };
        *self = Self { info: shown.clone(), is_default: false, layout, meta: None };
        true
    }

    /// Returns whether a buffer in system memory would lose information without GstVideoMeta.
    pub fn needs_meta(&self) -> bool {
        !self.is_default || self.meta.is_some()
    }

    pub fn add_meta(&self, buffer: &mut gst::BufferRef) -> Result<(), glib::BoolError> {
        let mut meta = gst_video::VideoMeta::add_full(
            buffer,
            self.meta.map_or(gst_video::VideoFrameFlags::empty(), |video| video.flags()),
            self.info.format(),
            self.info.width(),
            self.info.height(),
            self.layout.offsets(),
            self.layout.strides(),
        )?;
        if let Some(alignment) = self.meta.and_then(|video| video.alignment()) {
            // If the alignment does not match the strides, the meta goes without it: no element
            // reads beyond the rows then.
            let _ = meta.set_alignment(&alignment);
        }
        Ok(())
    }

    /// Returns the same image in memory that begins elsewhere.
    pub fn in_memory(self, info: VideoInfo, layout: Layout) -> Self {
        Self { info, layout, is_default: false, ..self }
    }

    #[cfg(test)]
    pub fn lying(info: VideoInfo, layout: Layout) -> Self {
        Self { info, layout, is_default: false, meta: None }
    }
}
