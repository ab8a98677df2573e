// SPDX-License-Identifier: MIT OR Apache-2.0

//! Events of GStreamer on their way from the sink to the sources of its readers.
//!
//! The engine carries them as a kind and bytes, at their place among the frames; a reader that
//! joins later gets the newest sticky one of each kind. Kinds and form are those of
//! [`frameshare::event::form`], and the same for every version of GStreamer.
//!
//! # Forwarded events
//!
//! | event | sticky | |
//! | --- | --- | --- |
//! | stream-start | yes | stream id, flags; equal group ids of one exporting process stay equal |
//! | tag | yes, for each scope | all values that can be serialized, images with their bytes |
//! | gap | no | with its times on `CLOCK_MONOTONIC`, like a frame's |
//! | custom-downstream, custom-both | no | if all fields of the structure can be serialized |
//! | custom-downstream-sticky | yes, for each name | if all fields of the structure can be serialized |
//! | segment | yes | as a [`Timeline`], for readers that are not live |
//! | latency | yes | time by which the frames of a live exporter come later than their times |
//!
//! Caps and the end of the stream are the engine's own. Frames carry times of the clock; a live
//! reader ignores the exporter's segments. Flushes are not sent, which would make a recorder
//! truncate its file: a seek is a discontinuity.
//!
//! Received events come from an untrusted process: [`decode`] checks everything that GStreamer
//! would accept unchecked.

mod tags;

use crate::{
    meta::{
        budget::{Budget, Charge, OverBudget},
        form::{Invalid, Reader, Writer},
    },
    times::Timeline,
};
use frameshare::event::form::kind;
pub(crate) use frameshare::event::form::{Gap, StreamStart};
use serde::{Serialize, de::DeserializeOwned};
use std::sync::LazyLock;

static CAT: LazyLock<gst::DebugCategory> = LazyLock::new(|| {
    gst::DebugCategory::new(
        "frameshare-events",
        gst::DebugColorFlags::empty(),
        Some("Events between processes"),
    )
});

/// Maximum latency in ns that a reader believes.
const MAX_LATENCY: u64 = 3_600_000_000_000;

/// Contains running times and a request to upstream, both of one pipeline only.
const FORCE_KEY_UNIT: &str = "GstForceKeyUnit";

/// The reason why a received event is refused, or an event cannot be sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EventError {
    #[error("an event of kind {0} is cut short or damaged")]
    Malformed(u32),
    #[error("an event of kind {0} carries an impossible {1}")]
    Impossible(u32, &'static str),
    #[error("{0} cannot be sent")]
    Unwritable(String),
    #[error(transparent)]
    OverBudget(#[from] OverBudget),
}

/// Returns the start of a stream without an id from its exporter.
pub(crate) fn start_of_unnamed(id: String) -> StreamStart {
    StreamStart { id, flags: 0, group: None }
}

/// A decoded event of the exporter.
#[derive(Clone, Debug)]
pub(crate) enum Incoming {
    StreamStart(StreamStart),
    Gap(Gap),
    Timeline(Timeline),
    /// Latency of the exporter in ns.
    Latency(u64),
    /// An event to be pushed unchanged.
    Event(gst::Event),
}

/// Returns the engine's event for one of GStreamer; none for events that do not cross. The caller
/// converts the times of a gap: see [`encode_gap`].
pub(crate) fn encode(event: &gst::EventRef) -> Result<Option<frameshare::Event>, EventError> {
    let encoded = match event.view() {
        gst::EventView::StreamStart(start) => {
            let group = event.structure().and_then(|fields| fields.get::<u32>("group-id").ok());
            let id = start.stream_id().to_owned();
            let start = StreamStart { id, flags: start.stream_flags().bits(), group };
            sticky(kind::STREAM_START, write(&start))
        }
        gst::EventView::Tag(event) => {
            let list = event.tag();
            let kind =
                if list.scope() == gst::TagScope::Global { kind::GLOBAL_TAGS } else { kind::STREAM_TAGS };
            sticky(kind, tags::encode(list))
        }
        gst::EventView::CustomDownstream(_) => passing(kind::CUSTOM, custom(event)?),
        gst::EventView::CustomBoth(_) => passing(kind::CUSTOM_BOTH, custom(event)?),
        gst::EventView::CustomDownstreamSticky(_) => {
            let kind = event.structure().map_or(0, |fields| kind::custom_sticky(fields.name()));
            sticky(kind, custom(event)?)
        }
        _ => return Ok(None),
    };
    let is_private = event.structure().is_some_and(|fields| fields.name() == FORCE_KEY_UNIT);
    Ok(Some(encoded).filter(|_| !is_private))
}

/// The engine's event for a gap.
pub(crate) fn encode_gap(gap: Gap) -> frameshare::Event {
    passing(kind::GAP, write(&gap))
}

/// The engine's event for the exporter's segment and its place on the clock.
pub(crate) fn encode_timeline(timeline: &Timeline) -> frameshare::Event {
    sticky(kind::SEGMENT, write(timeline))
}

/// The engine's event for the time by which frames come later than their times, in ns.
pub(crate) fn encode_latency(latency: u64) -> frameshare::Event {
    sticky(kind::LATENCY, write(&latency))
}

/// Returns the message that keeps a sticky event of an earlier stream from readers that join later.
pub(crate) fn forget(kind: u32) -> frameshare::Event {
    sticky(kind, Vec::new())
}

/// Returns whether an event starts a stream, and so ends the sticky events of the one before.
pub(crate) fn is_stream_start(event: &frameshare::Event) -> bool {
    event.kind == kind::STREAM_START
}

/// Decodes an event from the exporter; none if it has no meaning here. An event that is pushed
/// unchanged stays charged to the budget while it exists, including on the pads that keep a sticky
/// one.
pub(crate) fn decode(event: &frameshare::Event, budget: &Budget) -> Result<Option<Incoming>, EventError> {
    let (kind, payload) = (event.kind, event.payload.as_slice());
    let impossible = |what| EventError::Impossible(kind, what);
    if payload.is_empty() {
        return Ok(None);
    }
    let incoming = match kind {
        kind::STREAM_START => {
            let start = read::<StreamStart>(kind, payload)?;
            start.check().map_err(impossible)?;
            Incoming::StreamStart(start)
        }
        kind::STREAM_TAGS | kind::GLOBAL_TAGS => {
            let scope = if kind == kind::GLOBAL_TAGS { gst::TagScope::Global } else { gst::TagScope::Stream };
            built(kind, budget, |charge| {
                Ok(gst::event::Tag::new(tags::decode(Reader::new(payload, charge), scope)?))
            })?
        }
        kind::GAP => {
            let gap = read::<Gap>(kind, payload)?;
            gap.check().map_err(impossible)?;
            Incoming::Gap(gap)
        }
        kind::SEGMENT => {
            let timeline = read::<Timeline>(kind, payload)?;
            if !timeline.is_valid() {
                return Err(impossible("segment"));
            }
            Incoming::Timeline(timeline)
        }
        kind::LATENCY => Incoming::Latency(read::<u64>(kind, payload)?.min(MAX_LATENCY)),
        kind::CUSTOM => custom_of(kind, payload, budget, gst::event::CustomDownstream::new)?,
        kind::CUSTOM_BOTH => custom_of(kind, payload, budget, gst::event::CustomBoth::new)?,
        kind if kind::is_custom_sticky(kind) => {
            custom_of(kind, payload, budget, gst::event::CustomDownstreamSticky::new)?
        }
        _ => return Ok(None),
    };
    Ok(Some(incoming))
}

fn sticky(kind: u32, payload: Vec<u8>) -> frameshare::Event {
    frameshare::Event { kind, sticky: true, payload }
}

fn passing(kind: u32, payload: Vec<u8>) -> frameshare::Event {
    frameshare::Event { kind, sticky: false, payload }
}

fn write(content: &impl Serialize) -> Vec<u8> {
    // Infallible: plain data into a growing buffer.
    postcard::to_allocvec(content).unwrap_or_default()
}

fn read<T: DeserializeOwned>(kind: u32, payload: &[u8]) -> Result<T, EventError> {
    match postcard::take_from_bytes(payload) {
        Ok((content, [])) => Ok(content),
        _ => Err(EventError::Malformed(kind)),
    }
}

/// Returns the bytes of an event's structure.
fn custom(event: &gst::EventRef) -> Result<Vec<u8>, EventError> {
    let Some(fields) = event.structure() else { return Err(EventError::Unwritable("structure".into())) };
    let mut writer = Writer::default();
    writer.structure(fields).map_err(|error| EventError::Unwritable(error.0))?;
    Ok(writer.0)
}

fn custom_of(
    kind: u32,
    payload: &[u8],
    budget: &Budget,
    event: fn(gst::Structure) -> gst::Event,
) -> Result<Incoming, EventError> {
    built(kind, budget, |charge| {
        let mut reader = Reader::new(payload, charge);
        let structure = reader.structure()?;
        if reader.is_at_end() { Ok(event(structure)) } else { Err(Invalid::Malformed) }
    })
}

/// Builds an event with its charge attached.
fn built(
    kind: u32,
    budget: &Budget,
    build: impl FnOnce(&mut Charge) -> Result<gst::Event, Invalid>,
) -> Result<Incoming, EventError> {
    let mut charge = budget.charge();
    let built = charge.item(0).map_err(Invalid::from).and_then(|()| build(&mut charge));
    let mut event = built.map_err(|error| match error {
        Invalid::Malformed => EventError::Malformed(kind),
        Invalid::Impossible(what) => EventError::Impossible(kind, what),
        Invalid::OverBudget(error) => EventError::OverBudget(error),
    })?;
    charge.attach(event.make_mut().upcast_mut());
    Ok(Incoming::Event(event))
}

#[cfg(test)]
mod tests;
