// SPDX-License-Identifier: MIT OR Apache-2.0

//! Rule of memory and fence together: no frame is torn.

use anyhow::Result;
use frameshare::{EntryIndex, Sequence};
use frameshare_gpu_harness::random::Random;

use super::command::{Command, Defect};
use super::sides::{Side, connect, frame};
use super::{Frames, Subject, rule};

const SIZE: usize = 128 << 10;

/// Frames of one run. Each slot is written again as soon as its last frame is released.
const ROUNDS: u64 = 120;
/// Frames of a negative control, and the delay of its slow side.
const CONTROL_ROUNDS: u64 = 20;
const LATE_US: u64 = 20_000;
const SLOTS: u64 = 2;

/// Delays of one frame: before each half is written, and before it is read.
fn delays(defect: Option<Defect>, random: &mut Random) -> ([u64; 2], u64) {
    match defect {
        None => {
            let mut delay = || if random.below(4) == 0 { 0 } else { random.below(1500) };
            ([delay(), delay()], delay())
        }
        // Without the fence, nothing else may order the work, such as a slow reader.
        Some(Defect::NoWait) => ([LATE_US / 2; 2], 0),
        Some(_) => ([0; 2], LATE_US),
    }
}

/// Every frame is written in two halves and read behind its fences only, with random delays on both
/// sides.
pub fn no_frame_is_torn(subject: Subject<Frames>) -> Result<()> {
    let Subject { kind: (memory, fence), defect, seed } = subject;
    let (exporter, reader) = (Side::new()?, Side::new()?);
    connect(fence, defect, &exporter, &reader)?;
    // The defect is the fence's.
    let memory = Subject { kind: memory, defect: None, seed };
    let allocator = exporter.allocator(memory)?;
    let importer = reader.importer(memory, &allocator)?;
    let slots = (0..SLOTS)
        .map(|_| {
            let (id, size, handle) = allocator.allocate(SIZE as u64)?;
            Ok((id, importer.import(size, &handle)?))
        })
        .collect::<Result<Vec<_>>>()?;
    let rounds = if defect.is_some() { CONTROL_ROUNDS } else { ROUNDS };
    reader.execute(Command::Captures { count: rounds as usize, size: SIZE })?;
    let mut random = Random::new(seed);
    let mut values = Vec::new();
    for sequence in 1..=rounds {
        let entry = (sequence % SLOTS) as usize;
        let (allocation, import) = slots[entry];
        let (delays_us, delay_us) = delays(defect, &mut random);
        let (frame, after) = (
            frame(EntryIndex(entry), Sequence(sequence)),
            sequence.checked_sub(SLOTS).filter(|after| *after > 0),
        );
        let value = (sequence % 251) as u8;
        exporter.execute(Command::Publish { allocation, frame, after, size: SIZE, value, delays_us })?;
        reader.execute(Command::Take { import, frame, size: SIZE, delay_us })?;
        values.push(value);
    }
    let torn = reader.number(Command::Torn(values))?;
    rule!(torn == 0, "{torn} bytes of {rounds} frames belong to another frame");
    Ok(())
}
