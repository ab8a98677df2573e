// SPDX-License-Identifier: MIT OR Apache-2.0

//! The backlog of one reader: frames that wait for credit, and the messages that follow them.
//!
//! While it holds a frame, every later frame and every later message with a place among the frames
//! joins it. So the frames of a backlog are the newest ones of the stream, without a gap.

use super::{
    outbox::{MAX_BYTES, MAX_FILES, Unsent, check_waiting},
    packet::{INLINE, Packet},
};
use crate::exporter::system::{Attachment, Slot};
use frameshare_protocol::{AreaIndex, Descriptor, Sequence, limits::METADATA_AREA};
use std::{
    collections::VecDeque,
    ops::{AddAssign, SubAssign},
    time::Duration,
};

/// Memory that frames take while they wait: their slots, and metadata that exceeds their areas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weight {
    /// Bytes of memory.
    pub bytes: u64,
    /// Number of payload files.
    pub files: usize,
}

impl Weight {
    /// The weight of a frame in this slot with metadata of this length.
    pub fn of(slot: &impl Slot, metadata: usize) -> Self {
        Self::of_size(slot.size(), metadata)
    }

    fn of_size(slot: u64, metadata: usize) -> Self {
        let oversized = if metadata > METADATA_AREA { metadata as u64 } else { 0 };
        Self { bytes: slot + oversized, files: usize::from(metadata > INLINE) }
    }
}

impl AddAssign for Weight {
    fn add_assign(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.files += other.files;
    }
}

impl SubAssign for Weight {
    fn sub_assign(&mut self, other: Self) {
        self.bytes -= other.bytes;
        self.files -= other.files;
    }
}

/// A frame that waits for credit. It has a lease of its own on its publication.
#[derive(Clone, Debug)]
pub struct WaitingFrame<A> {
    /// The metadata area of its publication.
    pub area: AreaIndex,
    /// Its descriptor.
    pub descriptor: Descriptor,
    /// Metadata that exceeds the frame's area.
    pub oversized: Option<Packet<A>>,
    /// Size of its slot in bytes.
    pub bytes: u64,
}

impl<A: Attachment> WaitingFrame<A> {
    /// The memory that it takes.
    pub fn weight(&self) -> Weight {
        let Weight { bytes, files } = self.metadata_weight();
        // Metadata in a large area counts too, although no memory is freed with it.
        let large =
            if self.descriptor.metadata as usize > METADATA_AREA { self.descriptor.metadata } else { 0 };
        Weight { bytes: self.bytes + bytes + u64::from(large), files }
    }

    /// The weight of its metadata message.
    fn metadata_weight(&self) -> Weight {
        let weight = |packet: &Packet<A>| Weight { bytes: packet.cost(), files: packet.files() };
        self.oversized.as_ref().map(weight).unwrap_or_default()
    }
}

/// The next thing in a backlog.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly everything that waits is a frame")]
pub enum Waiting<A> {
    Frame(WaitingFrame<A>),
    Message(Packet<A>),
    /// The end of a generation. The reader may have none of its slots before the frames in front.
    Retire {
        before: Sequence,
        generation: u32,
    },
}

/// Frames and messages that wait for a reader's credit, oldest first.
#[derive(Debug)]
pub struct Backlog<A> {
    waiting: VecDeque<Waiting<A>>,
    frames: usize,
    /// The weight of the frames.
    weight: Weight,
    /// The part of it that is messages of oversized metadata.
    metadata: Weight,
    messages: usize,
    message_weight: Weight,
    /// The frame that is being published, and joins.
    joining: Option<WaitingFrame<A>>,
}

impl<A> Default for Backlog<A> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            frames: 0,
            weight: Weight::default(),
            metadata: Weight::default(),
            messages: 0,
            message_weight: Weight::default(),
            joining: None,
        }
    }
}

impl<A: Attachment> Backlog<A> {
    /// Returns whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Number of frames.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// Bytes of the frames.
    pub fn frame_bytes(&self) -> u64 {
        self.weight.bytes
    }

    /// Returns whether its payload files, with those of a frame of this weight, are within the
    /// limit of files that wait for a reader.
    pub fn has_room_for_files_of(&self, frame: Weight) -> bool {
        self.weight.files + frame.files <= MAX_FILES
    }

    /// Number of payload files and bytes of messages and of oversized metadata.
    pub fn message_weight(&self) -> (usize, u64) {
        let Self { metadata, message_weight: messages, .. } = self;
        (messages.files + metadata.files, messages.bytes + metadata.bytes)
    }

    /// The oldest frame.
    pub fn first(&self) -> Option<&WaitingFrame<A>> {
        self.iter().next()
    }

    /// Returns whether all frames are from before this one.
    pub fn is_before(&self, sequence: Sequence) -> bool {
        self.iter().all(|frame| frame.descriptor.sequence < sequence)
    }

    /// The areas of all frames.
    pub fn areas(&self) -> impl Iterator<Item = AreaIndex> {
        self.iter().map(|frame| frame.area)
    }

    /// The frames, oldest first.
    fn iter(&self) -> impl Iterator<Item = &WaitingFrame<A>> {
        self.waiting.iter().filter_map(|waiting| match waiting {
            Waiting::Frame(frame) => Some(frame),
            Waiting::Message(_) | Waiting::Retire { .. } => None,
        })
    }

    /// The time since the oldest frame was published. `now` is in ns of `CLOCK_MONOTONIC`.
    pub fn age(&self, now: u64) -> Duration {
        let published = self.first().map_or(now, |frame| frame.descriptor.published);
        Duration::from_nanos(now.saturating_sub(published))
    }

    /// Has the frame that is being published join. [`Backlog::publish`] follows.
    pub fn join(&mut self, frame: WaitingFrame<A>) {
        self.joining = Some(frame);
    }

    /// Returns whether the frame that is being published joins.
    pub fn is_joined(&self) -> bool {
        self.joining.is_some()
    }

    /// Adds the frame that is published with this descriptor, if it joins. Returns false if not.
    pub fn publish(&mut self, descriptor: &Descriptor) -> bool {
        let Some(frame) = self.joining.take() else { return false };
        self.push_frame(WaitingFrame { descriptor: descriptor.clone(), ..frame });
        true
    }

    /// Adds a frame.
    pub fn push_frame(&mut self, frame: WaitingFrame<A>) {
        self.frames += 1;
        self.weight += frame.weight();
        self.metadata += frame.metadata_weight();
        self.waiting.push_back(Waiting::Frame(frame));
    }

    /// Adds the end of a generation.
    pub fn push_retire(&mut self, before: Sequence, generation: u32) {
        self.waiting.push_back(Waiting::Retire { before, generation });
    }

    /// Adds a message, within the limits of messages that wait for a reader.
    pub fn push_message(&mut self, packet: Packet<A>) -> Result<(), Unsent> {
        self.messages += 1;
        self.message_weight += Weight { bytes: packet.cost(), files: packet.files() };
        self.waiting.push_back(Waiting::Message(packet));
        check_waiting(self.messages, self.message_weight.files)?;
        if self.message_weight.bytes > MAX_BYTES {
            return Err(Unsent::TooMuch(format!("{MAX_BYTES} bytes")));
        }
        Ok(())
    }

    /// The next thing.
    pub fn front(&self) -> Option<&Waiting<A>> {
        self.waiting.front()
    }

    /// Takes the next thing out.
    pub fn pop(&mut self) -> Option<Waiting<A>> {
        let waiting = self.waiting.pop_front()?;
        match &waiting {
            Waiting::Frame(frame) => {
                self.frames -= 1;
                self.weight -= frame.weight();
                self.metadata -= frame.metadata_weight();
            }
            Waiting::Message(packet) => {
                self.messages -= 1;
                self.message_weight -= Weight { bytes: packet.cost(), files: packet.files() };
            }
            Waiting::Retire { .. } => {}
        }
        Some(waiting)
    }

    /// Empties the backlog: the reader gets none of it. Returns the areas of its frames.
    pub fn clear(&mut self) -> Vec<AreaIndex> {
        let areas = self.iter().chain(&self.joining).map(|frame| frame.area).collect();
        *self = Self::default();
        areas
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exporter::fake::{self, message, number, with_file};
    use frameshare_protocol::limits::MAX_BACKLOG;

    fn descriptor(sequence: u64, metadata: usize) -> Descriptor {
        Descriptor {
            sequence: Sequence(sequence),
            metadata: metadata as u32,
            published: 1000 * sequence,
            ..Descriptor::default()
        }
    }

    /// A frame in a slot of 100 bytes, in the area of its number.
    fn frame(sequence: u64, oversized: Option<Packet<fake::Attachment>>) -> WaitingFrame<fake::Attachment> {
        let area = AreaIndex(sequence as u32);
        WaitingFrame { area, descriptor: descriptor(sequence, 0), oversized, bytes: 100 }
    }

    #[test]
    fn frame_weighs_its_slot_and_metadata_beyond_its_area() {
        for (metadata, bytes, files) in [
            (METADATA_AREA, 0, 0),
            (METADATA_AREA + 1, METADATA_AREA as u64 + 1, 0),
            (INLINE, INLINE as u64, 0),
            (INLINE + 1, INLINE as u64 + 1, 1),
        ] {
            assert_eq!(Weight::of_size(100, metadata), Weight { bytes: 100 + bytes, files }, "{metadata}");
        }
        let (small, large) = (METADATA_AREA, METADATA_AREA + 1);
        for (metadata, bytes) in [(small, 100), (large, 100 + large as u64)] {
            let frame = WaitingFrame { descriptor: descriptor(1, metadata), ..frame(1, None) };
            assert_eq!(frame.weight(), Weight { bytes, files: 0 }, "{metadata}");
        }
        let oversized = with_file(1, 7000);
        let bytes = 100 + oversized.cost();
        assert_eq!(frame(1, Some(oversized)).weight(), Weight { bytes, files: 1 });
    }

    #[test]
    fn backlog_keeps_order_and_counts_what_it_holds() {
        let mut backlog = Backlog::default();
        assert!(backlog.is_empty() && backlog.front().is_none() && backlog.pop().is_none());
        let metadata = with_file(5, 7000);
        let files = metadata.cost() + with_file(7, 30).cost();
        let frame_bytes = 200 + metadata.cost();
        backlog.push_frame(frame(5, Some(metadata)));
        backlog.push_message(with_file(7, 30)).unwrap();
        backlog.push_retire(Sequence(6), 3);
        backlog.push_frame(frame(6, None));
        assert!(!backlog.is_empty());
        assert_eq!((backlog.frames(), backlog.frame_bytes()), (2, frame_bytes));
        assert_eq!(backlog.message_weight(), (2, files));
        assert_eq!(backlog.first().map(|frame| frame.area), Some(AreaIndex(5)));
        assert_eq!(backlog.areas().collect::<Vec<_>>(), [AreaIndex(5), AreaIndex(6)]);
        assert_eq!(backlog.age(5900), Duration::from_nanos(900));
        assert!(backlog.is_before(Sequence(7)) && !backlog.is_before(Sequence(6)));
        // Frames and messages leave in the order in which they joined.
        assert!(matches!(backlog.pop(), Some(Waiting::Frame(frame)) if frame.area == AreaIndex(5)));
        assert!(matches!(backlog.front(), Some(Waiting::Message(packet)) if number(packet.bytes()) == 7));
        assert!(matches!(backlog.pop(), Some(Waiting::Message(_))));
        assert!(matches!(backlog.pop(), Some(Waiting::Retire { before: Sequence(6), generation: 3 })));
        assert_eq!((backlog.frames(), backlog.frame_bytes(), backlog.message_weight()), (1, 100, (0, 0)));
        assert!(matches!(backlog.pop(), Some(Waiting::Frame(_))));
        assert_eq!((backlog.frames(), backlog.frame_bytes()), (0, 0));
        // An empty backlog is before every frame, and has no age.
        assert!(backlog.is_before(Sequence(1)) && backlog.age(5900) == Duration::ZERO);
    }

    #[test]
    fn frame_that_is_published_joins_with_its_descriptor() {
        let mut backlog = Backlog::default();
        assert!(!backlog.publish(&descriptor(1, 0)) && backlog.is_empty());
        backlog.join(frame(0, None));
        assert!(backlog.is_joined() && backlog.is_empty());
        assert!(backlog.publish(&descriptor(4, 0)));
        assert!(!backlog.is_joined());
        assert_eq!(backlog.first().map(|frame| frame.descriptor.sequence), Some(Sequence(4)));
        // A reader that leaves gives back the area of the frame that joins, too.
        backlog.join(frame(8, None));
        assert_eq!(backlog.clear(), [AreaIndex(0), AreaIndex(8)]);
        assert!(backlog.is_empty() && !backlog.is_joined() && backlog.frames() == 0);
    }

    #[test]
    fn waiting_messages_are_limited() {
        let header = with_file(1, 0).cost();
        let half = MAX_BYTES / 2 - header;
        for (most, payload, limit) in [
            (MAX_BACKLOG, 0, "1024 messages"),
            (MAX_FILES, 1, "128 messages with files"),
            (2, half, "134217728 bytes"),
        ] {
            let mut backlog = Backlog::default();
            for number in 0..most as u64 {
                backlog.push_message(with_file(number, payload)).unwrap();
            }
            // A message that has left makes room for another one.
            backlog.pop();
            backlog.push_message(with_file(8, payload)).unwrap();
            let sent = backlog.push_message(with_file(9, payload));
            assert!(matches!(&sent, Err(Unsent::TooMuch(found)) if found == limit), "{sent:?}");
        }
    }

    #[test]
    fn payload_files_of_waiting_frames_are_limited() {
        let mut backlog = Backlog::default();
        for number in 1..MAX_FILES as u64 {
            backlog.push_frame(frame(number, Some(with_file(number, 7000))));
        }
        let files = |files| Weight { bytes: 0, files };
        assert!(backlog.has_room_for_files_of(files(1)) && !backlog.has_room_for_files_of(files(2)));
        backlog.push_frame(frame(200, Some(with_file(200, 7000))));
        assert!(backlog.has_room_for_files_of(files(0)) && !backlog.has_room_for_files_of(files(1)));
        // Messages have a limit of their own.
        backlog.push_message(Packet::new(&message(201)).unwrap()).unwrap();
    }
}
