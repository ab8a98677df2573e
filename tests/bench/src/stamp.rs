// SPDX-License-Identifier: MIT OR Apache-2.0

//! Stamp in each frame: short, so that the hand-off is measured and not the writing.

use rustix::time::{ClockId, clock_gettime};

/// Bytes of a stamp.
pub const SIZE: usize = 24;

/// The phase of a run that a frame belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Readers join; frames are sent slowly, so that each reader sees one.
    Join,
    /// At the measured rate, before the measurement.
    Warm,
    /// The measurement.
    Measure,
    /// Slow frames again: a reader that receives one has received all measured ones.
    End,
}

/// Stamp of one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Phase of the run.
    pub phase: Phase,
    /// Number of the frame in the run.
    pub sequence: u64,
    /// `CLOCK_MONOTONIC` in ns when the frame entered the exporter's sink.
    pub time: u64,
}

impl Stamp {
    /// Encodes the stamp.
    pub fn encode(self) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        bytes[0..8].copy_from_slice(&(self.phase as u64).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.time.to_le_bytes());
        bytes
    }

    /// Decodes the first bytes of a frame; `None` without a stamp.
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

/// Time of a clock in ns.
pub fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
