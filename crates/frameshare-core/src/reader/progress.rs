// SPDX-License-Identifier: MIT OR Apache-2.0

//! Progress through the sequence numbers of one connection: received and lost frames.

use frameshare_protocol::Sequence;

/// Owns the next sequence number of a connection, and the numbers of received and lost frames. It
/// does not decide which frame is taken, nor whether its number is valid.
///
/// The order: [`Progress::deliver`] for each frame, which is the expected one or a later one, and
/// [`Progress::end`] where the stream ends. A stream that goes on after its end has lost nothing
/// there.
#[derive(Debug)]
pub struct Progress {
    /// The next sequence number if no frame is lost.
    expected: Sequence,
    received: u64,
    /// Frames lost before delivered ones.
    lost: u64,
    /// Frames lost after the last delivered one, when the stream ended or the exporter died.
    undelivered: u64,
}

impl Progress {
    /// Progress of a reader whose first frame is `next`.
    #[inline]
    pub fn new(next: Sequence) -> Self {
        Self { expected: next, received: 0, lost: 0, undelivered: 0 }
    }

    /// The next sequence number if no frame is lost.
    #[inline]
    pub fn expected(&self) -> Sequence {
        self.expected
    }

    /// Counts a delivered frame, which is the expected one or a later one. Returns the number of
    /// frames lost before it.
    #[inline]
    pub fn deliver(&mut self, sequence: Sequence) -> u64 {
        let lost = sequence.since(self.expected);
        self.expected = sequence.next();
        self.undelivered = 0;
        self.lost += lost;
        self.received += 1;
        lost
    }

    /// Counts a delivered kept unit.
    #[inline]
    pub fn deliver_kept(&mut self) {
        self.received += 1;
    }

    /// Records that the frames before `before` are not for this reader.
    #[inline]
    pub fn skip(&mut self, before: Sequence) {
        self.expected = self.expected.max(before);
    }

    /// Counts the frames up to `before` as lost, for now: the stream ends there.
    #[inline]
    pub fn end(&mut self, before: Sequence) {
        self.undelivered = before.since(self.expected);
    }

    /// Number of delivered frames.
    #[inline]
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Number of lost frames.
    #[inline]
    pub fn lost(&self) -> u64 {
        self.lost.saturating_add(self.undelivered)
    }

    /// Frames lost after the last delivered one.
    #[inline]
    pub fn undelivered(&self) -> u64 {
        self.undelivered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_sequence_numbers_count_as_lost() {
        let mut progress = Progress::new(Sequence(5));
        assert_eq!(progress.deliver(Sequence(5)), 0);
        assert_eq!(progress.deliver(Sequence(8)), 2);
        progress.end(Sequence(12));
        assert_eq!((progress.received(), progress.undelivered(), progress.lost()), (2, 3, 5));
        // The stream continues, and the frames arrive after all.
        assert_eq!(progress.deliver(Sequence(9)), 0);
        assert_eq!((progress.received(), progress.undelivered(), progress.lost()), (3, 0, 2));
        progress.skip(Sequence(20));
        progress.skip(Sequence(15));
        assert_eq!((progress.deliver(Sequence(21)), progress.lost()), (1, 3));
        // A kept unit is from before all frames, and changes no other number.
        progress.deliver_kept();
        assert_eq!((progress.received(), progress.expected(), progress.lost()), (5, Sequence(22), 3));
    }
}
