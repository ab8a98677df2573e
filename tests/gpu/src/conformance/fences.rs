// SPDX-License-Identifier: MIT OR Apache-2.0

//! Rules of fences.

use std::time::{Duration, Instant};

use anyhow::Result;
use frameshare::{EntryIndex, FenceKind, Sequence};

use super::command::{Command, Frame};
use super::sides::{Side, connect, frame};
use super::{Subject, rule};

type Kind = Subject<FenceKind>;

/// Time that a stream is observed to stay blocked.
const BLOCKED_MS: u64 = 50;

/// Both sides of a fence.
struct Fence {
    exporter: Side,
    reader: Side,
    /// Time limit for signals. Controls whose signals never arrive need not wait long.
    patience: Duration,
}

impl Fence {
    fn new(subject: Kind) -> Result<Fence> {
        let (exporter, reader) = (Side::new()?, Side::new()?);
        connect(subject.kind, subject.defect, &exporter, &reader)?;
        let patience = Duration::from_millis(if subject.defect.is_some() { 300 } else { 10_000 });
        Ok(Fence { exporter, reader, patience })
    }

    fn is_ready(&self, frame: Frame) -> Result<bool> {
        self.reader.answer(Command::PollReady(frame))
    }

    fn is_released(&self, frame: Frame) -> Result<bool> {
        self.exporter.answer(Command::PollReleased(frame))
    }

    fn signal_ready(&self, frame: Frame) -> Result<()> {
        self.exporter.execute(Command::SignalReady(frame))
    }

    fn signal_released(&self, frame: Frame) -> Result<()> {
        self.reader.execute(Command::SignalReleased { frame, second: false })
    }

    fn becomes_ready(&self, frame: Frame) -> Result<()> {
        let becomes = self.becomes(|| self.is_ready(frame))?;
        rule!(becomes, "the ready fence of {frame:?} is not signaled");
        Ok(())
    }

    fn becomes_released(&self, frame: Frame) -> Result<()> {
        let becomes = self.becomes(|| self.is_released(frame))?;
        rule!(becomes, "the release fence of {frame:?} is not signaled");
        Ok(())
    }

    fn becomes(&self, condition: impl Fn() -> Result<bool>) -> Result<bool> {
        let end = Instant::now() + self.patience;
        while !condition()? {
            if Instant::now() >= end {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(true)
    }
}

/// A frame is ready once the writer's work before the signal is complete, and not before. Host
/// frames have no such work.
pub fn ready_follows_writers_work(subject: Kind) -> Result<()> {
    let fence = Fence::new(subject)?;
    for frame in [
        frame(EntryIndex(0), Sequence(1)),
        frame(EntryIndex(1), Sequence(2)),
        frame(EntryIndex(0), Sequence(3)),
    ] {
        let is_pending = fence.exporter.answer(Command::Stall)?;
        fence.signal_ready(frame)?;
        if is_pending {
            rule!(!fence.is_ready(frame)?, "{frame:?} is ready before it is written");
        }
        fence.exporter.execute(Command::Resume)?;
        fence.becomes_ready(frame)?;
        fence.signal_released(frame)?;
        fence.becomes_released(frame)?;
    }
    Ok(())
}

/// A frame is released once the reader's work before the signal is complete, and not before.
pub fn release_follows_readers_work(subject: Kind) -> Result<()> {
    let fence = Fence::new(subject)?;
    for frame in [
        frame(EntryIndex(0), Sequence(1)),
        frame(EntryIndex(1), Sequence(2)),
        frame(EntryIndex(0), Sequence(3)),
    ] {
        fence.signal_ready(frame)?;
        fence.becomes_ready(frame)?;
        let is_pending = fence.reader.answer(Command::Stall)?;
        fence.signal_released(frame)?;
        if is_pending {
            rule!(!fence.is_released(frame)?, "{frame:?} is released before it is read");
        }
        fence.reader.execute(Command::Resume)?;
        fence.becomes_released(frame)?;
    }
    Ok(())
}

/// Frames are published and released in any order of their entries.
pub fn entries_signal_in_any_order(subject: Kind) -> Result<()> {
    let fence = Fence::new(subject)?;
    for (entry, sequence) in [(2, 1), (0, 2), (1, 3)] {
        fence.signal_ready(frame(EntryIndex(entry), Sequence(sequence)))?;
    }
    for (entry, sequence) in [(1, 3), (2, 1), (0, 2)] {
        let frame = frame(EntryIndex(entry), Sequence(sequence));
        fence.becomes_ready(frame)?;
        fence.signal_released(frame)?;
        fence.becomes_released(frame)?;
    }
    Ok(())
}

/// A signal that arrived before the exporter was killed stays valid.
pub fn signal_survives_killed_exporter(subject: Kind) -> Result<()> {
    let mut fence = Fence::new(subject)?;
    for frame in [frame(EntryIndex(0), Sequence(1)), frame(EntryIndex(1), Sequence(2))] {
        fence.signal_ready(frame)?;
        fence.becomes_ready(frame)?;
    }
    fence.exporter.kill()?;
    for frame in [frame(EntryIndex(0), Sequence(1)), frame(EntryIndex(1), Sequence(2))] {
        rule!(fence.is_ready(frame)?, "{frame:?} is no longer ready after the exporter's death");
    }
    Ok(())
}

/// A stream of the reader waits until the frame is written.
pub fn stream_waits_for_ready(subject: Kind) -> Result<()> {
    let fence = Fence::new(subject)?;
    for frame in [
        frame(EntryIndex(0), Sequence(1)),
        frame(EntryIndex(1), Sequence(2)),
        frame(EntryIndex(0), Sequence(3)),
    ] {
        fence.exporter.answer(Command::Stall)?;
        fence.signal_ready(frame)?;
        fence.reader.execute(Command::WaitReady(frame))?;
        let passed = fence.reader.answer(Command::Idle { ms: BLOCKED_MS })?;
        rule!(!passed, "a stream passed the ready fence of {frame:?} before it was written");
        fence.exporter.execute(Command::Resume)?;
        let ms = fence.patience.as_millis() as u64;
        rule!(fence.reader.answer(Command::Idle { ms })?, "a stream stays blocked by a ready frame");
        fence.signal_released(frame)?;
        fence.becomes_released(frame)?;
    }
    Ok(())
}

/// The signal of an earlier frame of an entry does not count for a later one.
pub fn reused_entry_is_pending(subject: Kind) -> Result<()> {
    let fence = Fence::new(subject)?;
    let (first, second) = (frame(EntryIndex(0), Sequence(1)), frame(EntryIndex(0), Sequence(2)));
    fence.signal_ready(first)?;
    fence.becomes_ready(first)?;
    fence.signal_released(first)?;
    fence.becomes_released(first)?;
    fence.exporter.answer(Command::Stall)?;
    fence.signal_ready(second)?;
    rule!(!fence.is_ready(second)?, "the second frame of an entry is ready before it is written");
    fence.exporter.execute(Command::Resume)?;
    fence.becomes_ready(second)
}

/// The release of one entry does not release another one.
pub fn entries_are_released_separately(subject: Kind) -> Result<()> {
    let fence = Fence::new(subject)?;
    // The sequence numbers differ in their last bit, as the entries do: see `EntriesSwapped`.
    let (slow, fast) = (frame(EntryIndex(0), Sequence(2)), frame(EntryIndex(1), Sequence(3)));
    for frame in [slow, fast] {
        fence.signal_ready(frame)?;
        fence.becomes_ready(frame)?;
    }
    fence.reader.answer(Command::Stall)?;
    fence.signal_released(slow)?;
    fence.reader.execute(Command::SignalReleased { frame: fast, second: true })?;
    fence.becomes_released(fast)?;
    rule!(!fence.is_released(slow)?, "the release of an entry released another one");
    fence.reader.execute(Command::Resume)?;
    fence.becomes_released(slow)
}

/// An entry beyond the fence's is an error.
pub fn unknown_entry_is_an_error(subject: Kind) -> Result<()> {
    let fence = Fence::new(subject)?;
    let unknown = frame(EntryIndex(1 << 20), Sequence(1));
    let polled = fence.exporter.fault(Command::PollReleased(unknown))?;
    rule!(polled.is_some(), "the exporter polls an entry that does not exist");
    let signaled = fence.reader.fault(Command::SignalReleased { frame: unknown, second: false })?;
    rule!(signaled.is_some(), "the reader releases an entry that does not exist");
    Ok(())
}
