// SPDX-License-Identifier: MIT OR Apache-2.0

//! Effects of a process's death on CUDA objects, and recovery of the survivor.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::{Case, Kind, PATIENCE_MS, case, require};
use crate::command::Command;
use crate::peer::{Peer, must_fail};
use crate::words::Words;

const SUITE: &str = "crashes";

pub const CASES: &[Case] = &[
    case(SUITE, "reader-killed-with-a-release-event-pending", release_event_pending),
    case(SUITE, "exporter-killed-with-a-ready-event-pending", ready_event_pending),
    case(SUITE, "exporter-killed-with-a-word-pending", word_pending),
    case(SUITE, "exporter-killed-with-many-words-queued", words_queued),
    case(SUITE, "reader-killed-after-recording-a-ready-event", ready_event_recorded_over),
    case(SUITE, "reader-whose-context-is-lost", context_lost),
    case(SUITE, "pool-reader-killed", pool_reader_killed),
    case(SUITE, "exit-under-threads-that-are-in-the-driver", exit_under_threads),
];

/// Longer than any case: a process that sleeps this long is killed first.
const FOREVER_US: u64 = 60_000_000;
/// A stream that is not idle after this time is stuck and not merely slow.
const STUCK_MS: u64 = 700;

/// A process that exits normally succeeds, even while its threads call the driver. (Without the
/// driver crate's exit guard, the simulated driver aborts it with SIGABRT.)
fn exit_under_threads(_: u64) -> Result<String> {
    for _ in 0..10 {
        let mut peer = Peer::new()?;
        require(&peer, "event")?;
        peer.begin(&Command::Exit { threads: 4 })?;
        let status = peer.exits()?;
        ensure!(status.success(), "{status}");
    }
    Ok(String::new())
}

/// Death of the recorder of a release event: the event stays pending. The stream that waited for it
/// is stuck, even after the event is destroyed. Recording the event again blocks the recording
/// stream. Other streams continue.
fn release_event_pending(_: u64) -> Result<String> {
    let (exporter, mut reader) = (Peer::new()?, Peer::new()?);
    require(&exporter, "event")?;
    let release = exporter.event(true)?;
    let theirs = reader.open_event(&exporter, release)?;
    let (waiting, recording) = (exporter.stream()?, exporter.stream()?);
    reader.sleep(0, FOREVER_US)?;
    reader.record(theirs, 0)?;
    exporter.wait(waiting, release)?;
    reader.kill()?;

    ensure!(!exporter.idle_within(waiting, STUCK_MS)?, "a stream passed the event of a dead recorder");
    ensure!(!exporter.event_ready(release)?, "the event of a dead recorder is complete");
    exporter.record(release, recording)?;
    ensure!(!exporter.idle_within(recording, STUCK_MS)?, "recording the event again did not block");
    exporter.execute(Command::DropEvent(release))?;
    ensure!(
        !exporter.idle_within(waiting, 200)?,
        "destroying the event released the stream that waited for it"
    );
    ensure!(exporter.idle_within(0, PATIENCE_MS)?, "a stream that never touched the event is stuck");
    let fresh = exporter.event(true)?;
    exporter.record(fresh, 0)?;
    exporter.finish(0)?;
    ensure!(exporter.event_ready(fresh)?, "a new event stays pending");
    Ok(String::new())
}

/// Death of the recorder of a ready event: the reader's waiting stream is stuck and can be dropped;
/// its other streams and new ones work.
fn ready_event_pending(_: u64) -> Result<String> {
    let (mut exporter, reader) = (Peer::new()?, Peer::new()?);
    require(&exporter, "event")?;
    let ready = exporter.event(true)?;
    let theirs = reader.open_event(&exporter, ready)?;
    let waiting = reader.stream()?;
    exporter.sleep(0, FOREVER_US)?;
    exporter.record(ready, 0)?;
    reader.wait(waiting, theirs)?;
    exporter.kill()?;

    ensure!(!reader.idle_within(waiting, STUCK_MS)?, "a stream passed the event of a dead recorder");
    ensure!(!reader.event_ready(theirs)?, "the event of a dead recorder is complete");
    reader.sleep(0, 1000)?;
    ensure!(reader.idle_within(0, PATIENCE_MS)?, "another stream is stuck");
    reader.execute(Command::DropStream(waiting))?;
    let fresh = reader.stream()?;
    reader.sleep(fresh, 1000)?;
    ensure!(reader.idle_within(fresh, PATIENCE_MS)?, "a new stream is stuck");
    Ok(String::new())
}

/// Death of the writer of a timeline value: the survivor's CPU releases the stream by storing the
/// value.
fn word_pending(_: u64) -> Result<String> {
    let (mut exporter, reader) = (Peer::new()?, Peer::new()?);
    require(&exporter, "timeline")?;
    let memory = Words::create(512)?;
    let words = Words::map(&memory, 512, true)?;
    let (ours, theirs) = (exporter.page(&memory, 512, true)?, reader.page(&memory, 512, true)?);
    exporter.sleep(0, FOREVER_US)?;
    exporter.write_word(ours, 0, 1, 0)?;
    reader.wait_word(theirs, 0, 1, 0)?;
    exporter.kill()?;

    ensure!(!reader.idle_within(0, STUCK_MS)?, "a stream passed a timeline value that was not written");
    let begin = Instant::now();
    words.as_ref()[0].store(1, Ordering::Release);
    ensure!(reader.idle_within(0, PATIENCE_MS)?, "storing the value did not release the stream");
    Ok(format!("released {} µs after the store", begin.elapsed().as_micros()))
}

/// The queue of a dying process continues and overwrites the survivor's value with older ones.
/// Storing the value repeatedly until the process has exited and the streams are idle succeeds.
fn words_queued(_: u64) -> Result<String> {
    const WRITES: u64 = 460;
    let (mut exporter, reader) = (Peer::new()?, Peer::new()?);
    require(&exporter, "timeline")?;
    let memory = Words::create(512)?;
    let words = Words::map(&memory, 512, true)?;
    let word = &words.as_ref()[0];
    let (ours, theirs) = (exporter.page(&memory, 512, true)?, reader.page(&memory, 512, true)?);
    // The first load calibrates the duration.
    exporter.execute(Command::Load { stream: 0, us: 100 })?;
    exporter.finish(0)?;
    for value in 1..=WRITES {
        exporter.execute(Command::Load { stream: 0, us: 200 })?;
        exporter.write_word(ours, 0, value, 0)?;
    }
    let target = WRITES + 1;
    reader.wait_word(theirs, 0, target, 0)?;
    let reached = word.load(Ordering::Acquire);
    let killed = Instant::now();
    // The survivor starts to store values while the other process is still dying.
    exporter.kill_without_waiting()?;

    let (mut back, mut last, mut exited) = (0, Duration::ZERO, None);
    loop {
        word.store(target, Ordering::Release);
        let pause = Instant::now();
        while pause.elapsed() < Duration::from_micros(50) {
            if word.load(Ordering::Acquire) < target {
                (back, last) = (back + 1, killed.elapsed());
                word.store(target, Ordering::Release);
            }
        }
        // Queued work may end slightly later than the process.
        if exited.is_none() && exporter.has_exited()? {
            exited = Some(killed.elapsed());
        }
        if exited.is_some() && reader.idle_within(0, 0)? && killed.elapsed() > Duration::from_millis(30) {
            break;
        }
        ensure!(
            killed.elapsed() < Duration::from_millis(PATIENCE_MS),
            "storing the value did not release the stream"
        );
    }
    std::thread::sleep(Duration::from_millis(50));
    let left = word.load(Ordering::Acquire);
    Ok(format!(
        "killed at {reached} of {WRITES}, exited after {} µs; the value was set back {back} times, the last {} µs after the \
         kill; in the end it was {left} of {target}",
        exited.unwrap_or_default().as_micros(),
        last.as_micros()
    ))
}

/// A reader that records again the ready event it received, and dies, blocks the exporter's stream
/// that records the event next. Therefore each reader has its own events and signal stream.
fn ready_event_recorded_over(_: u64) -> Result<String> {
    let (exporter, mut reader) = (Peer::new()?, Peer::new()?);
    require(&exporter, "event")?;
    let ready = exporter.event(true)?;
    let theirs = reader.open_event(&exporter, ready)?;
    let signal = exporter.stream()?;
    exporter.record(ready, signal)?;
    exporter.finish(signal)?;
    reader.sleep(0, FOREVER_US)?;
    reader.record(theirs, 0)?;
    reader.kill()?;

    ensure!(!exporter.event_ready(ready)?, "the event that the dead reader recorded is complete");
    exporter.record(ready, signal)?;
    ensure!(!exporter.idle_within(signal, STUCK_MS)?, "recording the event again did not block");
    ensure!(exporter.idle_within(0, PATIENCE_MS)?, "a stream that never touched the event is stuck");
    Ok(String::new())
}

/// A reader loses its context and stays alive: whether its release event, recorded behind the
/// failure, completes is undefined. The exporter gets no error from it and continues with new
/// events.
fn context_lost(seed: u64) -> Result<String> {
    let (exporter, mut reader) = (Peer::new()?, Peer::new()?);
    require(&exporter, "event")?;
    let shared = Kind::Vmm.share(&exporter, 1 << 20)?;
    exporter.write(shared.memory, shared.size, seed)?;
    let import = shared.import(&exporter, &reader, false)?;
    let release = exporter.event(true)?;
    let theirs = reader.open_event(&exporter, release)?;
    // The failure occurs after the release is recorded behind it.
    let how = reader.spoil(import, 0)?;
    reader.record(theirs, 0)?;
    ensure!(
        !exporter.event_ready(release)?,
        "the release completed before the work that it was recorded behind"
    );
    reader.resume()?;
    let lost = must_fail(reader.finish(0), "writing to memory imported for reading")?;
    ensure!(lost.sticky, "{lost}");

    let look = || -> Result<&str> {
        std::thread::sleep(Duration::from_millis(100));
        let ready = exporter.event_ready(release).context("the exporter got the reader's error")?;
        Ok(if ready { "done" } else { "pending" })
    };
    let alive = look()?;
    reader.kill()?;
    let dead = look()?;
    exporter.execute(Command::DropEvent(release))?;
    exporter.check(shared.memory, 0, shared.size, seed)?;
    let fresh = exporter.event(true)?;
    exporter.record(fresh, 0)?;
    exporter.finish(0)?;
    ensure!(exporter.event_ready(fresh)?, "a new event stays pending");
    Ok(format!(
        "{lost}, by {how}; the exporter sees the release as {alive}, and after the reader's death as {dead}"
    ))
}

/// A pool allocation of a killed reader can be freed, and the pool stays usable.
fn pool_reader_killed(seed: u64) -> Result<String> {
    let (exporter, mut reader) = (Peer::new()?, Peer::new()?);
    let shared = Kind::Pool.share(&exporter, 1 << 20)?;
    let import = shared.import(&exporter, &reader, true)?;
    exporter.write(shared.memory, shared.size, seed)?;
    reader.check(import, 0, shared.size, seed)?;
    reader.kill()?;
    // A dead process's queue, and its use of the memory, continues for some milliseconds.
    std::thread::sleep(Duration::from_millis(100));
    exporter.execute(Command::Free { memory: shared.memory, stream: 0 })?;
    exporter.finish(0)?;
    let again = exporter.allocate(shared.source, shared.size)?;
    exporter.write(again, shared.size, seed + 1)?;
    exporter.check(again, 0, shared.size, seed + 1)?;
    Ok(String::new())
}
