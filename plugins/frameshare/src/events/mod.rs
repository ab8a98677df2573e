// SPDX-License-Identifier: MIT OR Apache-2.0

//! Events of GStreamer on their way from the sink to the sources of its readers.
//!
//! The engine carries them as a kind and bytes, at their place among the frames; a reader that
//! joins later gets the newest sticky one of each kind. The form is this plugin's own, in
//! [postcard](https://postcard.jamesmunns.com/wire-format) encoding, and the same for every version
//! of GStreamer. A kind's form never changes; a new form gets a new number, and a reader ignores
//! unknown numbers.
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
//!
//! Caps and the end of the stream are the engine's own. Frames carry times of the clock; a live
//! reader ignores the exporter's segments. Flushes are not sent, which would make a recorder
//! truncate its file: a seek is a discontinuity.
//!
//! Received events come from an untrusted process: [`decode`] checks everything that GStreamer
//! would accept unchecked.

mod tags;
mod timeline;

pub(crate) use timeline::Timeline;

use crate::meta::{
    budget::{Budget, Charge, OverBudget},
    form::{Invalid, Reader, Writer},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::sync::LazyLock;

static CAT: LazyLock<gst::DebugCategory> = LazyLock::new(|| {
    gst::DebugCategory::new(
        "frameshare-events",
        gst::DebugColorFlags::empty(),
        Some("Events between processes"),
    )
});

const STREAM_START: u32 = frameshare::Event::STREAM_START;
const GAP: u32 = 4;
const TIMELINE: u32 = 11;
// 2, 3, 5, 6 and those with bit 31 contained GStreamer's text form.
const STREAM_TAGS: u32 = 7;
const GLOBAL_TAGS: u32 = 8;
const CUSTOM: u32 = 9;
const CUSTOM_BOTH: u32 = 10;
/// The upper two bits; the others come from the structure's name: the newest of each name is kept.
const CUSTOM_STICKY: u32 = 0b01 << 30;
const UPPER_BITS: u32 = 0b11 << 30;

/// Maximum length of a stream id in bytes.
const MAX_STREAM_ID: usize = 4096;
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

/// The start of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StreamStart {
    pub id: String,
    flags: u32,
    /// Meaningful in the exporter's process only.
    pub group: Option<u32>,
}

impl StreamStart {
    /// The start of a stream without an id from its exporter.
    pub fn of_unnamed(id: String) -> Self {
        Self { id, flags: 0, group: None }
    }

    pub fn flags(&self) -> gst::StreamFlags {
        gst::StreamFlags::from_bits_truncate(self.flags)
    }
}

/// A time without data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Gap {
    /// ns of `CLOCK_MONOTONIC`.
    pub pts: u64,
    pub duration: Option<u64>,
    flags: u32,
}

impl Gap {
    pub fn new(pts: u64, duration: Option<u64>, flags: gst::GapFlags) -> Self {
        Self { pts, duration, flags: flags.bits() }
    }

    pub fn flags(&self) -> gst::GapFlags {
        gst::GapFlags::from_bits_truncate(self.flags)
    }
}

/// A decoded event of the exporter.
#[derive(Clone, Debug)]
pub(crate) enum Incoming {
    StreamStart(StreamStart),
    Gap(Gap),
    Timeline(Timeline),
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
            sticky(STREAM_START, write(&start))
        }
        gst::EventView::Tag(event) => {
            let list = event.tag();
            let kind = if list.scope() == gst::TagScope::Global { GLOBAL_TAGS } else { STREAM_TAGS };
            sticky(kind, tags::encode(list))
        }
        gst::EventView::CustomDownstream(_) => passing(CUSTOM, custom(event)?),
        gst::EventView::CustomBoth(_) => passing(CUSTOM_BOTH, custom(event)?),
        gst::EventView::CustomDownstreamSticky(_) => {
            let kind = event.structure().map_or(0, |fields| of_name(fields.name()));
            sticky(kind, custom(event)?)
        }
        _ => return Ok(None),
    };
    let is_private = event.structure().is_some_and(|fields| fields.name() == FORCE_KEY_UNIT);
    Ok(Some(encoded).filter(|_| !is_private))
}

/// The engine's event for a gap.
pub(crate) fn encode_gap(gap: Gap) -> frameshare::Event {
    passing(GAP, write(&gap))
}

/// The engine's event for the exporter's segment and its place on the clock.
pub(crate) fn encode_timeline(timeline: &Timeline) -> frameshare::Event {
    sticky(TIMELINE, write(timeline))
}

/// Returns the message that keeps a sticky event of an earlier stream from readers that join later.
pub(crate) fn forget(kind: u32) -> frameshare::Event {
    sticky(kind, Vec::new())
}

/// Returns whether an event starts a stream, and so ends the sticky events of the one before.
pub(crate) fn is_stream_start(event: &frameshare::Event) -> bool {
    event.kind == STREAM_START
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
        STREAM_START => {
            let start = read::<StreamStart>(kind, payload)?;
            if start.id.is_empty() || start.id.len() > MAX_STREAM_ID || start.id.contains('\0') {
                return Err(impossible("stream id"));
            }
            Incoming::StreamStart(start)
        }
        STREAM_TAGS | GLOBAL_TAGS => {
            let scope = if kind == GLOBAL_TAGS { gst::TagScope::Global } else { gst::TagScope::Stream };
            built(kind, budget, |charge| {
                Ok(gst::event::Tag::new(tags::decode(Reader::new(payload, charge), scope)?))
            })?
        }
        GAP => {
            let gap = read::<Gap>(kind, payload)?;
            // All ones mean no time.
            if gap.pts == u64::MAX || gap.duration == Some(u64::MAX) {
                return Err(impossible("time"));
            }
            Incoming::Gap(gap)
        }
        TIMELINE => {
            let timeline = read::<Timeline>(kind, payload)?;
            if !timeline.is_valid() {
                return Err(impossible("segment"));
            }
            Incoming::Timeline(timeline)
        }
        CUSTOM => custom_of(kind, payload, budget, gst::event::CustomDownstream::new)?,
        CUSTOM_BOTH => custom_of(kind, payload, budget, gst::event::CustomBoth::new)?,
        kind if kind & UPPER_BITS == CUSTOM_STICKY => {
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

/// Returns the kind of sticky custom events of a name: FNV-1a, in 30 bits.
fn of_name(name: &str) -> u32 {
    let hash =
        name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash & !UPPER_BITS | CUSTOM_STICKY
}

#[cfg(test)]
mod tests;
