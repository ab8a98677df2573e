//! Events of GStreamer on their way from the sink to the sources of its readers.
//!
//! The engine carries them as a kind and bytes, at their place among the frames; of sticky ones a reader that joins
//! later gets the newest of each kind. The form is our own, in [postcard](https://postcard.jamesmunns.com/wire-format)
//! encoding, and the same on every GStreamer. A kind's form never changes; a new form gets a new number, and a reader
//! ignores the numbers that it does not know.
//!
//! # What crosses
//!
//! | event | sticky | |
//! | --- | --- | --- |
//! | stream-start | yes | stream id, flags; equal group ids of one exporting process stay equal |
//! | tag | yes, for each scope | all values that can be written down, images with their bytes |
//! | gap | no | with its times on `CLOCK_MONOTONIC`, like a frame's |
//! | custom-downstream, custom-both | no | where all fields of the structure can be written down |
//! | custom-downstream-sticky | yes, for each name | likewise |
//!
//! Caps and the end of the stream are the engine's own. Segments are not sent, since times cross as times of the clock;
//! nor are flushes, which would make a recorder throw its file away: a seek is a discontinuity.
//!
//! What comes in was written by a process that nobody trusts: [`decode`] checks what GStreamer would take without
//! looking.

mod tags;

use crate::meta::parse_structure;
use gst::prelude::*;
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
const STREAM_TAGS: u32 = 2;
const GLOBAL_TAGS: u32 = 3;
const GAP: u32 = 4;
const CUSTOM: u32 = 5;
const CUSTOM_BOTH: u32 = 6;
/// This bit, and the others from the structure's name: the newest of each name is kept.
const CUSTOM_STICKY: u32 = 1 << 31;

/// Most bytes of a stream's id.
const MAX_STREAM_ID: usize = 4096;
/// Speaks of running times and of a request upstream, both of one pipeline alone.
const FORCE_KEY_UNIT: &str = "GstForceKeyUnit";

/// What is wrong with an event that came in, or why one cannot be sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EventError {
    #[error("an event of kind {0} is cut short or damaged")]
    Malformed(u32),
    #[error("an event of kind {0} carries an impossible {1}")]
    Impossible(u32, &'static str),
    #[error("{0} cannot be written down")]
    Unwritable(String),
}

/// The start of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StreamStart {
    pub id: String,
    flags: u32,
    /// A number that means something in the exporter's process alone.
    pub group: Option<u32>,
}

impl StreamStart {
    /// The start of a stream whose exporter names none.
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

/// What an event from the exporter means.
#[derive(Clone, Debug)]
pub(crate) enum Incoming {
    StreamStart(StreamStart),
    Gap(Gap),
    /// To be pushed as it is.
    Event(gst::Event),
}

/// The engine's event for one of GStreamer; nothing for those that do not cross. A gap's times are the caller's: see
/// [`encode_gap`].
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
            sticky(kind, write(&tags::Tags::of(list)))
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

/// What has to be sent so that a reader that joins later does not get a sticky event of an earlier stream.
pub(crate) fn forget(kind: u32) -> frameshare::Event {
    sticky(kind, Vec::new())
}

/// Whether an event starts a stream, and so ends what was said of the one before.
pub(crate) fn is_stream_start(event: &frameshare::Event) -> bool {
    event.kind == STREAM_START
}

/// What an event from the exporter means; nothing for one that means nothing here.
pub(crate) fn decode(event: &frameshare::Event) -> Result<Option<Incoming>, EventError> {
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
            let list = read::<tags::Tags>(kind, payload)?.list(scope).map_err(impossible)?;
            Incoming::Event(gst::event::Tag::new(list))
        }
        GAP => {
            let gap = read::<Gap>(kind, payload)?;
            // All ones stand for no time at all.
            if gap.pts == u64::MAX || gap.duration == Some(u64::MAX) {
                return Err(impossible("time"));
            }
            Incoming::Gap(gap)
        }
        CUSTOM => Incoming::Event(gst::event::CustomDownstream::new(structure(kind, payload)?)),
        CUSTOM_BOTH => Incoming::Event(gst::event::CustomBoth::new(structure(kind, payload)?)),
        kind if kind & CUSTOM_STICKY != 0 => {
            Incoming::Event(gst::event::CustomDownstreamSticky::new(structure(kind, payload)?))
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
    // Plain data into a growing buffer: there is no way to fail.
    postcard::to_allocvec(content).unwrap_or_default()
}

fn read<T: DeserializeOwned>(kind: u32, payload: &[u8]) -> Result<T, EventError> {
    match postcard::take_from_bytes(payload) {
        Ok((content, [])) => Ok(content),
        _ => Err(EventError::Malformed(kind)),
    }
}

/// The text of an event's structure, if all of it survives.
fn custom(event: &gst::EventRef) -> Result<Vec<u8>, EventError> {
    let Some(fields) = event.structure() else { return Err(EventError::Unwritable("structure".into())) };
    let text = fields.to_string();
    let unwritable = || EventError::Unwritable(fields.name().to_string());
    let back = parse_structure(&text).ok_or_else(unwritable)?;
    // GStreamer writes NULL for what it has no text for.
    let lost = fields.iter().find(|(name, value)| {
        !back.value(*name).is_ok_and(|back| {
            back.type_() == value.type_() && (!value.can_compare(back) || GstValueExt::eq(&***value, back))
        })
    });
    match lost {
        None => Ok(text.into_bytes()),
        Some((name, _)) => Err(EventError::Unwritable(name.to_string())),
    }
}

fn structure(kind: u32, payload: &[u8]) -> Result<gst::Structure, EventError> {
    let text = std::str::from_utf8(payload).map_err(|_| EventError::Malformed(kind))?;
    parse_structure(text).ok_or(EventError::Impossible(kind, "structure"))
}

/// The kind of sticky custom events of a name: FNV-1a, in 31 bits.
fn of_name(name: &str) -> u32 {
    let hash =
        name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash | CUSTOM_STICKY
}

#[cfg(test)]
mod tests;
