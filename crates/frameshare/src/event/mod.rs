// SPDX-License-Identifier: MIT OR Apache-2.0

//! In-band events, delivered in order with frames, and their typed content.
//!
//! The engine carries an [`Event`] as a kind and bytes. [`Event::content`] reads the events that
//! `framesharesink` sends, and [`Content::to_event`] writes those that `framesharesrc` reads, so
//! that applications without GStreamer take part:
//!
//! ```
//! use frameshare::event::{Content, Event, Tag, TagScope, Value};
//!
//! let title = Tag { name: "title".into(), values: vec!["Gate 4".into()] };
//! let event = Content::Tags { scope: TagScope::Global, tags: vec![title] }.to_event()?;
//! // exporter.send_event(event)?; readers get Item::Event(event)
//! match event.content()? {
//!     Content::Tags { tags, .. } => assert_eq!(tags[0].values, [Value::from("Gate 4")]),
//!     Content::Custom { structure, .. } => println!("{}", structure.name),
//!     _ => {}
//! }
//! # Ok::<(), frameshare::event::EventError>(())
//! ```
//!
//! The times of frames are times of `CLOCK_MONOTONIC`; a [`Segment`] turns them into timestamps of
//! the exporter's file. A seek arrives as [`flags::DISCONTINUITY`](crate::flags::DISCONTINUITY) of
//! the next frame, after its segment. Formats and the end of a stream are items of a reader.

mod codec;
mod meta;
mod segment;
mod value;

pub use frameshare_protocol::form;
pub use frameshare_protocol::form::DateTime;
pub use meta::{Meta, MetaError};
pub use segment::Segment;
pub use value::{Caps, CapsStructure, Structure, Tag, Value};

use codec::{Invalid, Reader, Writer};
use form::{Gap, StreamStart, kind};

/// An event with its place among the frames, opaque to the engine: tags, gaps, messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its kind, defined by the sender.
    pub kind: u32,
    /// A joining reader gets the newest sticky event of each kind.
    pub sticky: bool,
    /// Its content.
    pub payload: Vec<u8>,
}

/// The content of an event.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Content {
    /// The start of a stream. It ends the tags and custom events of the one before.
    StreamStart {
        /// The stream's id, not empty.
        id: String,
        /// GstStreamFlags.
        flags: u32,
        /// The group that the stream belongs to, a number of the exporter's process.
        group: Option<u32>,
    },
    /// Tags, which replace those of the same scope.
    Tags {
        /// Their subject.
        scope: TagScope,
        /// The tags.
        tags: Vec<Tag>,
    },
    /// A time without frames.
    Gap {
        /// Its start, in ns of `CLOCK_MONOTONIC`.
        pts: u64,
        /// Its duration in ns.
        duration: Option<u64>,
        /// GstGapFlags.
        flags: u32,
    },
    /// The exporter's segment, for applications that need its timestamps.
    Segment(Segment),
    /// A custom event.
    Custom {
        /// Its name and fields.
        structure: Structure,
        /// Its delivery.
        delivery: Delivery,
    },
    /// A sticky event of an earlier stream was withdrawn.
    Withdrawn,
    /// An event of another sender, or of a later version.
    Unknown,
}

/// The subject of tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagScope {
    /// The stream.
    Stream,
    /// The medium with all its streams.
    Global,
}

/// The delivery of a custom event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// In order with frames (`custom-downstream`).
    InOrder,
    /// The same; in GStreamer it also exists in the other direction (`custom-both`).
    Both,
    /// In order, and a joining reader gets the newest of each name (`custom-downstream-sticky`).
    Sticky,
}

/// The reason why the content of an event cannot be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EventError {
    /// The bytes are no event of the kind.
    #[error("an event of kind {kind} is cut short or damaged")]
    Malformed {
        /// [`Event::kind`].
        kind: u32,
    },
    /// A name, number or nesting is outside of its limits.
    #[error("an event of kind {kind} has an invalid {what}")]
    Invalid {
        /// [`Event::kind`].
        kind: u32,
        /// The part of the event.
        what: &'static str,
    },
}

impl Event {
    /// The kind of the event that starts a stream. A joining reader gets the sticky event of this
    /// kind before the format, and those of all other kinds after it.
    pub const STREAM_START: u32 = kind::STREAM_START;

    /// Reads the content. The bytes come from another process: everything is checked, and a few MB
    /// at most are allocated besides the bytes.
    ///
    /// # Errors
    /// [`EventError`] if the bytes are invalid.
    pub fn content(&self) -> Result<Content, EventError> {
        let kind = self.kind;
        if self.payload.is_empty() {
            return Ok(Content::Withdrawn);
        }
        self.read().map_err(|error| match error {
            Invalid::Malformed => EventError::Malformed { kind },
            Invalid::Limit(what) => EventError::Invalid { kind, what },
        })
    }

    fn read(&self) -> Result<Content, Invalid> {
        let mut reader = Reader::new(&self.payload);
        let content = match self.kind {
            Self::STREAM_START => {
                let start: StreamStart = reader.plain()?;
                start.check().map_err(Invalid::Limit)?;
                let StreamStart { id, flags, group } = start;
                Content::StreamStart { id, flags, group }
            }
            kind::STREAM_TAGS | kind::GLOBAL_TAGS => {
                let mut tags = Vec::new();
                while !reader.is_at_end() {
                    tags.push(reader.tag()?);
                }
                let scope = if self.kind == kind::GLOBAL_TAGS { TagScope::Global } else { TagScope::Stream };
                Content::Tags { scope, tags }
            }
            kind::GAP => {
                let gap: Gap = reader.plain()?;
                gap.check().map_err(Invalid::Limit)?;
                let Gap { pts, duration, flags } = gap;
                Content::Gap { pts, duration, flags }
            }
            kind::SEGMENT => {
                let segment: Segment = reader.plain()?;
                check_segment(&segment).map_err(Invalid::Limit)?;
                Content::Segment(segment)
            }
            kind::CUSTOM => Content::Custom { structure: reader.structure()?, delivery: Delivery::InOrder },
            kind::CUSTOM_BOTH => Content::Custom { structure: reader.structure()?, delivery: Delivery::Both },
            kind if kind::is_custom_sticky(kind) => {
                Content::Custom { structure: reader.structure()?, delivery: Delivery::Sticky }
            }
            _ => return Ok(Content::Unknown),
        };
        if reader.is_at_end() { Ok(content) } else { Err(Invalid::Malformed) }
    }
}

impl Content {
    /// Returns the event, for [`Exporter::send_event`](crate::exporter::Exporter::send_event).
    ///
    /// # Errors
    /// [`EventError::Invalid`] for a name, number or nesting that readers refuse, and for
    /// [`Content::Withdrawn`] and [`Content::Unknown`].
    pub fn to_event(&self) -> Result<Event, EventError> {
        let (kind, sticky) = match self {
            Self::StreamStart { .. } => (Event::STREAM_START, true),
            Self::Tags { scope: TagScope::Stream, .. } => (kind::STREAM_TAGS, true),
            Self::Tags { scope: TagScope::Global, .. } => (kind::GLOBAL_TAGS, true),
            Self::Gap { .. } => (kind::GAP, false),
            Self::Segment(_) => (kind::SEGMENT, true),
            Self::Custom { delivery: Delivery::InOrder, .. } => (kind::CUSTOM, false),
            Self::Custom { delivery: Delivery::Both, .. } => (kind::CUSTOM_BOTH, false),
            Self::Custom { delivery: Delivery::Sticky, structure } => {
                (kind::custom_sticky(&structure.name), true)
            }
            Self::Withdrawn | Self::Unknown => {
                return Err(EventError::Invalid { kind: u32::MAX, what: "content" });
            }
        };
        let mut writer = Writer::default();
        let written = self.write(&mut writer);
        written.map_err(|what| EventError::Invalid { kind, what })?;
        Ok(Event { kind, sticky, payload: writer.0 })
    }

    fn write(&self, writer: &mut Writer) -> Result<(), &'static str> {
        match self {
            Self::StreamStart { id, flags, group } => {
                let start = StreamStart { id: id.clone(), flags: *flags, group: *group };
                start.check()?;
                writer.plain(&start);
            }
            Self::Tags { tags, .. } => tags.iter().try_for_each(|tag| writer.tag(tag))?,
            &Self::Gap { pts, duration, flags } => {
                let gap = Gap { pts, duration, flags };
                gap.check()?;
                writer.plain(&gap);
            }
            Self::Segment(segment) => {
                check_segment(segment)?;
                writer.plain(segment);
            }
            Self::Custom { structure, .. } => writer.structure(structure)?,
            Self::Withdrawn | Self::Unknown => {}
        }
        // No bytes would withdraw the event.
        if writer.0.is_empty() { Err("list of no tags") } else { Ok(()) }
    }
}

fn check_segment(segment: &Segment) -> Result<(), &'static str> {
    if segment.is_valid() { Ok(()) } else { Err("segment") }
}

#[cfg(test)]
mod tests;
