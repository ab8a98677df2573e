// SPDX-License-Identifier: MIT OR Apache-2.0

//! Backlogs and history: frames that some readers get later than others.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use frameshare::{FenceKind, MemoryKind, Policy};

use super::{
    Case, FENCES, FOREVER_US, KINDS, PATIENCE, SIZE, Setup, case, each_kind, to_the_end, wait_until, whole,
};
use crate::job::{Bind, Command, Connect, Publish, Read, Slow};
use crate::peer::Peer;

const SUITE: &str = "engine-backlog";

pub const CASES: &[Case] = &[
    case(SUITE, "paused-reader-gets-every-frame", paused),
    case(SUITE, "paused-reader-of-downloads", paused_download),
    case(SUITE, "late-delivery-waits-for-the-writer", late_delivery),
    case(SUITE, "adopted-frames-do-not-wait", adopted),
    case(SUITE, "joining-reader-gets-the-last-frame", history),
    case(SUITE, "joining-reader-gets-the-last-frame-downloaded", downloaded_history),
    case(SUITE, "slots-of-a-backlog-are-freed", freed),
    case(SUITE, "slots-of-a-kept-frame-are-freed", kept_freed),
];

/// Frames of a pause of 1.5 s at 100 frames a second.
const FRAMES: u64 = 150;

fn live(kind: MemoryKind, seed: u64) -> Result<Setup> {
    Setup::with(seed, Bind { memory: Some(kind), queues: true, ..Bind::default() })
}

fn speculative(setup: &Setup, number: usize, fence: FenceKind) -> Connect {
    setup.lossless(number, Some(fence))
}

/// A reader that takes nothing gets every frame in the end. Another one, and the writer, do not
/// wait for it.
fn paused(seed: u64) -> Result<String> {
    each_kind(|kind| {
        let setup = live(kind, seed)?;
        let readers = Peer::some(4)?;
        // The first two pause.
        setup.join(&readers, |number| speculative(&setup, number, FENCES[number % 2]))?;
        for reader in &readers[2..] {
            reader.begin(&Command::Read(to_the_end()))?;
        }
        let publish = Publish {
            frames: FRAMES,
            size: SIZE,
            pace_us: 1000,
            slow: Slow::Sometimes(4000),
            second: Some(Slow::Sometimes(2000)),
            metadata: 600,
            ..Publish::default()
        };
        let published = setup.exporter.publish(publish)?;
        // Readers join in any order. The other two may be late.
        let stats = setup.exporter.stats()?;
        for reader in &readers[..2] {
            let found = stats.readers.iter().find(|stats| stats.pid == reader.pid());
            let waiting = found.map_or(0, |found| u64::from(found.waiting));
            ensure!(waiting + 16 > FRAMES, "only {waiting} frames wait for a paused reader");
        }
        for reader in &readers[..2] {
            reader.begin(&Command::Read(to_the_end()))?;
        }
        setup.exporter.execute(Command::EndOfStream)?;
        for reader in &readers {
            whole(&reader.was_read()?, FRAMES)?;
        }
        Ok(format!("longest gap {:.1} ms", published.longest_gap_ms))
    })
}

/// The same for a reader that gets its frames in host memory.
fn paused_download(seed: u64) -> Result<String> {
    let setup = live(MemoryKind::Vmm, seed)?;
    let readers = Peer::some(2)?;
    setup.join(&readers, |number| match number {
        0 => Connect { host: true, ..setup.lossless(0, None) },
        _ => speculative(&setup, number, FenceKind::Timeline),
    })?;
    readers[1].begin(&Command::Read(to_the_end()))?;
    let publish = Publish { frames: FRAMES, size: SIZE, pace_us: 1000, ..Publish::default() };
    setup.exporter.publish(publish)?;
    readers[0].begin(&Command::Read(to_the_end()))?;
    setup.exporter.execute(Command::EndOfStream)?;
    for reader in &readers {
        whole(&reader.was_read()?, FRAMES)?;
    }
    Ok(String::new())
}

/// A frame that leaves the backlog before it is written is read after that, although another writer
/// has finished later frames.
fn late_delivery(seed: u64) -> Result<String> {
    for (kind, fence) in KINDS.into_iter().flat_map(|kind| FENCES.map(|fence| (kind, fence))) {
        let setup = live(kind, seed)?;
        let readers = Peer::some(1)?;
        setup.join(&readers, |number| Connect { max_held: Some(2), ..speculative(&setup, number, fence) })?;
        let publish =
            |frames| Publish { frames, size: SIZE, second: Some(Slow::Never), ..Publish::default() };
        // The reader has credit for these.
        setup.exporter.publish(publish(2))?;
        setup.exporter.execute(Command::Stall { us: FOREVER_US })?;
        setup.exporter.publish(publish(6))?;
        readers[0].begin(&Command::Read(to_the_end()))?;
        // The third frame is delivered when the first is released.
        wait_until(PATIENCE, || {
            let waiting = setup.exporter.stats()?.readers[0].waiting;
            Ok((waiting > 5).then(|| format!("{waiting} frames still wait")))
        })
        .with_context(|| format!("{kind}, {fence}"))?;
        // Time to read the frame, if the reader does not wait.
        std::thread::sleep(Duration::from_millis(100));
        setup.exporter.execute(Command::Resume)?;
        setup.exporter.execute(Command::EndOfStream)?;
        whole(&readers[0].was_read()?, 8).with_context(|| format!("{kind}, {fence}"))?;
    }
    Ok(String::new())
}

/// A frame in memory of a third party, which may need it soon, is refused where it would wait.
fn adopted(seed: u64) -> Result<String> {
    let setup = live(MemoryKind::Vmm, seed)?;
    let readers = Peer::some(1)?;
    setup.join(&readers, |number| Connect {
        max_held: Some(2),
        ..speculative(&setup, number, FenceKind::Timeline)
    })?;
    let adopt = || setup.exporter.number(Command::Adopt { size: SIZE, slow: Slow::Never });
    adopt()?;
    adopt()?;
    let Err(refused) = adopt() else { anyhow::bail!("adopted memory waits for a reader") };
    ensure!(format!("{refused:#}").contains("cannot wait"), "{refused:#}");
    // The refused frame had no sequence number. A copy waits.
    setup.exporter.publish(Publish { frames: 3, size: SIZE, ..Publish::default() })?;
    readers[0].begin(&Command::Read(to_the_end()))?;
    setup.exporter.execute(Command::EndOfStream)?;
    whole(&readers[0].was_read()?, 5)?;
    Ok(String::new())
}

/// A reader that joins gets the last frame, which may not be written yet, then the live ones.
fn history(seed: u64) -> Result<String> {
    for (kind, fence) in KINDS.into_iter().flat_map(|kind| FENCES.map(|fence| (kind, fence))) {
        let setup = Setup::with(seed, Bind { memory: Some(kind), keeps_last: true, ..Bind::default() })?;
        let publish = |frames| Publish { frames, size: SIZE, ..Publish::default() };
        setup.exporter.publish(publish(2))?;
        setup.exporter.execute(Command::Stall { us: FOREVER_US })?;
        setup.exporter.publish(publish(1))?;
        let readers = Peer::some(2)?;
        setup.join(&readers, |number| Connect {
            policy: [Policy::Latest, Policy::Lossless][number],
            ..speculative(&setup, number, fence)
        })?;
        for reader in &readers {
            reader.begin(&Command::Read(to_the_end()))?;
        }
        setup.await_taken()?;
        // Time to read the frame, if the reader does not wait.
        std::thread::sleep(Duration::from_millis(100));
        setup.exporter.execute(Command::Resume)?;
        setup.exporter.execute(Command::EndOfStream)?;
        for reader in &readers {
            whole(&reader.was_read()?, 1).with_context(|| format!("{kind}, {fence}"))?;
        }
    }
    Ok(String::new())
}

/// The same for readers that get their frames in host memory; others get nothing a second time.
fn downloaded_history(seed: u64) -> Result<String> {
    for (is_written, first) in [(true, 1), (true, 2), (false, 1), (false, 2)] {
        let setup =
            Setup::with(seed, Bind { memory: Some(MemoryKind::Vmm), keeps_last: true, ..Bind::default() })?;
        let publish = |frames| Publish { frames, size: SIZE, metadata: 600, ..Publish::default() };
        let readers = Peer::some(4)?;
        let connect = |number: usize| match number {
            0 => speculative(&setup, number, FenceKind::Timeline),
            _ => Connect { host: true, ..setup.lossless(number, None) },
        };
        let join = |from: usize, to: usize| {
            for (number, reader) in readers.iter().enumerate().take(to).skip(from) {
                reader.connect(connect(number))?;
                reader.begin(&Command::Read(to_the_end()))?;
            }
            setup.await_readers(to)
        };
        join(0, first)?;
        setup.exporter.publish(publish(2))?;
        if !is_written {
            setup.exporter.execute(Command::Stall { us: FOREVER_US })?;
        }
        setup.exporter.publish(publish(1))?;
        join(first, 4)?;
        if !is_written {
            // Time to read the frame, if the download does not wait.
            std::thread::sleep(Duration::from_millis(100));
            setup.exporter.execute(Command::Resume)?;
        }
        wait_until(PATIENCE, || {
            let stats = setup.exporter.stats()?;
            let sent: Vec<_> = stats.readers.iter().map(|reader| reader.sent).collect();
            let late = sent.iter().filter(|sent| **sent == 1).count();
            Ok((late != 4 - first).then(|| format!("these numbers of frames were sent: {sent:?}")))
        })?;
        setup.exporter.publish(publish(2))?;
        setup.exporter.execute(Command::EndOfStream)?;
        for (number, reader) in readers.iter().enumerate() {
            let frames = if number < first { 5 } else { 3 };
            let case = || format!("written: {is_written}, {first} readers joined before");
            whole(&reader.was_read()?, frames).with_context(case)?;
        }
    }
    Ok(String::new())
}

/// The memory of a backlog is freed soon after it, on the GPU too.
fn freed(seed: u64) -> Result<String> {
    each_kind(|kind| {
        let setup = live(kind, seed)?;
        let readers = Peer::some(1)?;
        setup.join(&readers, |number| speculative(&setup, number, FenceKind::Timeline))?;
        let publish = |frames| Publish { frames, size: SIZE, ..Publish::default() };
        setup.exporter.publish(publish(4))?;
        let before = setup.exporter.stats()?.slots;
        setup.exporter.publish(publish(60))?;
        let most = setup.exporter.stats()?.slots;
        ensure!(most >= 60, "{most} slots");
        readers[0].begin(&Command::Read(Read { patience_ms: 12_000, ..Read::default() }))?;
        wait_until(PATIENCE, || {
            let stats = setup.exporter.stats()?;
            let left = stats.slots > before + 3 || stats.retired_bytes > 0;
            Ok(left.then(|| format!("{} slots, {} bytes retired", stats.slots, stats.retired_bytes)))
        })?;
        setup.exporter.execute(Command::EndOfStream)?;
        whole(&readers[0].was_read()?, 64)?;
        Ok(format!("{most} slots, {before} before"))
    })
}

/// The kept frame lies in memory that only a backlog needed, and that was retired after it. A
/// reader that joins then, and the frame after that, free the memory.
fn kept_freed(seed: u64) -> Result<String> {
    each_kind(|kind| {
        let bind = Bind { memory: Some(kind), queues: true, keeps_last: true, ..Bind::default() };
        let setup = Setup::with(seed, bind)?;
        let readers = Peer::some(2)?;
        readers[0].connect(speculative(&setup, 0, FenceKind::Timeline))?;
        let publish = |frames| Publish { frames, size: SIZE, ..Publish::default() };
        setup.exporter.publish(publish(60))?;
        readers[0].begin(&Command::Read(to_the_end()))?;
        wait_until(PATIENCE, || {
            let is_retired = setup.exporter.stats()?.retired_bytes > 0;
            Ok((!is_retired).then(|| "the memory of the backlog is not retired".into()))
        })?;
        readers[1].connect(speculative(&setup, 1, FenceKind::Timeline))?;
        readers[1].begin(&Command::Read(to_the_end()))?;
        setup.await_readers(2)?;
        setup.await_taken()?;
        setup.exporter.publish(publish(2))?;
        setup.frees_retired()?;
        setup.exporter.execute(Command::EndOfStream)?;
        for (reader, frames) in readers.iter().zip([62, 3]) {
            whole(&reader.was_read()?, frames)?;
        }
        Ok(String::new())
    })
}
