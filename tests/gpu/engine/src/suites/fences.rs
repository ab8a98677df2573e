// SPDX-License-Identifier: MIT OR Apache-2.0

//! Fences: no frame is torn, stale or lost, however slow a stream is. Negative controls show that
//! the same checks detect a missing fence.

use anyhow::{Context as _, Result, ensure};
use frameshare::{FenceKind, MemoryKind};
use frameshare_gpu_harness::order::{self, Expected};

use super::{Case, FOREVER_US, Needs, PATIENCE, PATIENCE_MS, SIZE, Setup, caught, frames, to_the_end, whole};
use crate::job::{Command, Connect, End, Publish, Read, Says, Slow, Use, WasRead, Where};
use crate::peer::Peer;

const SUITE: &str = "engine-fences";

pub const CASES: &[Case] = &[
    hold("vmm-event", |seed| matrix(MemoryKind::Vmm, FenceKind::Event, seed)),
    hold("vmm-timeline", |seed| matrix(MemoryKind::Vmm, FenceKind::Timeline, seed)),
    hold("pool-event", |seed| matrix(MemoryKind::Pool, FenceKind::Event, seed)),
    hold("pool-timeline", |seed| matrix(MemoryKind::Pool, FenceKind::Timeline, seed)),
    hold("legacy-event", |seed| matrix(MemoryKind::Legacy, FenceKind::Event, seed)),
    hold("legacy-timeline", |seed| matrix(MemoryKind::Legacy, FenceKind::Timeline, seed)),
    hold("both-at-once", both_at_once),
    hold("given-back-in-the-order-of-a-stream", given_back_in_order),
    hold("given-back-in-the-order-of-another-context", given_back_elsewhere),
    hold("given-back-out-of-order", given_back_out_of_order),
    hold("reader-waits-for-written-frames", written_only),
    hold("ready-fence-left-out", ready_left_out),
    hold("another-context-named", |seed| another_context(true, seed)),
    hold("another-context-unnamed", |seed| another_context(false, seed)),
    hold("two-writers-of-different-speed", writers_named),
    hold("another-stream-named-by-the-writer", writer_misnamed),
    hold("some-stream-named-by-the-writer", written_somewhere),
];

const fn hold(name: &'static str, conduct: fn(u64) -> Result<String>) -> Case {
    Case { suite: SUITE, name, seconds: 180, needs: Needs::Nothing, conduct }
}

fn publish(frames: u64) -> Publish {
    Publish { frames, size: SIZE, slow: Slow::Sometimes(600), ..Publish::default() }
}

fn read() -> Read {
    Read { slow: Slow::Sometimes(1500), ..to_the_end() }
}

/// One, four and eight readers; the exporter and all readers are delayed at random.
fn matrix(kind: MemoryKind, fence: FenceKind, seed: u64) -> Result<String> {
    let mut rates = Vec::new();
    let readers = Peer::some(8)?;
    for count in [1, 4, 8] {
        let readers = &readers[..count];
        let setup = Setup::new(kind, seed)?;
        setup.join(readers, |number| setup.lossless(number, Some(fence)))?;
        let begin = std::time::Instant::now();
        for read in setup.run(readers, publish(frames()), |_| read())? {
            whole(&read, frames()).with_context(|| format!("{count} readers"))?;
        }
        rates.push(format!("{count}: {:.0}/s", frames() as f64 / begin.elapsed().as_secs_f64()));
        for reader in readers {
            reader.execute(Command::Disconnect)?;
        }
    }
    Ok(format!("readers: {}", rates.join(", ")))
}

/// Readers that do all work on one stream and release frames in stream order.
fn given_back_in_order(seed: u64) -> Result<String> {
    let readers = Peer::some(4)?;
    for fence in [FenceKind::Event, FenceKind::Timeline] {
        let setup = Setup::new(MemoryKind::Vmm, seed)?;
        setup.join(&readers, |number| setup.lossless(number, Some(fence)))?;
        for read in setup.run(&readers, publish(frames()), |_| Read { on: Where::OwnInOrder, ..read() })? {
            whole(&read, frames()).with_context(|| format!("{fence}"))?;
        }
        for reader in &readers {
            reader.execute(Command::Disconnect)?;
        }
    }
    Ok(String::new())
}

/// The same with a stream of another context, whose work is pending when the memory is retired.
fn given_back_elsewhere(seed: u64) -> Result<String> {
    for fence in super::FENCES {
        let setup = Setup::new(MemoryKind::Vmm, seed)?;
        let readers = Peer::some(1)?;
        setup.join(&readers, |number| setup.lossless(number, Some(fence)))?;
        let read = Read { on: Where::ElsewhereInOrder, slow: Slow::Always(50_000), ..to_the_end() };
        readers[0].begin(&Command::Read(read))?;
        for (round, caps) in ["one", "two"].into_iter().enumerate() {
            setup.exporter.execute(Command::Format { caps: caps.into() })?;
            let size = SIZE << (2 * round);
            setup.exporter.publish(Publish { frames: 4, size, ..Publish::default() })?;
        }
        setup.exporter.execute(Command::EndOfStream)?;
        whole(&readers[0].was_read()?, 8).with_context(|| format!("{fence}"))?;
    }
    Ok(String::new())
}

/// Completed frames are released while work on an older one is pending, if the reader names the
/// stream of each read.
fn given_back_out_of_order(seed: u64) -> Result<String> {
    const LATER: u64 = 40;
    for fence in super::FENCES {
        let setup = Setup::new(MemoryKind::Vmm, seed)?;
        let reader = Peer::new()?;
        setup.join(std::slice::from_ref(&reader), |number| setup.lossless(number, Some(fence)))?;
        let own = Read { on: Where::OwnInOrder, what: Use::Touch, settle_ms: Some(0), ..to_the_end() };
        let other = Read { on: Where::ElsewhereInOrder, patience_ms: PATIENCE_MS, ..Read::default() };
        let one = |read: &Read| -> Result<()> {
            setup.exporter.publish(publish(1))?;
            let read = reader.read(Read { frames: Some(1), ..read.clone() })?;
            ensure!(read.end == End::Enough, "no frame arrived: {:?}", read.end);
            Ok(())
        };
        // Resources created for the first frame need a running GPU.
        one(&own)?;
        one(&other)?;
        reader.execute(Command::StallReading { us: FOREVER_US })?;
        one(&own)?;
        // Far more than the reader's credit.
        setup.exporter.begin(&Command::Publish(publish(LATER)))?;
        let later = reader.read(Read { frames: Some(LATER), ..other })?;
        ensure!(
            (later.frames, later.wrong) == (LATER, 0),
            "{fence}: {} of {LATER} frames, {} wrong",
            later.frames,
            later.wrong
        );
        setup.exporter.published()?;
        reader.execute(Command::Resume)?;
        setup.gets_all_slots_back(PATIENCE)?;
    }
    Ok(String::new())
}

/// Starts two readers with event fences and two with timeline fences.
fn four_of_both_fences(setup: &Setup, written_only: bool) -> Result<Vec<Peer>> {
    let readers = Peer::some(4)?;
    let fence = |number: usize| [FenceKind::Event, FenceKind::Timeline][number % 2];
    setup.join(&readers, |number| Connect { written_only, ..setup.lossless(number, Some(fence(number))) })?;
    Ok(readers)
}

/// Readers with event fences and readers with timeline fences read the same frames.
fn both_at_once(seed: u64) -> Result<String> {
    let setup = Setup::new(MemoryKind::Vmm, seed)?;
    let readers = four_of_both_fences(&setup, false)?;
    for read in setup.run(&readers, publish(frames()), |_| read())? {
        whole(&read, frames())?;
    }
    let stats = setup.exporter.stats()?;
    let fences: Vec<_> = stats.readers.into_iter().map(|reader| reader.fence).collect();
    Ok(fences.join(", "))
}

/// Readers that get only written frames need no GPU wait, whether they block in `next` or poll a
/// descriptor.
fn written_only(seed: u64) -> Result<String> {
    let setup = Setup::new(MemoryKind::Vmm, seed)?;
    let readers = four_of_both_fences(&setup, true)?;
    let frames = frames() / 4;
    let read = |number| Read { without_wait: true, by_descriptor: number >= 2, ..read() };
    for read in setup.run(&readers, publish(frames), read)? {
        whole(&read, frames)?;
    }
    Ok(String::new())
}

/// Frames of a negative control, and the delay of its slow side.
const CONTROL: u64 = 40;
const LATE_US: u64 = 5_000;

/// Negative control of the ready fence.
fn ready_left_out(seed: u64) -> Result<String> {
    order::expect(Expected::Unordered);
    let mut seen = Vec::new();
    for fence in super::FENCES {
        let setup = Setup::new(MemoryKind::Vmm, seed)?;
        let readers = Peer::some(1)?;
        setup.join(&readers, |number| setup.lossless(number, Some(fence)))?;
        let publish = Publish { slow: Slow::Always(LATE_US), ..publish(CONTROL) };
        let read = setup.run(&readers, publish, |_| Read { without_wait: true, ..to_the_end() })?;
        seen.push(caught(&read[0], &format!("{fence}: the ready fence is omitted"))?);
    }
    Ok(seen.join("; "))
}

/// Work in another context is covered if its stream is named, and not otherwise: the negative
/// control of the release fence.
fn another_context(named: bool, seed: u64) -> Result<String> {
    order::expect(if named { Expected::Ordered } else { Expected::Unordered });
    let mut seen = Vec::new();
    for fence in super::FENCES {
        let setup = Setup::new(MemoryKind::Vmm, seed)?;
        let readers = Peer::some(1)?;
        setup.join(&readers, |number| setup.lossless(number, Some(fence)))?;
        let on = if named { Where::Elsewhere } else { Where::ElsewhereUnnamed };
        let read = Read { on, slow: Slow::Always(LATE_US), ..to_the_end() };
        let read =
            setup.run(&readers, Publish { slow: Slow::Never, ..publish(CONTROL) }, |_| read.clone())?;
        if named {
            whole(&read[0], CONTROL).with_context(|| format!("{fence}"))?;
        } else {
            seen.push(caught(&read[0], &format!("{fence}: the release fence is omitted"))?);
        }
    }
    Ok(seen.join("; "))
}

/// Signal stream: readers get frames of a fast writer only after preceding frames of a slow one are
/// written, in the order of publication.
fn writers_named(seed: u64) -> Result<String> {
    for fence in super::FENCES {
        for count in [1, 4] {
            for read in two_writers(Says::Truth, fence, count, seed)? {
                whole(&read, CONTROL).with_context(|| format!("{fence}, {count} readers"))?;
            }
        }
    }
    Ok(String::new())
}

/// Its negative control: the fence covers the fast writer, even for frames of the slow one.
fn writer_misnamed(seed: u64) -> Result<String> {
    order::expect(Expected::Unordered);
    let mut seen = Vec::new();
    for fence in super::FENCES {
        for read in two_writers(Says::First, fence, 1, seed)? {
            seen.push(caught(&read, &format!("{fence}: the writer's stream is misnamed"))?);
        }
    }
    Ok(seen.join("; "))
}

/// The fence covers all streams of the context.
fn written_somewhere(seed: u64) -> Result<String> {
    for fence in super::FENCES {
        for read in two_writers(Says::Somewhere, fence, 1, seed)? {
            whole(&read, CONTROL).with_context(|| format!("{fence}"))?;
        }
    }
    Ok(String::new())
}

/// Reads frames that a fast and a slow writer write alternately.
fn two_writers(says: Says, fence: FenceKind, readers: usize, seed: u64) -> Result<Vec<WasRead>> {
    let setup = Setup::new(MemoryKind::Vmm, seed)?;
    let readers = Peer::some(readers)?;
    setup.join(&readers, |number| setup.lossless(number, Some(fence)))?;
    let second = Some(Slow::Always(LATE_US));
    let publish = Publish { says, slow: Slow::Never, second, ..publish(CONTROL) };
    setup.run(&readers, publish, |_| to_the_end())
}
