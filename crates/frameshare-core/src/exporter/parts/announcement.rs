// SPDX-License-Identifier: MIT OR Apache-2.0

//! The format and the events of a stream, which readers are told besides its frames.

use crate::exporter::{
    link::Packet,
    shortage::Unsendable,
    system::{Attachment, Video},
};
use frameshare_protocol::{
    Descriptor, MemoryKind, Sequence,
    form::kind,
    message::{Format, Payload, ToReader},
};
use std::{collections::BTreeMap, mem};

/// Owns the present format, the last sticky event of each kind, and whether the stream has ended:
/// what a joining reader is told first. It sends nothing itself.
#[derive(Debug)]
pub struct Announcement<A, V> {
    format: Option<Format>,
    /// The same, if it is raw video whose planes are known.
    video: Option<V>,
    /// The kind of memory that was announced with the format.
    memory: MemoryKind,
    /// Sticky events by kind: the payload of the last one, and its file if it has one.
    sticky: BTreeMap<u32, (Payload, Vec<A>)>,
    ended: bool,
}

impl<A, V> Default for Announcement<A, V> {
    fn default() -> Self {
        Self { format: None, video: None, memory: MemoryKind::Host, sticky: BTreeMap::new(), ended: false }
    }
}

/// A change of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The kind of memory alone.
    Memory,
    /// Fields of the caps.
    Caps,
    /// The media type.
    Media,
}

impl<A: Attachment, V: Video> Announcement<A, V> {
    /// Announces a format whose frames are in memory of this kind. Returns what changes, if
    /// anything does.
    pub fn set_format(&mut self, format: &Format, memory: MemoryKind) -> Option<Change> {
        let last = self.format.as_ref();
        let change = match last.map(media_type) == Some(media_type(format)) {
            false => Change::Media,
            true if last != Some(format) => Change::Caps,
            true if self.memory != memory => Change::Memory,
            true => return None,
        };
        self.video = V::of_caps(&format.caps);
        (self.format, self.memory) = (Some(format.clone()), memory);
        Some(change)
    }

    /// The present format.
    pub fn format(&self) -> Option<&Format> {
        self.format.as_ref()
    }

    /// The kind of memory that was announced with the format.
    pub fn memory(&self) -> MemoryKind {
        self.memory
    }

    /// The duration of a frame in ns, if the format tells it.
    pub fn period(&self) -> Option<u64> {
        self.format.as_ref().and_then(|format| V::period_ns(&format.caps))
    }

    /// Returns the first of a frame's planes whose rows overlap. Readers refuse such a frame.
    pub fn overlapping_plane(&self, descriptor: &Descriptor) -> Option<usize> {
        self.video.as_ref()?.overlapping_plane(descriptor.used_planes())
    }

    /// Keeps a sticky event in place of the last one of its kind.
    pub fn keep_event(&mut self, kind: u32, payload: Payload, files: Vec<A>) {
        self.sticky.insert(kind, (payload, files));
    }

    /// Announces the end of the stream. Returns true if it had not ended.
    pub fn end(&mut self) -> bool {
        !mem::replace(&mut self.ended, true)
    }

    /// Continues a stream that had ended.
    pub fn go_on(&mut self) {
        self.ended = false;
    }

    /// Returns whether the stream has ended.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Returns the messages for a joining reader, except those about slots: stream-start, format,
    /// sticky events, end. `memory` is the kind in which it gets frames, `before` the first one,
    /// `next` the next one of the stream.
    pub fn introduction(
        &self,
        memory: MemoryKind,
        before: Sequence,
        next: Sequence,
    ) -> Result<Vec<Packet<A>>, Unsendable> {
        let format = self.format.clone().map(|format| ToReader::Format { before, memory, format });
        let event = |(number, (payload, files)): (&u32, &(Payload, Vec<A>))| {
            let message = ToReader::Event { before, kind: *number, sticky: true, payload: payload.clone() };
            if files.is_empty() { Packet::new(&message) } else { Packet::with(&message, files.clone()) }
        };
        // A stream-start after the format would start another stream than the one that the format
        // describes.
        let start = self.sticky.get_key_value(&kind::STREAM_START).map(event);
        let others = self.sticky.iter().filter(|(number, _)| **number != kind::STREAM_START).map(event);
        let end = self.ended.then_some(ToReader::EndOfStream { before: next });
        let packet = |message: ToReader| Packet::new(&message);
        let packets = start.into_iter().chain(format.map(packet)).chain(others).chain(end.map(packet));
        packets.map(|packet| packet.map(Packet::kept)).collect()
    }
}

/// The media type of a format, such as `video/x-h264`.
fn media_type(format: &Format) -> &str {
    format.caps.split([',', ';', '(']).next().unwrap_or_default().trim()
}
