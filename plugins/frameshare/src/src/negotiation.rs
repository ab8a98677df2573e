// SPDX-License-Identifier: MIT OR Apache-2.0

//! Negotiation: formats of the stream, as caps; what downstream accepts.

use super::{
    cuda::{self, Takes},
    errors,
    frames::{Downstream, Shape},
    imp::FrameshareSrc,
    log::CAT,
    running::Running,
    settings::FrameshareSrcVideoMeta,
};
use crate::{meta, pipeline, sync::lock};
use frameshare::{Format, reader::Reader};
use gst::{prelude::*, subclass::prelude::*};
use gst_base::prelude::*;
use std::sync::atomic::Ordering::Relaxed;

impl FrameshareSrc {
    /// Handles a format change of the stream.
    pub(super) fn take_format(&self, running: &mut Running, format: &Format) -> Result<(), gst::FlowError> {
        let caps = meta::parse_caps(&format.caps, &running.budget).map_err(|error| {
            self.post_error_message(errors::of_caps(error, &format.caps, &running.endpoint));
            gst::FlowError::Error
        })?;
        let on_gpu = running.reader.as_ref().is_some_and(Reader::is_on_gpu);
        self.announce(running, &caps, on_gpu)
    }

    /// Announces `caps` downstream, with the feature of the memory that the following frames are
    /// in.
    pub(super) fn announce(
        &self,
        running: &mut Running,
        caps: &gst::Caps,
        on_gpu: bool,
    ) -> Result<(), gst::FlowError> {
        let caps = cuda::caps_in(caps, on_gpu);
        gst::info!(CAT, imp = self, "Frames are {caps}");
        self.figures.on_gpu.store(on_gpu, Relaxed);
        let shape = Shape::of(&caps);
        let frame_duration = shape.frame_duration();
        running.shape = Some(shape);
        running.reported.layout = false;
        let is_new_stream = self.push_stream_start(running);
        if is_new_stream && self.obj().src_pad().current_caps().as_ref() == Some(&caps) {
            // GstBaseSrc pushes only caps that differ from those of the stream before.
            self.push_now(gst::event::Caps::new(&caps));
        }
        let before = self.negotiated.change(|negotiated| {
            negotiated.caps = Some(caps.clone());
            std::mem::replace(&mut negotiated.frame_duration, frame_duration)
        });
        if self.obj().negotiate() {
            running.opening.lacks_segment |= is_new_stream;
            if running.settings.is_live {
                self.push_segment(running);
            }
            if before != frame_duration {
                self.post_latency();
            }
            return Ok(());
        }
        if self.obj().src_pad().pad_flags().contains(gst::PadFlags::FLUSHING) {
            return Err(gst::FlowError::Flushing);
        }
        let takes = Takes::of(&self.obj().src_pad().peer_query_caps(None));
        self.post_error_message(errors::of_negotiation(&caps, on_gpu, takes));
        Err(gst::FlowError::NotNegotiated)
    }

    /// Makes the pipeline query the latency again: by a message, as elements do, and on a thread of
    /// GStreamer's, since many applications do not handle the message, and their sinks would find
    /// every frame late. The query takes the pipeline's state lock, whose holder may wait for this
    /// thread.
    pub(super) fn post_latency(&self) {
        let element = self.obj();
        let _ = element.post_message(gst::message::Latency::builder().src(&*element).build());
        if let Ok(pipeline) = pipeline::top(element.upcast_ref()).downcast::<gst::Pipeline>() {
            pipeline.call_async(|pipeline| drop(pipeline.recalculate_latency()));
        }
    }

    /// Sends the caps downstream; fails if they are refused.
    pub(super) fn offer_caps(&self) -> Result<(), gst::LoggableError> {
        let caps = self.negotiated.read().caps.clone();
        // The caps are unknown until the connection is made.
        let Some(caps) = caps else { return Ok(()) };
        // Query first: refused caps events surface only with the next buffer, without a reason.
        let element = self.obj();
        if element.src_pad().peer_query_caps(Some(&caps)).is_empty() {
            return Err(gst::loggable_error!(CAT, "downstream refuses {caps}"));
        }
        element.set_caps(&caps).map_err(|_| gst::loggable_error!(CAT, "downstream refuses {caps}"))
    }

    /// Records what downstream accepts, and declines its pools.
    pub(super) fn note_downstream(
        &self,
        query: &mut gst::query::Allocation,
    ) -> Result<(), gst::LoggableError> {
        let always = lock(&self.settings).video_meta == FrameshareSrcVideoMeta::Always;
        let downstream = Downstream {
            video_meta: always || query.find_allocation_meta::<gst_video::VideoMeta>().is_some(),
            crop_meta: query.find_allocation_meta::<gst_video::VideoCropMeta>().is_some(),
            keeps: query.allocation_pools().map(|(_, _, minimum, _)| minimum).max().unwrap_or(0),
        };
        let pools = query.allocation_pools();
        let cuda_stream = pools.filter_map(|(pool, ..)| gst_cuda::pool::stream(&pool?.config())).next();
        // Frames are in the exporter's memory; a downstream pool would be allocated for nothing.
        while query.allocation_pools().next().is_some() {
            query.remove_nth_allocation_pool(0);
        }
        gst::debug!(CAT, imp = self, "Downstream: {downstream:?}");
        self.negotiated.change(|negotiated| {
            (negotiated.downstream, negotiated.cuda_stream) = (downstream, cuda_stream);
        });
        Ok(())
    }

    /// Drops allocation queries without caps, which GstBaseSrc sends before the first buffer and
    /// some sinks handle badly. The probe removes itself at the first query with caps.
    pub(super) fn hold_back_allocation_queries(&self) {
        self.obj().src_pad().add_probe(gst::PadProbeType::QUERY_DOWNSTREAM, |_, info| {
            match info.query().map(|query| query.view()) {
                Some(gst::QueryView::Allocation(query)) if query.caps().is_none() => {
                    gst::PadProbeReturn::Drop
                }
                Some(gst::QueryView::Allocation(_)) => gst::PadProbeReturn::Remove,
                _ => gst::PadProbeReturn::Ok,
            }
        });
    }
}
