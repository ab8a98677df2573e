// SPDX-License-Identifier: MIT OR Apache-2.0

//! Order of accesses to one slot: it is written again when its readers and its writer are done, and
//! freed when readers have released it, whatever is still being read or written.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use frameshare::{FenceKind, MemoryKind, Policy};
use frameshare_gpu_harness::Skip;

use super::{
    Case, FENCES, FOREVER_US, KINDS, Needs, PATIENCE, PATIENCE_MS, SIZE, Setup, case, reported, to_the_end,
    wait_until, whole,
};
use crate::job::{
    Bind, Command, Connect, End, Fate, Publish, Read, Says, Slow, Temporary, Use, WasRead, Where,
};
use crate::peer::Peer;

const SUITE: &str = "engine-order";

pub const CASES: &[Case] = &[
    case(SUITE, "slots-are-free-after-their-own-write", own_writes),
    Case {
        suite: SUITE,
        name: "slots-are-free-after-a-write-on-a-destroyed-stream",
        seconds: 60,
        needs: Needs::Simulation,
        conduct: own_writes_of_destroyed,
    },
    case(SUITE, "slots-are-free-after-their-own-write-beside-a-slow-reader", own_writes_of_a_slow_reader),
    case(SUITE, "control-writes-on-an-unnamed-stream-are-overtaken", unnamed_writes),
    case(SUITE, "frames-are-written-on-a-stream-of-another-context", written_elsewhere),
    case(SUITE, "streams-are-destroyed-after-done-on", done_on),
    case(SUITE, "release-on-a-stream-follows-done-on-another", done_on_and_release_on),
    case(SUITE, "control-done-on-before-the-work-is-too-early", done_too_early),
    Case {
        suite: SUITE,
        name: "streams-are-destroyed-before-the-release",
        seconds: 60,
        needs: Needs::Simulation,
        conduct: destroyed,
    },
    case(SUITE, "far-behind-gpu-blocks-no-other-size-or-memory", far_behind_other_slots),
    case(SUITE, "far-behind-gpu-blocks-no-allocation", far_behind_more_slots),
    case(SUITE, "far-behind-gpu-bounds-slots", far_behind_bound),
    case(SUITE, "sizes-change-in-a-row", sizes_change),
    case(SUITE, "frames-held-over-retirement", held_over),
    case(SUITE, "exporter-stops-under-held-frames", stops_under_held),
    case(SUITE, "readers-leave-under-their-own-work", left_under_work),
    case(SUITE, "reader-leaves-under-work-and-comes-again", comes_again),
    case(SUITE, "retired-under-long-work", retired_under_work),
    case(SUITE, "releases-wait-for-no-gpu", releases_do_not_wait),
    case(SUITE, "sizes-change-under-pending-writes", pending_writes),
    case(SUITE, "exporter-stops-under-pending-writes", stops_under_writes),
    Case {
        suite: SUITE,
        name: "freed-on-a-false-acknowledgement",
        seconds: 60,
        needs: Needs::Simulation,
        conduct: false_acknowledgement,
    },
];

/// Frames of a slow second writer that no reader gets, between those of a fast one. They are late,
/// refused, discarded or dropped: their slots are free at once but for the write.
fn beside_slow_writes(seed: u64, kind: MemoryKind, fence: FenceKind, publish: Publish) -> Result<WasRead> {
    let setup = Setup::new(kind, seed)?;
    let reader = Peer::new()?;
    let connect = Connect { policy: Policy::Latest, ..setup.lossless(0, Some(fence)) };
    reader.connect(Connect { max_held: Some(8), ..connect })?;
    setup.await_readers(1)?;
    let publish =
        Publish { frames: 60, size: SIZE, pace_us: 1000, second: Some(Slow::Always(5000)), ..publish };
    let mut read = setup.run(&[reader], publish, |_| Read { slow: Slow::Always(3000), ..to_the_end() })?;
    read.pop().context("one reader")
}

/// A slot is not handed out while its own write is under way, even if no reader waited for it.
fn own_writes(seed: u64) -> Result<String> {
    for kind in KINDS {
        for fence in FENCES {
            for (second_fate, says) in [
                (Fate::Late, Says::Truth),
                (Fate::Refused, Says::Truth),
                (Fate::Refused, Says::Somewhere),
                (Fate::Discarded, Says::Truth),
                (Fate::Dropped, Says::Truth),
            ] {
                let publish = Publish { second_fate, says, ..Publish::default() };
                let read = beside_slow_writes(seed, kind, fence, publish)?;
                let WasRead { frames, wrong, first_wrong, end, .. } = &read;
                let what = format!("{kind}, {fence}, {second_fate:?}, {says:?}");
                ensure!(*end == End::Stream && *frames > 0, "{what}: {read:?}");
                ensure!(*wrong == 0, "{what}: {wrong} of {frames} frames are wrong: {first_wrong:?}");
            }
        }
    }
    Ok(String::new())
}

/// The same if the work of the context, which includes that of a destroyed stream, cannot be
/// recorded at once.
fn own_writes_of_destroyed(seed: u64) -> Result<String> {
    for fence in FENCES {
        let publish = Publish { second_fate: Fate::Stale, ..Publish::default() };
        let read = beside_slow_writes(seed, MemoryKind::Vmm, fence, publish)?;
        ensure!(read.end == End::Stream && read.frames > 0 && read.wrong == 0, "{fence}: {read:?}");
    }
    Ok(String::new())
}

/// The same with frames that a reader without credit does not get, or that are revoked from it.
fn own_writes_of_a_slow_reader(seed: u64) -> Result<String> {
    let mut seen = Vec::new();
    for fence in FENCES {
        for max_held in [1, 2] {
            let setup = Setup::new(MemoryKind::Vmm, seed)?;
            let reader = Peer::new()?;
            let connect = Connect { policy: Policy::Latest, ..setup.lossless(0, Some(fence)) };
            reader.connect(Connect { max_held: Some(max_held), ..connect })?;
            setup.await_readers(1)?;
            let publish = Publish {
                frames: 200,
                size: SIZE,
                pace_us: 1000,
                second: Some(Slow::Always(5000)),
                ..Publish::default()
            };
            let read = setup.run(&[reader], publish, |_| to_the_end())?;
            let WasRead { frames, lost, wrong, first_wrong, end, .. } = &read[0];
            ensure!(*end == End::Stream && *lost > 0, "{fence}, {max_held}: {:?}", read[0]);
            ensure!(
                *wrong == 0,
                "{fence}, {max_held}: {wrong} of {frames} frames are wrong: {first_wrong:?}"
            );
            seen.push(format!("{fence}, {max_held}: {frames} frames, {lost} lost"));
        }
    }
    Ok(seen.join("; "))
}

/// Negative control: a publication that names another stream than the writer's.
fn unnamed_writes(seed: u64) -> Result<String> {
    let publish = Publish { second_fate: Fate::Late, says: Says::First, ..Publish::default() };
    let read = beside_slow_writes(seed, MemoryKind::Vmm, FenceKind::Timeline, publish)?;
    reported(&read, "slots were free before their writes")
}

/// Frames of every kind that the work of another context writes.
fn written_elsewhere(seed: u64) -> Result<String> {
    for kind in KINDS {
        for fence in FENCES {
            let setup = Setup::new(kind, seed)?;
            let readers = Peer::some(1)?;
            setup.join(&readers, |number| setup.lossless(number, Some(fence)))?;
            let publish = Publish {
                frames: 40,
                size: SIZE,
                second: Some(Slow::Always(2000)),
                second_elsewhere: true,
                ..Publish::default()
            };
            let read = setup.run(&readers, publish, |_| to_the_end());
            whole(&read.with_context(|| format!("{kind}, {fence}"))?[0], 40)?;
        }
    }
    Ok(String::new())
}

/// Slots of a new size, and of host memory, are allocated at once while the GPU has many writes of
/// other slots to do, which no reader waits for.
fn far_behind_other_slots(seed: u64) -> Result<String> {
    for kind in KINDS {
        let setup = Setup::new(kind, seed)?;
        setup.exporter.publish(Publish { frames: 1, size: SIZE, ..Publish::default() })?;
        setup.exporter.execute(Command::Stall { us: FOREVER_US })?;
        setup.exporter.publish(Publish { frames: 8, size: SIZE, ..Publish::default() })?;
        let begin = Instant::now();
        setup.exporter.execute(Command::Format { caps: "larger".into() })?;
        let larger = Publish { frames: 2, size: 4 * SIZE, ..Publish::default() };
        setup.exporter.publish(larger).with_context(|| format!("{kind}, larger frames"))?;
        setup.exporter.execute(Command::HostMemory { yes: true })?;
        let host = Publish { frames: 2, size: SIZE, ..Publish::default() };
        setup.exporter.publish(host).with_context(|| format!("{kind}, frames in host memory"))?;
        ensure!(begin.elapsed() < PATIENCE / 2, "{kind}: publications took {:?}", begin.elapsed());
        setup.exporter.execute(Command::Resume)?;
        setup.gets_all_slots_back(PATIENCE).with_context(|| kind.to_string())?;
    }
    Ok(String::new())
}

/// A writer gets further slots up to the limit although its GPU writes none of them.
fn far_behind_more_slots(seed: u64) -> Result<String> {
    const SLOTS: u32 = 14;
    let bind = Bind { memory: Some(MemoryKind::Vmm), max_slots: Some(SLOTS), ..Bind::default() };
    let setup = Setup::with(seed, bind)?;
    setup.exporter.execute(Command::Stall { us: FOREVER_US })?;
    setup.exporter.publish(Publish { frames: SLOTS.into(), size: SIZE, ..Publish::default() })?;
    let slots = setup.exporter.stats()?.slots;
    ensure!(slots == SLOTS, "{slots} slots were allocated instead of {SLOTS}");
    setup.exporter.execute(Command::Resume)?;
    setup.gets_all_slots_back(PATIENCE)?;
    Ok(String::new())
}

/// A writer that is ahead of its GPU waits for it instead of allocating ever more slots, and
/// upstream's pool gets none.
fn far_behind_bound(seed: u64) -> Result<String> {
    let bind = Bind { memory: Some(MemoryKind::Vmm), max_slots: Some(60), ..Bind::default() };
    let setup = Setup::with(seed, bind)?;
    let publish = Publish { frames: 60, size: SIZE, slow: Slow::Always(5000), ..Publish::default() };
    setup.exporter.publish(publish)?;
    let slots = setup.exporter.stats()?.slots;
    ensure!(slots <= 20, "{slots} slots were allocated for 60 frames");
    setup.exporter.execute(Command::Stall { us: FOREVER_US })?;
    setup.exporter.publish(Publish { frames: slots.into(), size: SIZE, ..Publish::default() })?;
    let held = setup.exporter.number(Command::HoldSlots { size: SIZE })?;
    setup.exporter.execute(Command::Resume)?;
    ensure!(held == 0, "upstream's pool got {held} slots");
    Ok(format!("{slots} slots"))
}

/// Reads each frame on a stream of its own that is destroyed before the release.
fn on_temporary_streams(seed: u64, fence: FenceKind, temporary: Temporary) -> Result<WasRead> {
    let slow = Slow::Always(3000);
    temporary_streams(seed, fence, Read { temporary: Some(temporary), slow, ..to_the_end() })
}

fn temporary_streams(seed: u64, fence: FenceKind, read: Read) -> Result<WasRead> {
    let setup = Setup::new(MemoryKind::Vmm, seed)?;
    let readers = Peer::some(1)?;
    setup.join(&readers, |number| setup.lossless(number, Some(fence)))?;
    let publish = Publish { frames: 60, size: SIZE, ..Publish::default() };
    let mut read = setup.run(&readers, publish, |_| read.clone())?;
    read.pop().context("one reader")
}

/// The release follows the work on a stream that was destroyed after the reader was done on it.
fn done_on(seed: u64) -> Result<String> {
    for fence in FENCES {
        whole(&on_temporary_streams(seed, fence, Temporary::Done)?, 60)?;
    }
    Ok(String::new())
}

/// A release on one stream follows the work on another one, on which the reader was done before.
fn done_on_and_release_on(seed: u64) -> Result<String> {
    for fence in FENCES {
        let (temporary, slow) = (Some(Temporary::Done), Slow::Always(3000));
        let read = Read { temporary, slow, on: Where::OwnInOrder, ..to_the_end() };
        whole(&temporary_streams(seed, fence, read)?, 60).with_context(|| fence.to_string())?;
    }
    Ok(String::new())
}

/// Negative control: work that is queued after the end of the use is not waited for.
fn done_too_early(seed: u64) -> Result<String> {
    reported(
        &on_temporary_streams(seed, FenceKind::Timeline, Temporary::DoneEarly)?,
        "the use ended before the work was queued",
    )
}

/// A stream that was destroyed against the contract: where the driver says so, the release waits
/// for all work of the context, and the connection goes on.
fn destroyed(seed: u64) -> Result<String> {
    for fence in FENCES {
        whole(&on_temporary_streams(seed, fence, Temporary::Named)?, 60)?;
    }
    Ok(String::new())
}

/// Twenty generations in a row, with slow readers of both fence kinds.
fn sizes_change(seed: u64) -> Result<String> {
    const ROUNDS: u64 = 20;
    const EACH: u64 = 6;
    for kind in KINDS {
        let setup = Setup::new(kind, seed)?;
        let readers = Peer::some(2)?;
        setup.join(&readers, |number| setup.lossless(number, Some(FENCES[number])))?;
        for reader in &readers {
            reader.begin(&Command::Read(Read { slow: Slow::Sometimes(3000), ..to_the_end() }))?;
        }
        for round in 0..ROUNDS {
            setup.exporter.execute(Command::Format { caps: format!("round {round}") })?;
            let size = SIZE * (1 + round % 5) + 4096 * round;
            let publish = Publish { frames: EACH, size, slow: Slow::Sometimes(2000), ..Publish::default() };
            setup.exporter.publish(publish).with_context(|| format!("{kind}, round {round}"))?;
        }
        setup.frees_retired().with_context(|| format!("{kind}, with connected readers"))?;
        setup.exporter.execute(Command::EndOfStream)?;
        for reader in &readers {
            whole(&reader.was_read()?, ROUNDS * EACH).with_context(|| kind.to_string())?;
        }
    }
    Ok(String::new())
}

/// Sets up a stream with one reader per fence kind, each holding frames of a retired generation.
fn holding(kind: MemoryKind, seed: u64) -> Result<(Setup, Vec<Peer>)> {
    let setup = Setup::new(kind, seed)?;
    let readers = Peer::some(2)?;
    setup.join(&readers, |number| setup.lossless(number, Some(FENCES[number])))?;
    for (frames, caps) in [(3, "one"), (8, "two")] {
        for reader in &readers {
            reader.begin(&Command::Read(Read { frames: Some(frames), hold: 3, ..to_the_end() }))?;
        }
        setup.exporter.execute(Command::Format { caps: caps.into() })?;
        let size = SIZE * frames;
        setup.exporter.publish(Publish { frames, size, ..Publish::default() })?;
        for reader in &readers {
            let read = reader.was_read()?;
            ensure!(read.frames == frames && read.wrong == 0, "{read:?}");
        }
    }
    Ok((setup, readers))
}

fn still_right(readers: &[Peer]) -> Result<()> {
    for reader in readers {
        let wrong = reader.texts(Command::CheckHeld)?;
        ensure!(wrong.is_empty(), "held frames have changed: {wrong:?}");
    }
    Ok(())
}

/// Held frames of a retired generation stay intact and keep its memory allocated until they are
/// released.
fn held_over(seed: u64) -> Result<String> {
    for kind in KINDS {
        let (setup, readers) = holding(kind, seed)?;
        still_right(&readers).with_context(|| kind.to_string())?;
        std::thread::sleep(Duration::from_millis(100));
        let stats = setup.exporter.stats()?;
        ensure!(stats.retired_bytes > 0, "{kind}: memory held by readers was freed");
        still_right(&readers).with_context(|| kind.to_string())?;
        for reader in &readers {
            reader.execute(Command::ReleaseHeld { count: 3 })?;
            // Readers process the retirement when they request further frames.
            let read = reader.read(Read { patience_ms: 200, ..Read::default() })?;
            ensure!(read.end == End::Nothing, "{:?}", read.end);
        }
        setup.frees_retired().with_context(|| kind.to_string())?;
    }
    Ok(String::new())
}

/// A stopping exporter does not wait for readers; held frames stay intact while the exporter's
/// process lives.
fn stops_under_held(seed: u64) -> Result<String> {
    let mut longest = 0;
    for kind in KINDS {
        let (setup, readers) = holding(kind, seed)?;
        let took = setup.exporter.number(Command::Unbind)?;
        // Less than any wait for a reader or its work.
        ensure!(took < 4000, "{kind}: stopping took {took} ms");
        longest = longest.max(took);
        std::thread::sleep(Duration::from_millis(100));
        still_right(&readers).with_context(|| kind.to_string())?;
        for reader in &readers {
            let read = reader.read(to_the_end())?;
            ensure!(matches!(&read.end, End::Error { kind, .. } if kind == "Stopped"), "{:?}", read.end);
            reader.execute(Command::ReleaseHeld { count: 3 })?;
            reader.execute(Command::Disconnect)?;
        }
    }
    Ok(format!("stopping took {longest} ms at most"))
}

/// A reader releases a frame that its stream has still to read, and leaves: the exporter waits for
/// that work nevertheless.
fn left_under_work(seed: u64) -> Result<String> {
    for kind in KINDS {
        for fence in FENCES {
            let setup = Setup::new(kind, seed)?;
            let readers = Peer::some(1)?;
            setup.join(&readers, |number| setup.lossless(number, Some(fence)))?;
            let slow = Slow::Always(50_000);
            readers[0].begin(&Command::Read(Read { frames: Some(4), slow, leave: true, ..to_the_end() }))?;
            let publish = Publish { frames: 60, size: SIZE, pace_us: 5_000, ..Publish::default() };
            setup.exporter.publish(publish)?;
            let read = readers[0].was_read()?;
            ensure!(read.frames == 4 && read.wrong == 0, "{kind} {fence}: {read:?}");
            setup.gets_all_slots_back(PATIENCE).with_context(|| format!("{kind} {fence}"))?;
        }
    }
    Ok(String::new())
}

/// Imports left open by a reader whose context is busy do not prevent it from reconnecting.
fn comes_again(seed: u64) -> Result<String> {
    for kind in KINDS {
        let setup = Setup::new(kind, seed)?;
        let readers = Peer::some(1)?;
        for _ in 0..2 {
            setup.join(&readers, |number| setup.lossless(number, None))?;
            let read = Read { frames: Some(4), what: Use::Touch, ..to_the_end() };
            readers[0].begin(&Command::Read(read))?;
            setup.exporter.publish(Publish { frames: 4, size: SIZE, ..Publish::default() })?;
            let read = readers[0].was_read().with_context(|| kind.to_string())?;
            ensure!(read.end == End::Enough, "{kind}: {:?}", read.end);
            readers[0].execute(Command::StallReading { us: 300_000 })?;
            readers[0].execute(Command::Disconnect)?;
        }
    }
    Ok(String::new())
}

/// A reader's context is busy for long when memory is retired: the reader's thread continues, and
/// the memory stays allocated until the work is done.
fn retired_under_work(seed: u64) -> Result<String> {
    /// Longer than any bounded wait of the engine.
    const WHILE: Duration = Duration::from_secs(3);
    for kind in [MemoryKind::Legacy, MemoryKind::Pool] {
        let setup = Setup::new(kind, seed)?;
        let readers = Peer::some(1)?;
        setup.join(&readers, |number| setup.lossless(number, None))?;
        let read = Read { frames: Some(4), what: Use::Touch, ..to_the_end() };
        readers[0].begin(&Command::Read(read.clone()))?;
        setup.exporter.publish(Publish { frames: 4, size: SIZE, ..Publish::default() })?;
        readers[0].was_read()?;

        let begin = Instant::now();
        readers[0].execute(Command::StallReading { us: PATIENCE_MS * 1000 })?;
        readers[0].begin(&Command::Read(Read { frames: Some(3), settle_ms: Some(0), ..read }))?;
        setup.exporter.execute(Command::Format { caps: "two".into() })?;
        setup.exporter.publish(Publish { frames: 3, size: 4 * SIZE, ..Publish::default() })?;
        let read = readers[0].was_read()?;
        let took = begin.elapsed();
        ensure!(read.end == End::Enough, "{kind}: {:?}", read.end);
        ensure!(took < PATIENCE / 2, "{kind}: the reader was blocked for {took:?}");
        std::thread::sleep(WHILE.saturating_sub(took));
        let stats = setup.exporter.stats()?;
        ensure!(stats.retired_bytes > 0, "{kind}: memory imported by a reader was freed");
        readers[0].execute(Command::Resume)?;
        setup.frees_retired().with_context(|| kind.to_string())?;
    }
    Ok(String::new())
}

/// Releasing a frame does not block while the GPU works on the previous frame, even with a driver
/// without a context-wide record.
fn releases_do_not_wait(seed: u64) -> Result<String> {
    for fence in FENCES {
        let setup = Setup::new(MemoryKind::Vmm, seed)?;
        let readers = Peer::some(1)?;
        setup.join(&readers, |number| setup.lossless(number, Some(fence)))?;
        let read = Read { frames: Some(4), what: Use::Touch, ..to_the_end() };
        let publish = Publish { frames: 4, size: SIZE, ..Publish::default() };
        readers[0].begin(&Command::Read(read.clone()))?;
        setup.exporter.publish(publish.clone())?;
        readers[0].was_read()?;

        setup.exporter.publish(publish)?;
        readers[0].execute(Command::StallReading { us: PATIENCE_MS * 1000 })?;
        let begin = Instant::now();
        let read = readers[0].read(Read { settle_ms: Some(0), ..read })?;
        let took = begin.elapsed();
        ensure!(read.end == End::Enough, "{fence}: {:?}", read.end);
        ensure!(took < PATIENCE / 2, "{fence}: releasing four frames took {took:?}");
        readers[0].execute(Command::Resume)?;
    }
    Ok(String::new())
}

/// Without readers no fence tells when a write is done: slots are not freed under pending writes.
fn pending_writes(seed: u64) -> Result<String> {
    for kind in KINDS {
        let setup = Setup::new(kind, seed)?;
        for round in 0..4 {
            setup.exporter.execute(Command::Format { caps: format!("round {round}") })?;
            let publish =
                Publish { frames: 2, size: SIZE << round, slow: Slow::Always(100_000), ..Publish::default() };
            setup.exporter.publish(publish).with_context(|| format!("{kind}, round {round}"))?;
        }
        // The stream is intact: frames published now arrive.
        let readers = Peer::some(1)?;
        setup.join(&readers, |number| setup.lossless(number, None))?;
        let read =
            setup.run(&readers, Publish { frames: 8, size: SIZE, ..Publish::default() }, |_| to_the_end());
        whole(&read.with_context(|| kind.to_string())?[0], 8).with_context(|| kind.to_string())?;
        setup.frees_retired().with_context(|| kind.to_string())?;
    }
    Ok(String::new())
}

/// The same when the exporter stops: its context stays intact.
fn stops_under_writes(seed: u64) -> Result<String> {
    for kind in KINDS {
        let setup = Setup::new(kind, seed)?;
        let publish = Publish { frames: 3, size: SIZE, slow: Slow::Always(100_000), ..Publish::default() };
        setup.exporter.publish(publish)?;
        setup.exporter.execute(Command::Unbind).ok();
        let readers = Peer::some(1)?;
        let bind = Bind { path: setup.place.path(), memory: Some(kind), ..Default::default() };
        std::thread::sleep(Duration::from_millis(400));
        setup.exporter.bind(bind).with_context(|| kind.to_string())?;
        setup.join(&readers, |number| setup.lossless(number, None))?;
        let read =
            setup.run(&readers, Publish { frames: 8, size: SIZE, ..Publish::default() }, |_| to_the_end());
        whole(&read.with_context(|| kind.to_string())?[0], 8).with_context(|| kind.to_string())?;
    }
    Ok(String::new())
}

/// Negative control: the simulated driver aborts an exporter that frees memory a reader still
/// imports, as happens when the reader acknowledges a retirement falsely.
fn false_acknowledgement(seed: u64) -> Result<String> {
    if std::env::var("SIMCUDA_STRICT").as_deref() != Ok("abort") {
        return Err(Skip("SIMCUDA_STRICT=abort is not set".into()).into());
    }
    for kind in [MemoryKind::Legacy, MemoryKind::Pool] {
        let setup = Setup::new(kind, seed)?;
        let rogue = Peer::new()?;
        rogue.execute(Command::Rogue(setup.lossless(1, None)))?;
        rogue.begin(&Command::AcknowledgeAndKeep { ms: 5000 })?;
        setup.exporter.publish(Publish { frames: 2, size: SIZE, ..Publish::default() })?;
        setup.exporter.execute(Command::Format { caps: "two".into() })?;
        // The exporter may already die here.
        let _ = setup.exporter.publish(Publish { frames: 8, size: 4 * SIZE, ..Publish::default() });
        rogue.end().with_context(|| format!("{kind}: rogue reader"))?;
        wait_until(PATIENCE, || {
            let lives = setup.exporter.stats().is_ok();
            Ok(lives
                .then(|| format!("{kind}: the simulated driver did not detect memory freed under an import")))
        })?;
    }
    Ok("caught for legacy and pool".into())
}
