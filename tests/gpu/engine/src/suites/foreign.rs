// SPDX-License-Identifier: MIT OR Apache-2.0

//! Foreign memory, shared in place.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use frameshare::MemoryKind;
use frameshare_gpu_harness::Skip;

use super::{Case, FENCES, PATIENCE, PATIENCE_MS, Setup, case, to_the_end, wait_until, whole};
use crate::job::{Bind, Circulate, Circulated, Command, End, Read, Slow};
use crate::peer::Peer;

const SUITE: &str = "engine-foreign";

pub const CASES: &[Case] = &[
    case(SUITE, "adopted-and-given-back", |seed| adopt(&[1 << 20; 4], seed)),
    case(SUITE, "adopted-in-several-sizes", |seed| adopt(&[1 << 20, 3 << 20, 5 << 20, 1 << 20], seed)),
    case(SUITE, "owner-notified-when-the-stream-ends", notified_at_the_end),
    case(SUITE, "owner-notified-when-a-reader-is-killed", notified_after_kill),
    case(SUITE, "written-again-only-when-released", returned_on_release),
    case(SUITE, "last-buffer-comes-back", |seed| returned_without_publication(LAST, seed)),
    case(SUITE, "last-buffer-comes-back-beside-copies", |seed| {
        returned_without_publication(Circulate { beside_copies: true, ..LAST }, seed)
    }),
    case(SUITE, "only-buffer-comes-back", |seed| returned_without_publication(ONLY, seed)),
    case(SUITE, "only-buffer-of-slow-producer-comes-back", |seed| {
        returned_without_publication(Circulate { work_us: 70_000, ..ONLY }, seed)
    }),
    case(SUITE, "source-of-copy-comes-back", |seed| source_returned(false, seed)),
    case(SUITE, "source-of-copy-comes-back-without-the-exporters-gpu", |seed| source_returned(true, seed)),
    case(SUITE, "service-thread-sleeps-while-buffers-come-back", sleeps_on),
];

const LAST: Circulate = Circulate { buffers: 2, frames: 1, pace_us: 0, work_us: 0, beside_copies: false };
const ONLY: Circulate = Circulate { buffers: 1, frames: 40, ..LAST };

/// Rounds of adopting, reading, retiring and freeing memory: addresses recur and are never taken
/// for the former allocation.
fn adopt(sizes: &[u64], seed: u64) -> Result<String> {
    const ROUNDS: u64 = 6;
    let setup = Setup::new(MemoryKind::Vmm, seed)?;
    let readers = Peer::some(2)?;
    setup.join(&readers, |number| setup.lossless(number, Some(FENCES[number])))?;
    let each = sizes.len() as u64;
    let read = Read { frames: Some(each), slow: Slow::Sometimes(2000), ..to_the_end() };
    let (mut addresses, mut again, mut notified) = (BTreeSet::new(), 0, 0);
    for reader in &readers {
        reader.begin(&Command::Read(read.clone()))?;
    }
    for round in 1..=ROUNDS {
        for size in sizes {
            let slow = Slow::Always(500);
            let address = setup.exporter.number(Command::Adopt { size: *size, slow })?;
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
        // Readers process the retirement while they wait for further frames.
        for reader in &readers {
            reader.begin(&Command::Read(read.clone()))?;
        }
        notified = setup.exporter.number(Command::RetireAdopted { ms: PATIENCE_MS })?;
        ensure!(notified == round * each, "{notified} of {} owners were notified", round * each);
    }
    ensure!(again > 0, "no address was reused, so the case tested nothing");
    Ok(format!("{notified} allocations, {again} at reused addresses"))
}

/// Owners are notified at the end of the stream without an explicit retirement.
fn notified_at_the_end(seed: u64) -> Result<String> {
    let setup = Setup::new(MemoryKind::Vmm, seed)?;
    let readers = Peer::some(2)?;
    setup.join(&readers, |number| setup.lossless(number, Some(FENCES[number])))?;
    for reader in &readers {
        reader.begin(&Command::Read(to_the_end()))?;
    }
    for _ in 0..3 {
        setup.exporter.number(Command::Adopt { size: 1 << 20, slow: Slow::Never })?;
    }
    setup.exporter.execute(Command::EndOfStream)?;
    for reader in &readers {
        let read = reader.was_read()?;
        ensure!(read.wrong == 0 && read.frames == 3, "{read:?}");
    }
    let notified = setup.exporter.number(Command::UnbindAdopted { ms: 0 })?;
    // Connected readers keep their imports until they end; this command waits for that.
    setup.exporter.begin(&Command::UnbindAdopted { ms: PATIENCE_MS })?;
    std::thread::sleep(Duration::from_millis(20));
    for reader in &readers {
        reader.execute(Command::Disconnect)?;
    }
    let notified_later = setup.exporter.was_number()?;
    ensure!(
        notified_later == 3,
        "{notified_later} of 3 owners were notified after the exporter's resources were freed"
    );
    Ok(format!("{notified} notified before the readers disconnected, {notified_later} afterwards"))
}

/// Killing a reader releases its imports.
fn notified_after_kill(seed: u64) -> Result<String> {
    let setup = Setup::new(MemoryKind::Vmm, seed)?;
    let mut readers = Peer::some(2)?;
    setup.join(&readers, |number| setup.lossless(number, Some(FENCES[number])))?;
    for reader in &readers {
        reader.begin(&Command::Read(Read { frames: Some(2), hold: 2, ..to_the_end() }))?;
    }
    for _ in 0..2 {
        setup.exporter.number(Command::Adopt { size: 1 << 20, slow: Slow::Never })?;
    }
    for reader in &readers {
        reader.was_read()?;
    }
    let notified = setup.exporter.number(Command::RetireAdopted { ms: 100 })?;
    ensure!(notified == 0, "{notified} owners were notified while readers hold the frames");
    for reader in &mut readers {
        reader.kill()?;
    }
    let notified = setup.exporter.number(Command::RetireAdopted { ms: PATIENCE_MS })?;
    ensure!(notified == 2, "{notified} of 2 owners were notified");
    Ok(String::new())
}

/// A frame whose owner outlives the stream is not reported as writable while readers hold it or can
/// still take it.
fn returned_on_release(seed: u64) -> Result<String> {
    let setup = Setup::new(MemoryKind::Vmm, seed)?;
    let readers = Peer::some(2)?;
    setup.join(&readers, |number| setup.lossless(number, Some(FENCES[number])))?;
    let read = Read { frames: Some(2), hold: 2, ..to_the_end() };
    readers[0].begin(&Command::Read(read.clone()))?;
    for _ in 0..2 {
        setup.exporter.number(Command::Adopt { size: 1 << 20, slow: Slow::Never })?;
    }
    readers[0].was_read()?;
    setup.exporter.number(Command::UnbindAdopted { ms: 100 })?;
    // The second reader takes the frames only now.
    readers[1].read(read)?;
    for (number, reader) in readers.iter().enumerate() {
        let returned = setup.exporter.number(Command::Returned)?;
        ensure!(returned == 0, "{returned} of 2 frames were returned while {} readers hold them", 2 - number);
        let wrong = reader.texts(Command::CheckHeld)?;
        ensure!(wrong.is_empty(), "held frames have changed: {wrong:?}");
        reader.execute(Command::ReleaseHeld { count: 2 })?;
        if number == 0 {
            // An early return would be seen.
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    wait_until(PATIENCE, || {
        let returned = setup.exporter.number(Command::Returned)?;
        let lacking = || format!("{returned} of 2 frames were returned after all readers released them");
        Ok((returned != 2).then(lacking))
    })?;
    for reader in &readers {
        reader.execute(Command::Disconnect)?;
    }
    let notified = setup.exporter.number(Command::UnbindAdopted { ms: PATIENCE_MS })?;
    ensure!(notified == 2, "{notified} of 2 owners were notified");
    Ok(String::new())
}

/// Frames come back without a publication after them, and soon where upstream waits for each.
fn returned_without_publication(circulate: Circulate, seed: u64) -> Result<String> {
    let Circulated { ms, .. } = circulated(circulate, seed)?;
    soon(ms - circulate.frames as f64 * circulate.work_us as f64 / 1e3, circulate.frames)
}

/// Sources of copies come back, and soon where upstream waits for each.
fn source_returned(in_host: bool, seed: u64) -> Result<String> {
    const SOURCES: u64 = 40;
    let setup = Setup::with(seed, Bind { in_host, ..Bind::default() })?;
    let copy = |sources, us| setup.exporter.number(Command::DropAfter { sources, us });
    // Longer than the time to the first poll.
    soon(copy(1, 150_000)? as f64, 1)?;
    let ms = copy(SOURCES, 1000)?;
    soon(ms as f64, SOURCES)
}

/// Polls are a tenth of a second apart unless upstream was seen to wait.
fn soon(ms: f64, buffers: u64) -> Result<String> {
    let each = ms / buffers as f64;
    ensure!(each < if buffers == 1 { 800.0 } else { 80.0 }, "a buffer comes back after {each:.1} ms");
    Ok(format!("a buffer comes back after {each:.1} ms"))
}

/// The next publication finds the buffers that have come back. On a busy machine upstream may seem
/// to wait for them: then once more.
fn sleeps_on(seed: u64) -> Result<String> {
    const FRAMES: u64 = 60;
    const TIMES: usize = 5;
    if std::env::var("SIMCUDA_ADVERSARY").is_ok_and(|value| value == "1") {
        let why = "with the adversary, buffers come back later than the next publication";
        return Err(Skip(why.into()).into());
    }
    let mut found = Vec::new();
    for _ in 0..TIMES {
        let circulate = Circulate { buffers: 3, frames: FRAMES, pace_us: 30_000, ..Circulate::default() };
        let Circulated { sleeps, .. } = circulated(circulate, seed)?;
        found.push(sleeps);
        // Two for each frame with a poll after each.
        if sleeps < FRAMES {
            return Ok(format!("{found:?} sleeps of the service thread for {FRAMES} frames"));
        }
    }
    bail!("the service thread slept {found:?} times for {FRAMES} frames")
}

/// Has two readers read frames in adopted memory to the end.
fn circulated(circulate: Circulate, seed: u64) -> Result<Circulated> {
    let setup = Setup::new(MemoryKind::Vmm, seed)?;
    let readers = Peer::some(2)?;
    setup.join(&readers, |number| setup.lossless(number, Some(FENCES[number])))?;
    for reader in &readers {
        reader.begin(&Command::Read(to_the_end()))?;
    }
    let circulated = setup.exporter.circulate(circulate)?;
    setup.exporter.execute(Command::EndOfStream)?;
    for reader in &readers {
        whole(&reader.was_read()?, circulate.frames)?;
    }
    Ok(circulated)
}
