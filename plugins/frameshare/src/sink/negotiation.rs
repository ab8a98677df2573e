// SPDX-License-Identifier: MIT OR Apache-2.0

//! Negotiation: the caps that the sink accepts, and those that it announces to readers.

use super::{
    caps,
    imp::FrameshareSink,
    kinds::{Layout, Memory},
    log::CAT,
};
use crate::{drm::DrmFrames, meta::budget::Budget};
use frameshare::{Format, Video};
use gst::{prelude::*, subclass::prelude::*};

impl FrameshareSink {
    /// Returns the caps that the sink accepts now.
    pub(super) fn accepted_caps(&self, filter: Option<&gst::Caps>) -> Option<gst::Caps> {
        let (any_caps, memory) = {
            let settings = self.settings.read();
            (settings.any_caps, settings.memory)
        };
        let has_gpu = self
            .stream()
            .map_or(memory != Memory::Host, |stream| stream.gpu().is_some() || stream.awaits_gpu());
        let mut caps = if any_caps { gst::Caps::new_any() } else { caps::accepted(has_gpu) };
        self.without_encoded(&mut caps);
        if self.is_being_linked() {
            caps.merge(caps::any_memory());
        }
        Some(match filter {
            Some(filter) => caps::preferred(&caps, filter),
            None => caps,
        })
    }

    /// Sends new caps to readers, or refuses them.
    pub(super) fn take_caps(&self, caps: &gst::Caps) -> Result<(), gst::LoggableError> {
        let stream = self.stream();
        // The pad's probe has posted the error.
        if self.check_memory(caps).is_err() {
            return Err(gst::loggable_error!(CAT, "refused {}", caps));
        }
        let drm = DrmFrames::of(caps);
        let has_device_layout = drm.as_ref().is_some_and(|frames| frames.has_device_layout);
        let picture = drm.as_ref().map_or(caps, |frames| &frames.picture);
        // Frames in rows have the caps of any memory: readers that get no dma-bufs get copies.
        let caps = if has_device_layout { caps } else { picture };
        let cuda = stream.as_ref().filter(|_| caps::is_cuda(caps));
        if let Some(why) = cuda.and_then(|stream| self.begin_gpu(stream)) {
            self.post_error_message(caps::without_gpu(&why));
            self.note_failure();
            return Err(gst::loggable_error!(CAT, "refused {}", caps));
        }
        let info = crate::pool::video_info(picture);
        let video = info.as_ref().filter(|_| !has_device_layout).map(|info| Video {
            format: info.format().to_string(),
            width: info.width(),
            height: info.height(),
        });
        self.forget_prepared();
        self.input.edit(|input| input.media.change(caps, info));
        if let Some(stream) = stream {
            self.find_out_liveness();
            let (auto, layout) = {
                let settings = self.settings.read();
                (settings.memory == Memory::Auto, settings.layout)
            };
            stream.set_device_layout(has_device_layout);
            stream.set_compact(layout == Layout::Compact);
            stream.use_host_memory(auto && !caps::is_cuda(caps));
            let text = caps::without_cuda(caps).to_string();
            // Readers parse the text themselves and accept known types of fields only.
            if crate::meta::parse_caps(&text, &Budget::new(u64::MAX)).is_err() {
                self.post_error_message(caps::unreadable(&text));
                return Err(gst::loggable_error!(CAT, "readers cannot read {}", caps));
            }
            stream.exporter.set_format(Format { caps: text, video });
        }
        Ok(())
    }

    /// Asks upstream whether it is live.
    pub(super) fn find_out_liveness(&self) {
        let mut query = gst::query::Latency::new();
        let pad = self.obj().static_pad("sink");
        let is_live = pad.is_some_and(|pad| pad.peer_query(&mut query)) && query.result().0;
        self.pacing.set_live(is_live);
    }
}
