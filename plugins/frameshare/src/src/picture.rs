//! How a picture lies in a frame.

use super::layout::{BadLayout, Layout};
use crate::meta::wire::{Metas, Video};
use frameshare::Descriptor;
use gst_video::VideoInfo;

/// A picture in a frame.
pub(super) struct Picture<'a> {
    /// Of the memory, which a crop meta may show a part of.
    pub info: VideoInfo,
    pub layout: Layout,
    /// It is the layout that a buffer without GstVideoMeta has.
    pub is_default: bool,
    meta: Option<&'a Video>,
}

impl<'a> Picture<'a> {
    /// `info` is what the caps say.
    pub fn of(
        descriptor: &Descriptor,
        metas: &'a Metas,
        info: &VideoInfo,
        size: usize,
    ) -> Result<Self, BadLayout> {
        // Memory that is smaller than its caps say, or in another format, would be read beyond its end.
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
        // A frame that was copied on its way has room for what its caps say alone.
        let bigger =
            of_memory.and_then(|info| Some((Layout::of(descriptor.used_planes(), &info, size).ok()?, info)));
        if let Some((layout, info)) = bigger {
            return Ok(Self { info, layout, is_default: false, meta });
        }
        let layout = Layout::of(descriptor.used_planes(), info, size)?;
        let is_default = layout == Layout::default_of(info);
        Ok(Self { info: info.clone(), layout, is_default, meta })
    }

    /// Shows only what a crop meta shows, by moving the planes' starts.
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

    /// Whether a buffer in system memory says less without GstVideoMeta.
    pub fn needs_meta(&self) -> bool {
        !self.is_default || self.meta.is_some()
    }

    pub fn add_meta(&self, buffer: &mut gst::BufferRef) -> Result<(), glib::BoolError> {
        let mut meta = gst_video::VideoMeta::add_full(
            buffer,
            self.meta.map_or(gst_video::VideoFrameFlags::empty(), Video::flags),
            self.info.format(),
            self.info.width(),
            self.info.height(),
            self.layout.offsets(),
            self.layout.strides(),
        )?;
        if let Some(alignment) = self.meta.and_then(Video::alignment) {
            // Where it does not go with the strides the meta stays without: nothing reads beyond its rows then.
            let _ = meta.set_alignment(&alignment);
        }
        Ok(())
    }

    /// The same picture in memory that begins elsewhere.
    pub fn in_memory(self, info: VideoInfo, layout: Layout) -> Self {
        Self { info, layout, is_default: false, ..self }
    }

    #[cfg(test)]
    pub fn lying(info: VideoInfo, layout: Layout) -> Self {
        Self { info, layout, is_default: false, meta: None }
    }
}
