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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exporter::fake::Attachment;
    use frameshare_protocol::Plane;

    /// Raw video. The rows of the last plane of each frame overlap.
    #[derive(Debug)]
    struct Raw;

    impl Video for Raw {
        fn of_caps(caps: &str) -> Option<Self> {
            caps.starts_with("video/x-raw").then_some(Self)
        }

        fn period_ns(caps: &str) -> Option<u64> {
            caps.contains("50/1").then_some(20_000_000)
        }

        fn overlapping_plane(&self, planes: &[Plane]) -> Option<usize> {
            planes.len().checked_sub(1)
        }
    }

    fn format(caps: &str) -> Format {
        Format { caps: caps.into(), video: None }
    }

    #[test]
    fn format_change_is_named_by_its_greatest_part() {
        let mut announcement = Announcement::<Attachment, Raw>::default();
        assert_eq!((announcement.format(), announcement.period()), (None, None));
        for (caps, memory, change) in [
            ("video/x-raw, width=1", MemoryKind::Host, Some(Change::Media)),
            ("video/x-raw, width=1", MemoryKind::Host, None),
            ("video/x-raw, width=2", MemoryKind::Vmm, Some(Change::Caps)),
            ("video/x-raw, width=2", MemoryKind::Host, Some(Change::Memory)),
            ("video/x-h264, width=2", MemoryKind::Host, Some(Change::Media)),
            ("video/x-raw(memory:CUDAMemory), framerate=50/1", MemoryKind::Host, Some(Change::Media)),
            ("video/x-raw; audio/x-raw", MemoryKind::Host, Some(Change::Caps)),
        ] {
            assert_eq!(announcement.set_format(&format(caps), memory), change, "{caps}, {memory:?}");
            assert_eq!((announcement.format(), announcement.memory()), (Some(&format(caps)), memory));
        }
    }

    #[test]
    fn format_tells_duration_and_planes_of_frames() {
        let mut announcement = Announcement::<Attachment, Raw>::default();
        let frame = Descriptor { plane_count: 2, ..Descriptor::default() };
        assert_eq!(announcement.overlapping_plane(&frame), None);
        announcement.set_format(&format("video/x-raw, framerate=50/1"), MemoryKind::Host);
        assert_eq!(announcement.period(), Some(20_000_000));
        assert_eq!(announcement.overlapping_plane(&frame), Some(1));
    }

    #[test]
    fn joining_reader_is_told_start_format_events_and_end() {
        let (before, next) = (Sequence(3), Sequence(9));
        let mut announcement = Announcement::<Attachment, Raw>::default();
        let event = |kind, payload| ToReader::Event { before, kind, sticky: true, payload };
        let inline = |byte| Payload::Inline(vec![byte]);
        announcement.set_format(&format("video/x-raw"), MemoryKind::Vmm);
        announcement.keep_event(kind::SEGMENT, inline(1), Vec::new());
        announcement.keep_event(kind::SEGMENT, inline(2), Vec::new());
        announcement.keep_event(kind::STREAM_START, inline(3), Vec::new());
        announcement.keep_event(kind::STREAM_TAGS, Payload::Sealed(70_000), vec![Attachment::default()]);
        let told = |announcement: &Announcement<_, _>| -> Vec<_> {
            let packets = announcement.introduction(MemoryKind::Host, before, next).unwrap();
            packets.into_iter().map(|packet| packet.decode()).collect()
        };
        let mut expected = vec![
            (event(kind::STREAM_START, inline(3)), 0),
            (ToReader::Format { before, memory: MemoryKind::Host, format: format("video/x-raw") }, 0),
            (event(kind::STREAM_TAGS, Payload::Sealed(70_000)), 1),
            (event(kind::SEGMENT, inline(2)), 0),
        ];
        assert_eq!(told(&announcement), expected);
        assert!(!announcement.has_ended() && announcement.end());
        assert!(announcement.has_ended() && !announcement.end(), "the stream had ended already");
        expected.push((ToReader::EndOfStream { before: next }, 0));
        assert_eq!(told(&announcement), expected);
        announcement.go_on();
        assert!(!announcement.has_ended());
        expected.pop();
        assert_eq!(told(&announcement), expected);
    }
}
