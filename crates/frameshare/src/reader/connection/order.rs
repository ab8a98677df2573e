// SPDX-License-Identifier: MIT OR Apache-2.0

//! Order of messages and frames: a message waits until the frames before it are delivered.

use super::kept::KeptUnits;
use crate::event::Event;
use frameshare_protocol::{MemoryKind, Sequence, message::Format};
use std::{collections::VecDeque, sync::Arc};

/// Maximum number of messages that wait for their frames. An exporter that keeps the protocol sends
/// none far ahead of its frames.
pub(super) const MAX_WAITING: usize = 4096;

/// A message with a place among the frames.
#[derive(Debug)]
pub(super) enum Ordered {
    /// The format of the following frames, and the kind of memory that they are in.
    Format(MemoryKind, Arc<Format>),
    /// An in-band event.
    Event(Event),
    /// The end of the stream.
    EndOfStream,
    /// The end of a generation.
    Retire(u32),
    /// Oversized metadata of the next frame.
    Metadata(Vec<u8>),
    /// Kept units.
    Kept(KeptUnits),
    /// The frames before it are not for this reader.
    Skipped,
}

impl Ordered {
    /// Size in bytes of its payload.
    fn bytes(&self) -> usize {
        match self {
            Self::Format(_, format) => format.caps.len(),
            Self::Event(event) => event.payload.len(),
            Self::Metadata(bytes) => bytes.len(),
            // Kept units have a limit of their own.
            Self::EndOfStream | Self::Retire(_) | Self::Kept(_) | Self::Skipped => 0,
        }
    }
}

/// Messages that wait for the frames before them.
#[derive(Debug)]
pub(super) struct MessageQueue {
    /// Each with the sequence number of the first frame after it.
    waiting: VecDeque<(Sequence, Ordered)>,
    bytes: usize,
    /// Limit of `bytes`.
    max_bytes: u64,
}

impl MessageQueue {
    pub fn new(max_bytes: u64) -> Self {
        Self { waiting: VecDeque::new(), bytes: 0, max_bytes }
    }

    /// Returns whether the limits are reached.
    pub fn is_full(&self) -> bool {
        self.waiting.len() >= MAX_WAITING || self.bytes as u64 >= self.max_bytes
    }

    /// Queues a message in front of frame `before`. Late metadata of a frame comes before messages
    /// that follow the frame.
    pub fn push(&mut self, before: Sequence, message: Ordered) {
        self.bytes += message.bytes();
        let place = self.waiting.partition_point(|(other, _)| *other <= before);
        self.waiting.insert(place, (before, message));
    }

    /// Takes the first message if its place is in front of frame `sequence`, with the sequence
    /// number of the first frame after it.
    pub fn pop_before(&mut self, sequence: Sequence) -> Option<(Sequence, Ordered)> {
        self.waiting.front().filter(|(before, _)| *before <= sequence)?;
        let (before, message) = self.waiting.pop_front()?;
        self.bytes -= message.bytes();
        Some((before, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_wait_for_frames_before_them() {
        let mut queue = MessageQueue::new(1 << 20);
        queue.push(Sequence(2), Ordered::Retire(1));
        queue.push(Sequence(5), Ordered::EndOfStream);
        queue.push(Sequence(2), Ordered::Retire(2));
        assert!(queue.pop_before(Sequence(1)).is_none());
        for generation in [1, 2] {
            let next = queue.pop_before(Sequence(4));
            assert!(
                matches!(next, Some((Sequence(2), Ordered::Retire(found))) if found == generation),
                "{next:?}"
            );
        }
        assert!(queue.pop_before(Sequence(4)).is_none());
        assert!(matches!(queue.pop_before(Sequence(5)), Some((Sequence(5), Ordered::EndOfStream))));
    }

    #[test]
    fn queue_is_full_at_either_limit() {
        let mut queue = MessageQueue::new(3);
        queue.push(Sequence(1), Ordered::Metadata(vec![0; 2]));
        assert!(!queue.is_full());
        queue.push(Sequence(1), Ordered::Metadata(vec![0; 1]));
        assert!(queue.is_full());
        assert!(queue.pop_before(Sequence(1)).is_some() && !queue.is_full());
        for _ in 1..MAX_WAITING {
            assert!(!queue.is_full());
            queue.push(Sequence(1), Ordered::EndOfStream);
        }
        assert!(queue.is_full());
    }
}
