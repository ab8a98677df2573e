//! What the exporter writes into a frame, and the reader reads there: so little that the hand-off is measured and not
//! the painting.

use rustix::time::{ClockId, clock_gettime};

/// Bytes of a stamp.
pub const SIZE: usize = 24;

/// Which part of a run a frame belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Readers come; a slow trickle, so that each sees that it is connected.
    Join,
    /// At the rate that will be measured, but not yet measured.
    Warm,
    /// What counts.
    Measure,
    /// A trickle again: whoever sees one of these has seen all that counts.
    End,
}

/// The stamp of one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The part of the run.
    pub phase: Phase,
    /// Counts all frames of a run.
    pub sequence: u64,
    /// `CLOCK_MONOTONIC` when the frame was handed to the exporter's sink.
    pub time: u64,
}

impl Stamp {
    /// As bytes.
    pub fn encode(self) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        bytes[0..8].copy_from_slice(&(self.phase as u64).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.time.to_le_bytes());
        bytes
    }

    /// From the first bytes of a frame; none where there is no stamp.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let phase = match word(0)? {
            0 => Phase::Join,
            1 => Phase::Warm,
            2 => Phase::Measure,
            3 => Phase::End,
            _ => return None,
        };
        Some(Self { phase, sequence: word(8)?, time: word(16)? })
    }
}

/// `CLOCK_MONOTONIC` in ns.
pub fn now() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// A clock's time in ns.
pub fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
