// SPDX-License-Identifier: MIT OR Apache-2.0

//! The decoder of one encoded stream: the one of the highest rank that works here.

use crate::roles::{contexts, pipeline::make};
use anyhow::{Context as _, Result, bail};
use gst::{PadProbeData, PadProbeReturn, PadProbeType, prelude::*};
use std::sync::{Arc, Mutex, PoisonError};

/// Units that wait for the decoder. If it is late by more, it goes on at the next key unit.
const MAX_QUEUED: u32 = 14;

/// Maximum width and height of a frame, which has 100 MB then.
const MAX_SIDE: i32 = 8192;

/// Source and decoder in front of a pad. Dropping removes them.
pub struct Decoder {
    pipeline: gst::Pipeline,
    source: gst::Element,
    target: gst::Pad,
    decoder: Arc<Mutex<Option<gst::Element>>>,
}

impl Decoder {
    /// Decodes a stream into a pad. The decoder is chosen when the stream's caps are known; `name`
    /// is that of the source.
    pub fn start(pipeline: &gst::Pipeline, stream: &str, name: &str, target: &gst::Pad) -> Result<Self> {
        let source = make("framesharesrc")?;
        source.set_property("name", name);
        source.set_property("stream", stream);
        source.set_property_from_str("policy", "latest");
        source.set_property("max-held", MAX_QUEUED + 2);
        source.set_property("max-queued", MAX_QUEUED);
        source.set_property_from_str("on-disconnect", "wait");
        source.set_property("connection-timeout", -1i64);
        pipeline.add(&source)?;
        let this = Self {
            pipeline: pipeline.clone(),
            source: source.clone(),
            target: target.clone(),
            decoder: Arc::default(),
        };
        let pad = source.static_pad("src").context("framesharesrc has no pad")?;
        let (weak, target, decoder) = (pipeline.downgrade(), target.clone(), this.decoder.clone());
        pad.add_probe(PadProbeType::EVENT_DOWNSTREAM, move |pad, info| {
            let Some(PadProbeData::Event(event)) = &info.data else { return PadProbeReturn::Ok };
            let (gst::EventView::Caps(event), Some(pipeline)) = (event.view(), weak.upgrade()) else {
                return PadProbeReturn::Ok;
            };
            let mut decoder = decoder.lock().unwrap_or_else(PoisonError::into_inner);
            if decoder.is_some() {
                return PadProbeReturn::Ok;
            }
            match plug(&pipeline, pad, event.caps(), &target) {
                Ok(element) => *decoder = Some(element),
                Err(error) => gst::element_error!(pipeline, gst::CoreError::MissingPlugin, ("{error:#}")),
            }
            PadProbeReturn::Ok
        });
        source.sync_state_with_parent()?;
        Ok(this)
    }

    /// Name of the decoder's element.
    pub fn name(&self) -> Option<String> {
        let decoder = self.decoder.lock().unwrap_or_else(PoisonError::into_inner);
        Some(decoder.as_ref()?.factory()?.name().to_string())
    }
}

impl Drop for Decoder {
    fn drop(&mut self) {
        // The source first: its thread works in the decoder.
        let _ = self.source.set_state(gst::State::Null);
        let decoder = self.decoder.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(decoder) = decoder {
            if let Some(pad) = decoder.static_pad("src") {
                let _ = pad.unlink(&self.target);
            }
            let _ = decoder.set_state(gst::State::Null);
            let _ = self.pipeline.remove(&decoder);
        }
        let _ = self.pipeline.remove(&self.source);
    }
}

/// Returns the element that refuses frames that are too large: a unit of a few bytes may announce
/// any size, also another one than its caps. A decoder such as `jpegdec` takes memory for one frame
/// before, at most the 2 GiB by which GStreamer bounds it.
pub fn bound() -> Result<gst::Element> {
    let filter = make("capsfilter")?;
    let sides = gst::IntRange::new(1, MAX_SIDE);
    let caps = gst::Caps::builder("video/x-raw").any_features();
    filter.set_property("caps", caps.field("width", sides).field("height", sides).build());
    Ok(filter)
}

/// Adds the limit of [`bound`] to an error that may come from it.
pub fn explain(error: String) -> String {
    match error.contains("not-negotiated") {
        true => format!("{error}: frames may have at most {MAX_SIDE} pixels on each side"),
        false => error,
    }
}

/// Adds the best decoder that starts, and links it.
pub fn plug(
    pipeline: &gst::Pipeline,
    pad: &gst::Pad,
    caps: &gst::CapsRef,
    target: &gst::Pad,
) -> Result<gst::Element> {
    let caps = caps.to_owned();
    let kind = gst::ElementFactoryType::DECODER | gst::ElementFactoryType::MEDIA_VIDEO;
    let all = gst::ElementFactory::factories_with_type(kind, gst::Rank::MARGINAL);
    let mut fitting: Vec<_> = all.iter().filter(|factory| factory.can_sink_all_caps(&caps)).collect();
    fitting.sort_by_key(|factory| std::cmp::Reverse(factory.rank()));
    for factory in fitting {
        let Ok(decoder) = factory.create().build() else { continue };
        // In the pipeline, it finds the context of its device that others use.
        pipeline.add(&decoder)?;
        // A decoder of hardware that is not there fails in READY.
        if contexts::open(&decoder).is_err() {
            let _ = decoder.set_state(gst::State::Null);
            pipeline.remove(&decoder)?;
            continue;
        }
        if decoder
            .find_property("max-threads")
            .is_some_and(|property| property.value_type() == glib::Type::I32)
        {
            // Threads for frames delay the stream by as many frames.
            decoder.set_property("max-threads", 1i32);
        }
        decoder.static_pad("src").context("the decoder has no source pad")?.link(target)?;
        pad.link(&decoder.static_pad("sink").context("the decoder has no sink pad")?)?;
        decoder.sync_state_with_parent()?;
        return Ok(decoder);
    }
    bail!("no decoder for {caps}: install its GStreamer plugin")
}
