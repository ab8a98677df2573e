//! Memory of somebody else's, shared where it lies.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use frameshare::MemoryKind;

use super::{Case, FENCES, PATIENCE_MS, Stage, case, to_the_end};
use crate::job::{Command, Connect, End, Read, Slow};
use crate::peer::Peer;

const SUITE: &str = "engine-foreign";

pub const CASES: &[Case] = &[
    case(SUITE, "adopted-and-given-back", |seed| adopt(&[1 << 20; 4], seed)),
    case(SUITE, "adopted-in-several-sizes", |seed| adopt(&[1 << 20, 3 << 20, 5 << 20, 1 << 20], seed)),
    case(SUITE, "owner-told-when-the-stream-ends", told_at_the_end),
    case(SUITE, "owner-told-when-a-reader-is-killed", told_after_kill),
    case(SUITE, "written-again-only-when-released", returned_on_release),
];

/// Rounds of adopting, reading, giving back and freeing: the addresses come again, and are never taken for what was there
/// before.
fn adopt(sizes: &[u64], seed: u64) -> Result<String> {
    const ROUNDS: u64 = 6;
    let stage = Stage::new(MemoryKind::Vmm, seed)?;
    let readers = Peer::some(2)?;
    stage.join(&readers, |number| Connect {
        gpu_wait: Some(true),
        ..stage.lossless(number, Some(FENCES[number]))
    })?;
    let each = sizes.len() as u64;
    let read = Read { frames: Some(each), slow: Slow::Sometimes(2000), ..to_the_end() };
    let (mut addresses, mut again, mut told) = (BTreeSet::new(), 0, 0);
    for reader in &readers {
        reader.begin(&Command::Read(read.clone()))?;
    }
    for round in 1..=ROUNDS {
        for size in sizes {
            let slow = Slow::Always(500);
            let address = stage.exporter.number(Command::Adopt { size: *size, slow })?;
            again += u64::from(!addresses.insert(address));
        }
        for reader in &readers {
            let read = reader.was_read()?;
            ensure!(
                read.end == End::Enough && read.wrong == 0 && read.lost == 0,
                "round {round}: {:?}, {} wrong: {:?}",
                read.end,
                read.wrong,
                read.first_wrong
            );
        }
        // Readers hear of it while they wait for more.
        for reader in &readers {
            reader.begin(&Command::Read(read.clone()))?;
        }
        told = stage.exporter.number(Command::RetireAdopted { ms: PATIENCE_MS })?;
        ensure!(told == round * each, "{told} of {} owners were told", round * each);
    }
    ensure!(again > 0, "no address came again, so nothing is shown");
    Ok(format!("{told} allocations, {again} at addresses that had been used before"))
}

/// Without being asked for, owners are told when the stream is over.
fn told_at_the_end(seed: u64) -> Result<String> {
    let stage = Stage::new(MemoryKind::Vmm, seed)?;
    let readers = Peer::some(2)?;
    stage.join(&readers, |number| stage.lossless(number, Some(FENCES[number])))?;
    for reader in &readers {
        reader.begin(&Command::Read(to_the_end()))?;
    }
    for _ in 0..3 {
        stage.exporter.number(Command::Adopt { size: 1 << 20, slow: Slow::Never })?;
    }
    stage.exporter.tell(Command::EndOfStream)?;
    for reader in &readers {
        let read = reader.was_read()?;
        ensure!(read.wrong == 0 && read.frames == 3, "{read:?}");
    }
    let told = stage.exporter.number(Command::UnbindAdopted { ms: 0 })?;
    // Readers that are still there keep their imports until they end, and whoever asks waits for that.
    stage.exporter.begin(&Command::UnbindAdopted { ms: PATIENCE_MS })?;
    std::thread::sleep(Duration::from_millis(20));
    for reader in &readers {
        reader.tell(Command::Disconnect)?;
    }
    let told_then = stage.exporter.was_number()?;
    ensure!(told_then == 3, "{told_then} of 3 owners were told when nothing was left of the exporter");
    Ok(format!("{told} before the readers were gone, {told_then} then"))
}

/// A reader that is killed has given its imports up.
fn told_after_kill(seed: u64) -> Result<String> {
    let stage = Stage::new(MemoryKind::Vmm, seed)?;
    let mut readers = Peer::some(2)?;
    stage.join(&readers, |number| stage.lossless(number, Some(FENCES[number])))?;
    for reader in &readers {
        reader.begin(&Command::Read(Read { frames: Some(2), hold: 2, ..to_the_end() }))?;
    }
    for _ in 0..2 {
        stage.exporter.number(Command::Adopt { size: 1 << 20, slow: Slow::Never })?;
    }
    for reader in &readers {
        reader.was_read()?;
    }
    let told = stage.exporter.number(Command::RetireAdopted { ms: 100 })?;
    ensure!(told == 0, "{told} owners were told while readers hold the frames");
    for reader in &mut readers {
        reader.kill()?;
    }
    let told = stage.exporter.number(Command::RetireAdopted { ms: PATIENCE_MS })?;
    ensure!(told == 2, "{told} of 2 owners were told");
    Ok(String::new())
}

/// Whose owner lives on when the stream ends, and would write them again, is not told that it may while readers hold frames,
/// or could still take them.
fn returned_on_release(seed: u64) -> Result<String> {
    let stage = Stage::new(MemoryKind::Vmm, seed)?;
    let readers = Peer::some(2)?;
    stage.join(&readers, |number| stage.lossless(number, Some(FENCES[number])))?;
    let read = Read { frames: Some(2), hold: 2, ..to_the_end() };
    readers[0].begin(&Command::Read(read.clone()))?;
    for _ in 0..2 {
        stage.exporter.number(Command::Adopt { size: 1 << 20, slow: Slow::Never })?;
    }
    readers[0].was_read()?;
    stage.exporter.number(Command::UnbindAdopted { ms: 100 })?;
    // The second reader takes them only now.
    readers[1].read(read)?;
    for (number, reader) in readers.iter().enumerate() {
        let returned = stage.exporter.number(Command::Returned)?;
        ensure!(returned == 0, "{returned} of 2 frames may be written that {} readers hold", 2 - number);
        let wrong = reader.texts(Command::CheckHeld)?;
        ensure!(wrong.is_empty(), "what is held has changed: {wrong:?}");
        reader.tell(Command::LetGo { count: 2 })?;
        std::thread::sleep(Duration::from_millis(100));
    }
    let returned = stage.exporter.number(Command::Returned)?;
    ensure!(returned == 2, "{returned} of 2 frames were given back when all readers had let them go");
    for reader in &readers {
        reader.tell(Command::Disconnect)?;
    }
    let told = stage.exporter.number(Command::UnbindAdopted { ms: 3000 })?;
    ensure!(told == 2, "{told} of 2 owners were told");
    Ok(String::new())
}
