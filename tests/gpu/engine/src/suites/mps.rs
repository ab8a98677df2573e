// SPDX-License-Identifier: MIT OR Apache-2.0

//! Clients of NVIDIA's multi-process service (MPS) that take their peers down: a fault of one
//! client ends the contexts of all, in other processes, too.
//!
//! Each case has three kinds of processes: the exporter, readers as the set-up has them, and a
//! reader that is a client only if the exporter is (`outside`).

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use frameshare::{Endpoint, MemoryKind, observer::Observer};
use frameshare_gpu_harness::Skip;
use frameshare_gpu_harness::mps::{self, Mps};

use super::crashes::{lose_context, read_and_stick};
use super::{Case, FENCES, KINDS, Needs, PATIENCE, SIZE, Setup, frames, to_the_end, wait_until, whole};
use crate::job::{Command, End, Publish, Read, WasRead};
use crate::peer::Peer;

const SUITE: &str = "engine-mps";

pub const CASES: &[Case] = &[
    mps_case("statistics-name-clients", statistics),
    mps_case("sleeping-readers-are-evicted", sleeping_readers),
    mps_case("reader-faults", |seed| case(Harm::Fault, seed)),
    mps_case("reader-killed-under-a-kernel", |seed| case(Harm::Kill, seed)),
];

const fn mps_case(name: &'static str, conduct: fn(u64) -> Result<String>) -> Case {
    Case { suite: SUITE, name, seconds: 120, needs: Needs::Nothing, conduct }
}

/// Interval of the frames.
const PACE_US: u64 = 4_000;
/// Frames that are published before the harm.
const BEFORE: Duration = Duration::from_millis(400);

/// Frames per case: with the default, long enough for the end of the peers and a fence timeout.
fn count() -> u64 {
    (frames() / 6).clamp(250, 1500)
}

/// The end of the victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    /// Its context is lost.
    Fault,
    /// It is killed while a kernel of 20 ms runs.
    Kill,
}

/// The statistics of the exporter and the snapshots for observers tell whether it is a client.
fn statistics(seed: u64) -> Result<String> {
    let setup = Setup::new(MemoryKind::Vmm, seed)?;
    let expected = mps::here() == Mps::All;
    let stats = setup.exporter.stats()?;
    ensure!(stats.is_mps_client == expected, "{stats:?}");
    let endpoint = Endpoint::at(setup.place.path())?;
    let snapshot = Observer::connect(&endpoint, PATIENCE)?.latest().clone();
    ensure!(snapshot.exporter.is_mps_client == expected, "{snapshot:?}");
    Ok(format!("exporter: {expected}"))
}

/// Readers with queued releases that make no call after another client's fault are evicted after
/// the fence timeout, and their slots are free from then on. Without MPS the readers stay.
fn sleeping_readers(seed: u64) -> Result<String> {
    if mps::here() == Mps::All {
        return Err(Skip("the exporter is a client of MPS, too, and loses its context".into()).into());
    }
    for kind in KINDS {
        for fence in FENCES {
            let setup = match mps::here() {
                Mps::None => Setup::new(kind, seed)?,
                _ => Setup::with_deadline(kind, seed)?,
            };
            let (victim, mut peers) = (Peer::new()?, Peer::some(2)?);
            setup.join(&peers, |number| setup.lossless(number, Some(fence)))?;
            victim.connect(setup.lossless(8, Some(fence)))?;
            victim.execute(Command::Disconnect)?;
            setup.await_readers(2)?;
            for peer in &peers {
                read_and_stick(peer, 4)?;
            }
            setup.exporter.publish(Publish { frames: 4, size: SIZE, ..Publish::default() })?;
            for peer in &peers {
                peer.was_read()?;
            }
            lose_context(&victim)?;
            if mps::here() == Mps::None {
                std::thread::sleep(Duration::from_millis(300));
                setup.await_readers(2)?;
                continue;
            }
            setup
                .await_readers(0)
                .with_context(|| format!("{kind} {fence}: the readers were not evicted"))?;
            let notices = || setup.exporter.texts(Command::Notices);
            wait_until(PATIENCE, || {
                let lost = evictions(&peers, &notices()?);
                Ok((lost.len() < 2).then(|| format!("notices of 2 evictions are missing: {lost:?}")))
            })?;
            let lost = evictions(&peers, &notices()?);
            ensure!(lost.iter().all(|why| why.contains("fence timeout")), "{lost:?}");
            setup.gets_all_slots_back(PATIENCE).with_context(|| format!("{kind} {fence}"))?;
            peers.iter_mut().try_for_each(|peer| peer.kill())?;
        }
    }
    Ok(String::new())
}

fn case(harm: Harm, seed: u64) -> Result<String> {
    let mut told = Vec::new();
    for fence in FENCES {
        let setup = Setup::with_deadline(MemoryKind::Vmm, seed)?;
        let (mut victim, peers, outside) = (Peer::new()?, Peer::some(2)?, Peer::exporter()?);
        let connect = |number| setup.lossless(number, Some(fence));
        setup.join(&peers, connect)?;
        outside.connect(connect(7))?;
        victim.connect(connect(8))?;
        setup.await_readers(4)?;
        for reader in peers.iter().chain([&outside]) {
            reader.begin(&Command::Read(Read { settle_ms: Some(2_000), leave: true, ..to_the_end() }))?;
        }
        let publish = Publish { frames: count(), size: SIZE, pace_us: PACE_US, ..Publish::default() };
        setup.exporter.begin(&Command::Publish(publish))?;
        // The victim holds no frame: what it costs the others is the loss of their contexts alone.
        victim.read(Read { frames: Some(10), settle_ms: Some(2_000), ..to_the_end() })?;
        victim.execute(Command::Disconnect)?;
        std::thread::sleep(BEFORE);
        match harm {
            Harm::Fault => lose_context(&victim)?,
            Harm::Kill => {
                victim.execute(Command::LongKernels { ms: 20, count: 50 }).map_err(as_skip)?;
                victim.kill()?;
            }
        }
        told.push(format!("{fence}: {}", outcome(harm, &setup, &peers, &outside)?));
    }
    Ok(told.join("; "))
}

/// The simulated driver has no kernels.
fn as_skip(error: anyhow::Error) -> anyhow::Error {
    let text = format!("{error:#}");
    if text.contains("cuModuleLoadData: 801") { Skip(text).into() } else { error }
}

/// Checks the survivors of a set-up, and describes what happened.
fn outcome(harm: Harm, setup: &Setup, peers: &[Peer], outside: &Peer) -> Result<String> {
    let published = setup.exporter.published();
    let notices = setup.exporter.texts(Command::Notices)?;
    // After an error of the exporter the stream ends in another way.
    let _ = setup.exporter.execute(Command::EndOfStream);
    if published.is_err() {
        setup.exporter.number(Command::Unbind)?;
    }
    let reads = peers.iter().map(Peer::was_read).collect::<Result<Vec<_>>>();
    let outside = outside.was_read();
    let ends = |reads: &Result<Vec<WasRead>>| match reads {
        Ok(reads) => {
            reads.iter().map(|read| format!("{} frames", read.frames)).collect::<Vec<_>>().join(", ")
        }
        Err(error) => format!("{error:#}"),
    };
    match mps::here() {
        Mps::None => {
            let longest = published?.longest_gap_ms;
            for read in reads?.iter().chain([&outside?]) {
                whole(read, count())?;
            }
            Ok(format!("no other reader lost a frame; the exporter was blocked for {longest:.0} ms at most"))
        }
        Mps::Readers => {
            let longest = published.context("the exporter is no client of MPS")?.longest_gap_ms;
            whole(&outside?, count()).context("the reader that is no client")?;
            let lost = evictions(peers, &notices);
            if harm == Harm::Fault {
                ensure!(
                    lost.len() == peers.len(),
                    "the peers of a faulting client are still there: {notices:?}"
                );
            }
            // The reader reports the loss, or leaves with the error, before the fence timeout.
            let late = lost.iter().find(|why| why.contains("fence timeout"));
            ensure!(late.is_none(), "a peer was removed late: {lost:?}");
            Ok(format!(
                "removed: {lost:?}; the peers: {}; the exporter and the reader outside lost nothing, the longest \
                 pause was {longest:.0} ms",
                ends(&reads)
            ))
        }
        Mps::All => {
            let exporter = published.map_or_else(
                |error| format!("ended with {error:#}"),
                |published| format!("published {} frames", published.frames),
            );
            if harm == Harm::Fault {
                let survived = matches!(&outside, Ok(read) if read.end == End::Stream);
                ensure!(!survived, "a client survived the fault of another: {outside:?}");
            }
            Ok(format!("the exporter {exporter}; the readers: {}", ends(&reads)))
        }
    }
}

/// The reasons for which these readers were removed.
fn evictions(peers: &[Peer], notices: &[String]) -> Vec<String> {
    let of = |peer: &Peer| {
        let name = format!("removed {}", peer.pid());
        notices.iter().find(|notice| notice.starts_with(&name)).cloned()
    };
    peers.iter().filter_map(of).collect()
}
