// SPDX-License-Identifier: MIT OR Apache-2.0

//! Order of the messages and frames of one connection.

use super::{kept_units::KeptUnits, violation::Violation};
use frameshare_protocol::{
    Descriptor, EntryIndex, MemoryKind, Sequence, limits::MAX_BACKLOG, message::Format,
};
use std::collections::VecDeque;

/// Maximum number of messages that wait for their frames. An exporter that keeps the protocol sends
/// none far ahead of its frames.
pub const MAX_WAITING: usize = 4096;

/// A message with a place among the frames, for the application or for another part. `F` is the
/// file of kept units.
#[derive(Debug)]
pub enum Ordered<F> {
    /// The format of the following frames, and the kind of memory that they are in.
    Format(MemoryKind, Format),
    /// An in-band event.
    Event {
        /// Its kind.
        kind: u32,
        /// Whether joining readers get the newest event of the kind.
        sticky: bool,
        /// Its content.
        payload: Vec<u8>,
    },
    /// The end of the stream.
    EndOfStream,
    /// The end of a generation.
    Retire(u32),
    /// Kept units.
    Kept(KeptUnits<F>),
    /// The frames before it are not for this reader.
    Skipped,
}

/// A message that waits for the frames before it.
#[derive(Debug)]
enum Waiting<F> {
    Message(Ordered<F>),
    /// Oversized metadata of the frame after it.
    Metadata(Vec<u8>),
}

impl<F> Waiting<F> {
    /// Size in bytes of its payload.
    fn bytes(&self) -> usize {
        match self {
            Self::Message(Ordered::Format(_, format)) => format.caps.len(),
            Self::Message(Ordered::Event { payload, .. }) => payload.len(),
            Self::Metadata(bytes) => bytes.len(),
            // Kept units have a limit of their own.
            Self::Message(
                Ordered::EndOfStream | Ordered::Retire(_) | Ordered::Kept(_) | Ordered::Skipped,
            ) => 0,
        }
    }
}

/// The next step of a reader.
#[derive(Debug)]
pub enum Step<'a, F> {
    /// To apply a message, which is in front of the frame with this sequence number.
    Apply(Sequence, Ordered<F>),
    /// To receive messages: this frame follows some that have not arrived.
    Receive(&'a Descriptor),
    /// To take this frame, whose lease this entry of the queue carries.
    Take(EntryIndex, &'a Descriptor),
    /// To wait: neither a message nor a frame is due.
    Wait,
}

/// Owns the order in which messages and frames are delivered: the messages that wait for the frames
/// before them, oversized metadata of the next frame, and the numbers of messages that have
/// arrived. It neither receives messages nor reads the queue, and does not know whether a frame can
/// be taken.
///
/// Messages are counted and queued on their arrival, while [`Order::is_full`] returns false.
/// [`Order::next`] then says, as often as it is asked, what the next step is; after
/// [`Step::Receive`], [`Order::has_advanced`] says whether to ask again. [`Order::take_metadata`]
/// follows each frame that is taken.
///
/// Payloads stay in the messages as they are. Only the file of kept units (`F`) is a parameter: it
/// is a mapping, which no part has.
#[derive(Debug)]
pub struct Order<F> {
    /// Number of packets received so far, the `Welcome` included.
    packets: u64,
    /// Number of ordered messages received so far.
    messages: u64,
    /// Each with the sequence number of the first frame after it.
    waiting: VecDeque<(Sequence, Waiting<F>)>,
    /// Bytes of the payloads of `waiting`.
    bytes: usize,
    /// Limit of `bytes`.
    max_bytes: u64,
    /// Oversized metadata of the next frame, and its sequence number.
    oversized: Option<(Sequence, Vec<u8>)>,
}

impl<F> Order<F> {
    /// The order after the `Welcome`. At most about `max_bytes` bytes of payloads wait.
    pub fn new(max_bytes: u64) -> Self {
        Self { packets: 1, messages: 0, waiting: VecDeque::new(), bytes: 0, max_bytes, oversized: None }
    }

    /// Counts a received packet. Those of ordered messages count for the frames that follow them.
    pub fn count_packet(&mut self, is_ordered: bool) {
        self.packets += 1;
        self.messages += u64::from(is_ordered);
    }

    /// Number of packets received so far, the `Welcome` included.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Number of ordered messages received so far.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// Returns whether as many messages wait as may.
    pub fn is_full(&self) -> bool {
        self.waiting.len() >= MAX_WAITING || self.bytes as u64 >= self.max_bytes
    }

    /// Checks, before messages are received, that one more may wait. Due messages have been applied
    /// before.
    ///
    /// # Errors
    /// [`Violation::EarlyMessages`] if [`Order::is_full`].
    pub fn check_room(&self) -> Result<(), Violation> {
        if self.is_full() { Err(Violation::EarlyMessages) } else { Ok(()) }
    }

    /// Queues a message in front of frame `before`.
    pub fn push(&mut self, before: Sequence, message: Ordered<F>) {
        self.queue(before, Waiting::Message(message));
    }

    /// Queues oversized metadata of a frame. It may arrive after messages that follow the frame.
    pub fn push_metadata(&mut self, sequence: Sequence, bytes: Vec<u8>) {
        self.queue(sequence, Waiting::Metadata(bytes));
    }

    fn queue(&mut self, before: Sequence, message: Waiting<F>) {
        self.bytes += message.bytes();
        let place = self.waiting.partition_point(|(other, _)| *other <= before);
        self.waiting.insert(place, (before, message));
    }

    /// Takes the first message if its place is in front of frame `sequence`.
    fn pop_due(&mut self, sequence: Sequence) -> Option<(Sequence, Waiting<F>)> {
        self.waiting.front().filter(|(before, _)| *before <= sequence)?;
        let (before, message) = self.waiting.pop_front()?;
        self.bytes -= message.bytes();
        Some((before, message))
    }

    /// Returns the next step. `oldest` is the oldest untaken frame, with its entry, and `head` the
    /// end of the queue from before it was looked for; `expected` is the next frame if none is
    /// lost.
    ///
    /// # Errors
    /// [`Violation::FrameOrder`] if sequence numbers went back.
    pub fn next<'a>(
        &mut self,
        head: Sequence,
        oldest: Option<(EntryIndex, &'a Descriptor)>,
        expected: Sequence,
    ) -> Result<Step<'a, F>, Violation> {
        // Without an untaken frame below the head, a message in the place of the head is due.
        let sequence = oldest.map_or(head, |(_, frame)| frame.sequence);
        if oldest.is_some() && sequence < expected {
            return Err(Violation::FrameOrder { sequence, after: expected.previous() });
        }
        while let Some((before, message)) = self.pop_due(sequence) {
            match message {
                Waiting::Message(message) => return Ok(Step::Apply(before, message)),
                Waiting::Metadata(bytes) => self.oversized = Some((before, bytes)),
            }
        }
        Ok(match oldest {
            // Messages come in order: received ones precede those still under way.
            Some((_, frame)) if self.messages < frame.messages => Step::Receive(frame),
            Some((entry, frame)) => Step::Take(entry, frame),
            None => Step::Wait,
        })
    }

    /// Returns whether ordered messages have arrived since there were `before`, in front of a frame
    /// that needs some. If not, the exporter had no room for them, and sends them now.
    ///
    /// # Errors
    /// [`Violation::MissingMessages`] if more are missing than an exporter keeps back.
    pub fn has_advanced(&self, before: u64, frame: &Descriptor) -> Result<bool, Violation> {
        let missing = frame.messages.saturating_sub(self.messages);
        if self.messages > before {
            Ok(true)
        } else if missing > MAX_BACKLOG as u64 {
            Err(Violation::MissingMessages { sequence: frame.sequence, missing })
        } else {
            Ok(false)
        }
    }

    /// Takes the oversized metadata of a frame that is taken, if it has some.
    pub fn take_metadata(&mut self, sequence: Sequence) -> Option<Vec<u8>> {
        self.oversized.take().filter(|(of, _)| *of == sequence).map(|(_, bytes)| bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(sequence: u64, messages: u64) -> Descriptor {
        Descriptor { sequence: Sequence(sequence), messages, ..Descriptor::default() }
    }

    /// A frame in the queue.
    fn queued(frame: &Descriptor) -> Option<(EntryIndex, &Descriptor)> {
        Some((EntryIndex(6), frame))
    }

    /// The next step before this head or frame; nothing is expected yet.
    fn next<'a>(order: &mut Order<()>, head: u64, oldest: Option<&'a Descriptor>) -> Step<'a, ()> {
        order.next(Sequence(head), oldest.and_then(queued), Sequence::FIRST).unwrap()
    }

    #[test]
    fn messages_wait_for_frames_before_them() {
        let mut order = Order::new(1 << 20);
        order.push(Sequence(2), Ordered::Retire(1));
        order.push(Sequence(5), Ordered::EndOfStream);
        order.push(Sequence(2), Ordered::Retire(2));
        assert!(matches!(next(&mut order, 1, None), Step::Wait));
        for generation in [1, 2] {
            let step = next(&mut order, 4, None);
            assert!(
                matches!(step, Step::Apply(Sequence(2), Ordered::Retire(found)) if found == generation),
                "{step:?}"
            );
        }
        assert!(matches!(next(&mut order, 4, None), Step::Wait));
        assert!(matches!(next(&mut order, 5, None), Step::Apply(Sequence(5), Ordered::EndOfStream)));
    }

    #[test]
    fn untaken_frame_comes_before_messages_after_it() {
        let mut order = Order::new(1 << 20);
        order.push(Sequence(4), Ordered::Skipped);
        let three = frame(3, 0);
        // The head is beyond the message, and the frame is not taken yet.
        assert!(
            matches!(next(&mut order, 9, Some(&three)), Step::Take(EntryIndex(6), found) if *found == three)
        );
        let four = frame(4, 0);
        assert!(matches!(next(&mut order, 9, Some(&four)), Step::Apply(Sequence(4), Ordered::Skipped)));
        assert!(matches!(next(&mut order, 9, Some(&four)), Step::Take(..)));
    }

    #[test]
    fn frame_waits_for_messages_under_way() {
        let mut order = Order::new(1 << 20);
        let frame = frame(3, 2);
        order.count_packet(true);
        order.count_packet(false);
        assert_eq!((order.messages(), order.packets()), (1, 3));
        // A message that has arrived precedes those under way.
        order.push(Sequence(3), Ordered::Skipped);
        assert!(matches!(next(&mut order, 4, Some(&frame)), Step::Apply(..)));
        assert!(matches!(next(&mut order, 4, Some(&frame)), Step::Receive(_)));
        assert!(!order.has_advanced(1, &frame).unwrap());
        order.count_packet(true);
        assert!(order.has_advanced(1, &frame).unwrap());
        assert!(matches!(next(&mut order, 4, Some(&frame)), Step::Take(..)));
    }

    #[test]
    fn frame_with_more_missing_messages_than_a_backlog_is_a_violation() {
        let mut order = Order::<()>::new(1 << 20);
        let most = MAX_BACKLOG as u64;
        assert!(!order.has_advanced(0, &frame(3, most)).unwrap());
        let error = order.has_advanced(0, &frame(3, most + 1)).unwrap_err();
        assert!(
            matches!(error, Violation::MissingMessages { missing, .. } if missing == most + 1),
            "{error}"
        );
        // Once some have arrived, the others are waited for.
        order.count_packet(true);
        assert!(order.has_advanced(0, &frame(3, most + 9)).unwrap());
    }

    #[test]
    fn frame_before_the_expected_one_is_a_violation() {
        let mut order = Order::<()>::new(1 << 20);
        order.push(Sequence(1), Ordered::Skipped);
        let error = order.next(Sequence(9), queued(&frame(4, 0)), Sequence(5)).unwrap_err();
        assert!(
            matches!(error, Violation::FrameOrder { sequence: Sequence(4), after: Sequence(4) }),
            "{error}"
        );
        // The head alone may be behind.
        assert!(matches!(order.next(Sequence(4), None, Sequence(5)), Ok(Step::Apply(..))));
        assert!(matches!(order.next(Sequence(9), queued(&frame(5, 0)), Sequence(5)), Ok(Step::Take(..))));
    }

    #[test]
    fn oversized_metadata_is_of_its_frame_only() {
        let mut order = Order::<()>::new(1 << 20);
        order.push(Sequence(4), Ordered::EndOfStream);
        // It arrives late, and still comes before the message after its frame.
        order.push_metadata(Sequence(3), vec![7]);
        assert!(matches!(next(&mut order, 9, Some(&frame(3, 0))), Step::Take(..)));
        assert_eq!(order.take_metadata(Sequence(3)), Some(vec![7]));
        assert_eq!(order.take_metadata(Sequence(3)), None);
        // Its frame was lost.
        order.push_metadata(Sequence(4), vec![8]);
        assert!(matches!(next(&mut order, 9, Some(&frame(5, 0))), Step::Apply(..)));
        assert!(matches!(next(&mut order, 9, Some(&frame(5, 0))), Step::Take(..)));
        assert_eq!(order.take_metadata(Sequence(5)), None);
    }

    #[test]
    fn order_is_full_at_either_limit() {
        let mut order = Order::new(3);
        order.push_metadata(Sequence(1), vec![0; 2]);
        assert!(!order.is_full());
        order.push_metadata(Sequence(1), vec![0; 1]);
        assert!(order.is_full());
        assert_eq!(order.check_room(), Err(Violation::EarlyMessages));
        assert!(matches!(next(&mut order, 1, None), Step::Wait));
        order.check_room().unwrap();
        for _ in 0..MAX_WAITING {
            assert!(!order.is_full());
            order.push(Sequence(1), Ordered::EndOfStream);
        }
        assert!(order.is_full());
    }
}
