// SPDX-License-Identifier: MIT OR Apache-2.0

//! The backlog of one reader: frames that wait for credit, and the messages that follow them.
//!
//! While it holds a frame, every later frame and every later message with a place among the frames
//! joins it. So the frames of a backlog are the newest ones of the stream, without a gap.

use super::outbox::{MAX_BYTES, Packet, Unsent, check_waiting};
use frameshare_protocol::{AreaIndex, Descriptor, Sequence};
use std::{collections::VecDeque, time::Duration};

/// A frame that waits for credit. It has a lease of its own on its publication.
#[derive(Clone, Debug)]
pub struct WaitingFrame {
    pub area: AreaIndex,
    pub descriptor: Descriptor,
    /// Metadata that exceeds the frame's area.
    pub oversized: Option<Packet>,
    /// Size of its slot in bytes.
    pub bytes: u64,
}

/// The next thing in a backlog.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly everything that waits is a frame")]
pub enum Waiting {
    Frame(WaitingFrame),
    Message(Packet),
    /// The end of a generation. The reader may have none of its slots before the frames in front.
    Retire {
        before: Sequence,
        generation: u32,
    },
}

/// Frames and messages that wait for a reader's credit, oldest first.
#[derive(Debug, Default)]
pub struct Backlog {
    waiting: VecDeque<Waiting>,
    frames: usize,
    frame_bytes: u64,
    messages: usize,
    message_bytes: u64,
    message_files: usize,
}

impl Backlog {
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Number of frames.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// Bytes of the frames' slots.
    pub fn frame_bytes(&self) -> u64 {
        self.frame_bytes
    }

    /// Number of payload files and bytes of the messages.
    pub fn weight(&self) -> (usize, u64) {
        (self.message_files, self.message_bytes)
    }

    /// The oldest frame.
    pub fn first(&self) -> Option<&WaitingFrame> {
        self.iter().next()
    }

    /// The areas of all frames.
    pub fn areas(&self) -> impl Iterator<Item = AreaIndex> {
        self.iter().map(|frame| frame.area)
    }

    /// The frames, oldest first.
    fn iter(&self) -> impl Iterator<Item = &WaitingFrame> {
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

    pub fn push_frame(&mut self, frame: WaitingFrame) {
        self.frames += 1;
        self.frame_bytes += frame.bytes;
        self.waiting.push_back(Waiting::Frame(frame));
    }

    pub fn push_retire(&mut self, before: Sequence, generation: u32) {
        self.waiting.push_back(Waiting::Retire { before, generation });
    }

    /// Adds a message, within the limits of messages that wait for a reader.
    pub fn push_message(&mut self, packet: Packet) -> Result<(), Unsent> {
        self.messages += 1;
        self.message_bytes += packet.cost();
        self.message_files += packet.files();
        self.waiting.push_back(Waiting::Message(packet));
        check_waiting(self.messages, self.message_files)?;
        if self.message_bytes > MAX_BYTES {
            return Err(Unsent::TooMuch(format!("{MAX_BYTES} bytes")));
        }
        Ok(())
    }

    pub fn front(&self) -> Option<&Waiting> {
        self.waiting.front()
    }

    pub fn pop(&mut self) -> Option<Waiting> {
        let waiting = self.waiting.pop_front()?;
        match &waiting {
            Waiting::Frame(frame) => {
                self.frames -= 1;
                self.frame_bytes -= frame.bytes;
            }
            Waiting::Message(packet) => {
                self.messages -= 1;
                self.message_bytes -= packet.cost();
                self.message_files -= packet.files();
            }
            Waiting::Retire { .. } => {}
        }
        Some(waiting)
    }

    /// Empties the backlog: the reader gets none of it. Returns the areas of its frames.
    pub fn clear(&mut self) -> Vec<AreaIndex> {
        let areas = self.areas().collect();
        *self = Self::default();
        areas
    }
}
