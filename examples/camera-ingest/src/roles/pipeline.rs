// SPDX-License-Identifier: MIT OR Apache-2.0

//! Pipelines of roles: their end, their errors, their times.

use super::contexts;
use crate::config::Access;
use anyhow::{Context as _, Result, anyhow};
use frameshare::{Endpoint, make_printable};
use gst::{MessageView, prelude::*};
use std::{fs::DirBuilder, os::unix::fs::DirBuilderExt, path::Path, time::Duration};

/// Modes of sockets and their folder where other users may read.
const OPEN_SOCKET: u32 = 0o666;
const OPEN_FOLDER: u32 = 0o755;
/// Time that units wait for a lossless reader, and the number of units in shared memory: enough for
/// that time at 60 units a second.
const MAX_QUEUED_TIME: Duration = Duration::from_secs(10);
const MAX_UNITS: u32 = 1024;
/// Maximum bytes of an error's text.
const MAX_TEXT: usize = 1024;

/// A pipeline that is stopped before it is dropped. A new one has the clock CLOCK_MONOTONIC.
pub struct Pipeline(pub gst::Pipeline);

/// End of a pipeline.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    EndOfStream,
    /// Text of the first error, with its element.
    Failed(String),
}

impl Pipeline {
    pub fn new() -> Self {
        let pipeline = gst::Pipeline::new();
        pipeline.use_clock(Some(&gst::SystemClock::obtain()));
        contexts::share(&pipeline);
        Self(pipeline)
    }

    /// Makes the running time equal to CLOCK_MONOTONIC.
    pub fn with_monotonic_times(self) -> Self {
        self.0.set_base_time(gst::ClockTime::ZERO);
        self.0.set_start_time(gst::ClockTime::NONE);
        self
    }

    /// Starts it.
    ///
    /// # Errors
    ///
    /// The error of the element that did not start.
    pub fn play(&self) -> Result<()> {
        if self.0.set_state(gst::State::Playing).is_ok() {
            return Ok(());
        }
        match self.wait(Duration::from_millis(100)) {
            Some(End::Failed(error)) => Err(anyhow!(error)),
            _ => Err(anyhow!("the pipeline does not start")),
        }
    }

    /// Waits for the pipeline's end; none after the time, or before it when a message of the
    /// application arrives.
    pub fn wait(&self, time: Duration) -> Option<End> {
        let types = [gst::MessageType::Eos, gst::MessageType::Error, gst::MessageType::Application];
        let time = gst::ClockTime::from_nseconds(nanoseconds(time));
        let message = self.0.bus()?.timed_pop_filtered(time, &types)?;
        match message.view() {
            MessageView::Eos(_) => Some(End::EndOfStream),
            MessageView::Error(error) => Some(End::Failed(text_of(error))),
            _ => None,
        }
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        let _ = self.0.set_state(gst::State::Null);
    }
}

/// Returns the text of an error message, with the kind of its element and the last line of its
/// details.
pub fn text_of(error: &gst::message::Error) -> String {
    let element = error.src().and_then(|source| source.downcast_ref::<gst::Element>());
    let factory = element.and_then(gst::Element::factory);
    let source = factory.map_or("pipeline".into(), |factory| factory.name().to_string());
    let details = error.debug().map(|details| details.to_string()).unwrap_or_default();
    // The lines before name files of GStreamer.
    let detail = details.lines().skip(1).last().filter(|detail| !detail.is_empty());
    let detail = detail.map(|detail| format!(" ({detail})")).unwrap_or_default();
    let mut text = format!("{source}: {}{detail}", error.error());
    // A camera wrote a part of it, such as the reason of an RTSP status.
    make_printable(&mut text, MAX_TEXT);
    text
}

/// Makes an element.
///
/// # Errors
///
/// The error names the element that is missing.
pub fn make(name: &str) -> Result<gst::Element> {
    gst::ElementFactory::make(name)
        .build()
        .with_context(|| format!("element {name} is missing: install its GStreamer plugin"))
}

/// Makes the sink that exports a stream by its name.
pub fn exporting_sink(stream: &str, access: &Access) -> Result<gst::Element> {
    let sink = make("framesharesink")?;
    sink.set_property("sync", false);
    // The stream is there before its first buffer.
    sink.set_property("async", false);
    if access.users.is_empty() && access.groups.is_empty() {
        sink.set_property("stream", stream);
        return Ok(sink);
    }
    let endpoint = Endpoint::of_text(stream)?;
    if let Some(folder) = Path::new(endpoint.path()).parent().filter(|folder| !folder.exists()) {
        // Another role may make it at the same time.
        let _ = DirBuilder::new().mode(OPEN_FOLDER).create(folder);
    }
    let ids = |ids: &[u32]| gst::Array::new(ids.iter().copied());
    sink.set_property("socket-path", endpoint.path());
    sink.set_property("socket-mode", OPEN_SOCKET);
    sink.set_property("allowed-uids", ids(&access.users));
    sink.set_property("allowed-gids", ids(&access.groups));
    Ok(sink)
}

/// Makes the sink that exports an encoded stream. Units wait for a lossless reader that pauses,
/// such as a recorder whose disk is busy, before the reader is disconnected.
pub fn exporting_encoded_sink(stream: &str, access: &Access) -> Result<gst::Element> {
    let sink = exporting_sink(stream, access)?;
    sink.set_property("encoded", true);
    sink.set_property_from_str("slow-readers", "disconnect");
    sink.set_property("max-queued-time", nanoseconds(MAX_QUEUED_TIME));
    sink.set_property("max-slots", MAX_UNITS);
    Ok(sink)
}

fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos().try_into().unwrap_or(u64::MAX)
}
