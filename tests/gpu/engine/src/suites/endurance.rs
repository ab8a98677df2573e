// SPDX-License-Identifier: MIT OR Apache-2.0

//! Repeated faults: readers killed in a row, restarting exporters and suspended readers. Other
//! readers lose no frame.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use frameshare::MemoryKind;

use super::{
    Case, FENCES, FOREVER_US, KINDS, Needs, PATIENCE, PATIENCE_MS, SIZE, Setup, frames, to_the_end,
    wait_until, whole,
};
use crate::job::{Bind, Command, Connect, End, Publish, Read};
use crate::peer::Peer;

const SUITE: &str = "engine-endurance";

pub const CASES: &[Case] = &[
    endurance("readers-killed-in-a-row", |seed| killed_in_a_row(MemoryKind::Vmm, seed)),
    endurance("readers-killed-in-a-row-pool", |seed| killed_in_a_row(MemoryKind::Pool, seed)),
    endurance("readers-killed-in-a-row-legacy", |seed| killed_in_a_row(MemoryKind::Legacy, seed)),
    endurance("exporters-restarted-in-a-row", restarted_in_a_row),
    endurance("lossless-reader-stopped", stopped),
    endurance("memory-of-a-burst-is-freed", burst),
];

const fn endurance(name: &'static str, conduct: fn(u64) -> Result<String>) -> Case {
    Case { suite: SUITE, name, seconds: 450, needs: Needs::Nothing, conduct }
}

/// A shorter delay is not caused by a reader: the exporter would wait a minute for one.
const HELD_UP_MS: f64 = PATIENCE_MS as f64;

/// Frames published around each death, and their interval.
const FRAMES: u64 = 40;
const PACE_US: u64 = 2_000;

/// Returns the parameters of reading to the end of the stream, while other readers join and leave.
fn patient() -> Read {
    Read { patience_ms: 100_000, ..to_the_end() }
}

/// Readers are killed while connecting, while reading at their credit limit, and with release
/// fences pending behind work that never ends. Three other readers, with both kinds of fence, get
/// every frame intact.
fn killed_in_a_row(kind: MemoryKind, seed: u64) -> Result<String> {
    let kills = usize::try_from(frames() / 100)?.max(8);
    let setup = Setup::new(kind, seed)?;
    let survivors = Peer::some(3)?;
    setup.join(&survivors, |number| setup.lossless(number, Some(FENCES[number % 2])))?;
    for survivor in &survivors {
        survivor.begin(&Command::Read(patient()))?;
    }
    let mut longest: f64 = 0.0;
    for number in 0..kills {
        let mut victim = Peer::new()?;
        let connect = setup.lossless(10 + number, Some(FENCES[number / 4 % 2]));
        let publish = Publish { frames: FRAMES, size: SIZE, pace_us: PACE_US, ..Publish::default() };
        // A different moment each time, always within the duration of the frames.
        let moment = Duration::from_micros(number as u64 * 7919 % (FRAMES * PACE_US));
        if number % 4 == 0 {
            victim.begin(&Command::Connect(connect))?;
            setup.exporter.begin(&Command::Publish(publish))?;
            std::thread::sleep(moment);
        } else {
            victim.connect(connect)?;
            match number % 4 {
                1 => victim.begin(&Command::Read(to_the_end()))?,
                2 => victim.begin(&Command::Read(Read { frames: Some(4), hold: 4, ..to_the_end() }))?,
                _ => {
                    victim.execute(Command::StallReading { us: FOREVER_US })?;
                    let read = Read { frames: Some(4), settle_ms: Some(0), ..to_the_end() };
                    victim.begin(&Command::Read(read))?;
                }
            }
            setup.exporter.begin(&Command::Publish(publish))?;
            match number % 4 {
                1 => std::thread::sleep(moment),
                _ => drop(victim.was_read()?),
            }
        }
        victim.kill()?;
        let gap = setup.exporter.published().with_context(|| format!("kill {number}"))?.longest_gap_ms;
        ensure!(gap < HELD_UP_MS, "kill {number}: the exporter was blocked for {gap:.0} ms");
        longest = longest.max(gap);
    }
    setup.exporter.execute(Command::EndOfStream)?;
    let published = kills as u64 * FRAMES;
    for survivor in &survivors {
        whole(&survivor.was_read()?, published)?;
    }
    let left = setup.exporter.stats()?;
    ensure!(left.readers.len() <= 3, "{} readers are still connected", left.readers.len());
    Ok(format!(
        "{kills} kills, 3 survivors got {published} frames each, the exporter was blocked for {longest:.1} ms at most"
    ))
}

/// Four readers reconnect to each new exporter of the same name, after the previous one was killed
/// or stopped, and get all of its frames. Each exporter uses another kind of memory.
fn restarted_in_a_row(seed: u64) -> Result<String> {
    let restarts = usize::try_from(frames() / 200)?.max(4);
    let mut setup = Setup::new(KINDS[0], seed)?;
    let readers = Peer::some(4)?;
    let mut longest = Duration::ZERO;
    setup.join(&readers, |number| Connect {
        reconnect: true,
        connection_timeout_ms: Some(PATIENCE_MS),
        ..setup.lossless(number, Some(FENCES[number % 2]))
    })?;
    for reader in &readers {
        reader.begin(&Command::Read(patient()))?;
    }
    let publish = |number: usize| Publish {
        frames: 10,
        // As after a change of caps: memory of another size.
        size: SIZE << (number % 2),
        drain: true,
        ..Publish::default()
    };
    setup.exporter.publish(publish(0))?;
    for number in 1..=restarts {
        if number % 2 == 0 {
            setup.exporter.kill()?;
        } else {
            setup.exporter.number(Command::Unbind)?;
        }
        setup.exporter = Peer::exporter()?;
        let memory = Some(KINDS[number % KINDS.len()]);
        setup.exporter.bind(Bind { path: setup.place.path(), memory, ..Bind::default() })?;
        let begin = Instant::now();
        setup.await_readers(4).with_context(|| format!("restart {number}"))?;
        setup.exporter.publish(publish(number)).with_context(|| format!("restart {number}"))?;
        longest = longest.max(begin.elapsed());
    }
    setup.exporter.execute(Command::EndOfStream)?;
    let expected = 10 * (restarts as u64 + 1);
    for reader in &readers {
        let read = reader.was_read()?;
        ensure!(read.frames == expected && read.reconnects == restarts as u64, "{read:?}");
        ensure!(read.wrong == 0 && read.end == End::Stream, "{read:?}");
    }
    Ok(format!(
        "{restarts} restarts, 4 readers got {expected} frames each; all had read an exporter's first 10 frames within {} ms of \
         its start",
        longest.as_millis()
    ))
}

/// A suspended lossless reader blocks the stream until its timeout, is evicted, and reports the
/// reason when resumed.
fn stopped(seed: u64) -> Result<String> {
    const TIMEOUT_MS: u64 = 2000;
    let mut longest: f64 = 0.0;
    for fence in FENCES {
        let bind =
            Bind { memory: Some(MemoryKind::Vmm), reader_timeout_ms: Some(TIMEOUT_MS), ..Bind::default() };
        let setup = Setup::with(seed, bind)?;
        let (sleeper, witness) = (Peer::new()?, Peer::new()?);
        witness.connect(setup.lossless(0, Some(FENCES[0])))?;
        sleeper.connect(setup.lossless(1, Some(fence)))?;
        witness.begin(&Command::Read(to_the_end()))?;
        sleeper.begin(&Command::Read(Read { settle_ms: Some(1000), ..to_the_end() }))?;
        setup.exporter.publish(Publish { frames: 5, size: SIZE, drain: true, ..Publish::default() })?;
        sleeper.suspend()?;
        let publish = Publish { frames: FRAMES, size: SIZE, pace_us: PACE_US, ..Publish::default() };
        let gap = setup.exporter.publish(publish)?.longest_gap_ms;
        let limits = TIMEOUT_MS as f64..TIMEOUT_MS as f64 + HELD_UP_MS;
        ensure!(limits.contains(&gap), "{fence}: the exporter was blocked for {gap:.0} ms");
        longest = longest.max(gap);
        setup.exporter.execute(Command::EndOfStream)?;
        whole(&witness.was_read()?, 5 + FRAMES)?;
        sleeper.resume()?;
        let read = sleeper.was_read()?;
        let is_reported = matches!(&read.end, End::Error { text, .. } if text.contains("reader timeout"));
        ensure!(is_reported && read.wrong == 0, "{fence}: {read:?}");
    }
    Ok(format!(
        "with a reader-timeout of {TIMEOUT_MS} ms the exporter was blocked for {longest:.1} ms at most"
    ))
}

/// Slots that were needed at once are retired some seconds later. Memory of kinds whose imports are
/// closed first is freed after the last reader has acknowledged, which a paused one does when it
/// goes on. All kinds at once: each waits.
fn burst(seed: u64) -> Result<String> {
    std::thread::scope(|scope| {
        let kinds = KINDS.map(|kind| (kind, scope.spawn(move || burst_of(kind, seed))));
        let details = kinds.map(|(kind, thread)| match thread.join() {
            Ok(result) => result.with_context(|| kind.to_string()),
            Err(_) => Err(anyhow::anyhow!("{kind}: a panic")),
        });
        details.into_iter().collect::<Result<Vec<_>>>().map(|details| details.join("; "))
    })
}

fn burst_of(kind: MemoryKind, seed: u64) -> Result<String> {
    /// Frames of the burst, fewer than the descriptors that may be in flight, and after it.
    const BURST: (u64, u64) = (10, 20);
    /// The reserve with a kept frame, and two more.
    const LEAST: u32 = 5;
    let setup = Setup::new(kind, seed)?;
    let readers = Peer::some(2)?;
    setup.join(&readers, |number| Connect {
        max_held: Some(16),
        ..setup.lossless(number, Some(FENCES[number % 2]))
    })?;
    let publish = |frames| Publish { frames, size: SIZE, ..Publish::default() };
    setup.exporter.publish(publish(BURST.0))?;
    let most = setup.exporter.stats()?.slots;
    ensure!(u64::from(most) >= BURST.0, "{most} slots");
    readers[0].begin(&Command::Read(patient()))?;
    readers[1].begin(&Command::Read(Read { frames: Some(BURST.0), ..to_the_end() }))?;
    let paused = readers[1].was_read()?;
    ensure!(paused.frames == BURST.0 && paused.wrong == 0, "{paused:?}");
    let few = || {
        let stats = setup.exporter.stats()?;
        Ok((stats.slots > LEAST).then(|| format!("{} slots", stats.slots)))
    };
    wait_until(PATIENCE, few)?;
    let stats = setup.exporter.stats()?;
    let kept = if kind == MemoryKind::Vmm { 0 } else { u64::from(most - stats.slots) * stats.slot_size };
    // Slots are at least as large as asked for.
    ensure!(
        if kept == 0 { stats.retired_bytes == 0 } else { stats.retired_bytes >= kept },
        "{} bytes wait for the paused reader, {kept} expected",
        stats.retired_bytes
    );
    readers[1].begin(&Command::Read(to_the_end()))?;
    setup.exporter.publish(publish(BURST.1))?;
    setup.frees_retired()?;
    setup.exporter.execute(Command::EndOfStream)?;
    whole(&readers[0].was_read()?, BURST.0 + BURST.1)?;
    whole(&readers[1].was_read()?, BURST.1)?;
    Ok(format!("{kind}: {most} slots, then {}, {kept} bytes waited", stats.slots))
}
