// SPDX-License-Identifier: MIT OR Apache-2.0

//! Bound of the streams of one process that wait for frames: they do not hold back its other
//! streams, and readers beyond the bound get their frames when they are written.

use anyhow::{Context as _, Result, ensure};
use frameshare::{FenceKind, MemoryKind};
use frameshare_gpu_harness::Place;

use super::{Case, FENCES, FOREVER_US, Needs, PATIENCE_MS, Setup, case, to_the_end};
use crate::crowd::SIZE;
use crate::job::{Bind, Command, Connect, Publish, Read};
use crate::peer::Peer;

const SUITE: &str = "engine-waits";

pub const CASES: &[Case] = &[
    case(SUITE, "many-readers-of-a-late-exporter", late_exporter),
    case(SUITE, "many-readers-of-a-killed-exporter", killed_exporter),
    case(SUITE, "reader-leaves-beside-a-waiting-stream", reader_leaves),
    Case { suite: SUITE, name: "rings", seconds: 120, needs: Needs::Nothing, conduct: rings },
];

/// More than a process has hardware channels by default.
const READERS: usize = 16;
/// A process has so many hardware channels by default.
const CHANNELS: u64 = 8;
/// Time in which frames arrive that are delivered before they are written.
const AT_ONCE_MS: u64 = 500;

/// An exporter whose next frame is not written, and a process with many readers of it.
fn crowded(readers: usize, fence: FenceKind, seed: u64) -> Result<(Setup, Peer)> {
    let bind = Bind { memory: Some(MemoryKind::Vmm), max_slots: Some(64), ..Bind::default() };
    let setup = Setup::with(seed, bind)?;
    let crowd = Peer::new()?;
    let connect = Connect { max_held: Some(1), ..setup.lossless(0, Some(fence)) };
    crowd.execute(Command::Crowd { connect, readers })?;
    setup.await_readers(readers)?;
    setup.exporter.execute(Command::Stall { us: FOREVER_US })?;
    setup.exporter.publish(Publish { frames: 1, size: SIZE, ..Publish::default() })?;
    Ok((setup, crowd))
}

/// A few readers get the frame before it is written. While their streams wait, another stream of
/// the process goes on. The others get it when it is written, and count it.
fn late_exporter(seed: u64) -> Result<String> {
    let mut seen = Vec::new();
    for fence in FENCES {
        let (setup, crowd) = crowded(READERS, fence, seed)?;
        let early = crowd.take_each(AT_ONCE_MS)?;
        ensure!((1..CHANNELS).contains(&early.frames), "{fence}: {early:?}");
        ensure!(!early.is_held_back, "{fence}: another stream is held back: {early:?}");
        setup.exporter.execute(Command::Resume)?;
        // Those that have the frame get no further one.
        let late = crowd.take_each(PATIENCE_MS / 10)?;
        ensure!(early.frames + late.frames == READERS as u64, "{fence}: {early:?}, then {late:?}");
        // Some may have got it while the first ones no longer waited.
        ensure!((1..=late.frames).contains(&late.limited), "{fence}: {late:?}");
        ensure!(crowd.number(Command::SettleCrowd)? == 0, "{fence}: frames are wrong");
        seen.push(format!("{fence}: {} before and {} when they were written", early.frames, late.frames));
    }
    Ok(seen.join("; "))
}

/// The exporter is killed: the streams that wait are unblocked and no longer counted, the other
/// readers lose the frame, and the process goes on with the next exporter as with the first.
fn killed_exporter(seed: u64) -> Result<String> {
    let (mut setup, crowd) = crowded(READERS, FenceKind::Timeline, seed)?;
    let early = crowd.take_each(AT_ONCE_MS)?;
    setup.exporter.kill()?;
    let first = crowd.take_each(AT_ONCE_MS)?;
    ensure!(!first.is_held_back, "another stream is held back: {first:?}");
    // Some may have got it after the first ones were unblocked, before they noticed the death.
    let second = crowd.take_each(AT_ONCE_MS)?;
    let (torn, lost) = (first.torn + second.torn, first.lost + second.lost);
    ensure!(torn == early.frames + first.frames, "{early:?}, {first:?}, {second:?}");
    ensure!(torn + lost == READERS as u64, "{early:?}, {first:?}, {second:?}");
    let ms = crowd.number(Command::EndCrowd)?;
    ensure!(ms < 1000, "the readers ended after {ms} ms");
    let next = Setup::new(MemoryKind::Vmm, seed)?;
    let connect = Connect { max_held: Some(1), ..next.lossless(0, Some(FenceKind::Timeline)) };
    crowd.execute(Command::Crowd { connect, readers: 1 })?;
    next.await_readers(1)?;
    next.exporter.execute(Command::Stall { us: FOREVER_US })?;
    next.exporter.publish(Publish { frames: 1, size: SIZE, ..Publish::default() })?;
    let again = crowd.take_each(AT_ONCE_MS)?;
    ensure!(again.frames == 1, "the waits for a dead exporter still count: {again:?}");
    next.exporter.execute(Command::Resume)?;
    Ok(format!("{torn} streams were unblocked, {lost} readers lost the frame"))
}

/// A process with a stream that waits for a late frame leaves another exporter: its memory is freed
/// behind that wait, and the process goes on meanwhile.
fn reader_leaves(seed: u64) -> Result<String> {
    for fence in FENCES {
        let (setup, crowd) = crowded(1, fence, seed)?;
        let other = Setup::new(MemoryKind::Vmm, seed)?;
        crowd.connect(other.lossless(1, Some(FenceKind::Timeline)))?;
        other.await_readers(1)?;
        other.exporter.publish(Publish { frames: 2, size: SIZE, ..Publish::default() })?;
        // Work on a stream that is named: else the memory is freed behind all work.
        crowd.read(Read { frames: Some(2), named: true, ..to_the_end() })?;
        let early = crowd.take_each(AT_ONCE_MS)?;
        ensure!(early.frames == 1 && !early.is_held_back, "{fence}: {early:?}");
        crowd.execute(Command::Disconnect)?;
        let late = crowd.take_each(AT_ONCE_MS)?;
        ensure!(!late.is_held_back, "{fence}: {late:?}");
        setup.exporter.execute(Command::Resume)?;
        ensure!(crowd.number(Command::SettleCrowd)? == 0, "{fence}: frames are wrong");
        crowd.execute(Command::AwaitIdle { ms: PATIENCE_MS / 10 })?;
    }
    Ok(String::new())
}

/// Processes that read from each other in rings, more rings than a process has hardware channels:
/// each frame goes around, and arrives as it began.
fn rings(seed: u64) -> Result<String> {
    const PROCESSES: usize = 3;
    const RINGS: usize = 12;
    const ROUNDS: u64 = 10;
    let places = (0..PROCESSES * RINGS).map(|_| Place::new()).collect::<Result<Vec<_>>>()?;
    let paths: Vec<Vec<_>> =
        places.chunks(RINGS).map(|links| links.iter().map(Place::path).collect()).collect();
    let peers = Peer::some(PROCESSES)?;
    for (peer, paths) in peers.iter().zip(&paths) {
        peer.execute(Command::Rings { paths: paths.clone() })?;
    }
    for (number, peer) in peers.iter().enumerate() {
        let befores = paths[(number + PROCESSES - 1) % PROCESSES].clone();
        let begins = number == 0;
        peer.begin(&Command::Relay { befores, begins, rounds: ROUNDS, seed: seed + number as u64 })?;
    }
    for (number, peer) in peers.iter().enumerate() {
        let wrong = peer.was_number().with_context(|| format!("process {number}"))?;
        ensure!(wrong == 0, "process {number}: {wrong} frames are wrong");
    }
    Ok(format!("{RINGS} frames went {ROUNDS} times around {PROCESSES} processes"))
}
