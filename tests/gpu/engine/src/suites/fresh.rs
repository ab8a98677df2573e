// SPDX-License-Identifier: MIT OR Apache-2.0

//! Content of new slots before their first frame.

use anyhow::{Result, ensure};
use frameshare::MemoryKind;
use frameshare_gpu_harness::Case;

use super::{SIZE, Setup, case, caught, each_kind, to_the_end};
use crate::job::{Command, Connect, End, Publish, Read, WasRead};
use crate::peer::Peer;

pub const CASES: &[Case] = &[case("engine-policies", "new-slots-hold-zeros", zeros)];

/// Frames that a reader holds at once, each in its own slot.
const FRAMES: u64 = 8;

/// GPU memory is filled with a pattern and freed; readers must see only zeros in slots allocated
/// afterwards. Control: in reused slots, the same check finds the remains of former frames.
fn zeros(seed: u64) -> Result<String> {
    each_kind(|kind| of_kind(kind, seed))
}

fn of_kind(kind: MemoryKind, seed: u64) -> Result<String> {
    let setup = Setup::new(kind, seed)?;
    let readers = Peer::some(1)?;
    setup.exporter.execute(Command::Soil { kind })?;
    setup
        .join(&readers, |number| Connect { max_held: Some(FRAMES as u32), ..setup.lossless(number, None) })?;
    let read = |unwritten| -> Result<WasRead> {
        let read = Read { frames: Some(FRAMES), hold: FRAMES as usize, zero: unwritten, ..to_the_end() };
        readers[0].begin(&Command::Read(read))?;
        setup.exporter.publish(Publish {
            frames: FRAMES,
            size: 4 * SIZE,
            unwritten,
            ..Publish::default()
        })?;
        let read = readers[0].was_read()?;
        ensure!(read.end == End::Enough && read.lost == 0, "{read:?}");
        readers[0].execute(Command::ReleaseHeld { count: FRAMES as usize })?;
        Ok(read)
    };
    let fresh = read(true)?;
    ensure!(fresh.wrong == 0, "a new slot is not zeroed: {:?}", fresh.first_wrong);
    let slots = setup.exporter.stats()?.slots;
    ensure!(u64::from(slots) >= FRAMES, "{FRAMES} frames used only {slots} slots");
    let written = read(false)?;
    ensure!(written.wrong == 0, "{:?}", written.first_wrong);
    caught(&read(true)?, &format!("{slots} new slots; the slots are not new"))
}
