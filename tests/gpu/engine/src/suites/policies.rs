// SPDX-License-Identifier: MIT OR Apache-2.0

//! Delivery policies, access rights and memory kinds of readers.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use frameshare::{FenceKind, MemoryKind, Policy};
use frameshare_gpu_harness::{
    Skip,
    mps::{self, Mps},
};

use super::{Case, FENCES, KINDS, PATIENCE, PATIENCE_MS, SIZE, Setup, case, frames, to_the_end, whole};
use crate::job::{Bind, Command, Connect, End, Publish, Read, Reply, Slow};
use crate::peer::Peer;

const SUITE: &str = "engine-policies";

pub const CASES: &[Case] = &[
    case(SUITE, "latest-readers-lose-frames", latest),
    case(SUITE, "late-joiners", late_joiners),
    case(SUITE, "exporter-waits-for-each-frame", waits),
    case(SUITE, "exporter-restarts", restarts),
    case(SUITE, "reader-ends-with-frames-held", ends_holding),
    case(SUITE, "reader-in-the-same-process", same_process),
    case(SUITE, "another-user", another_user),
    case(SUITE, "untrusted-user", untrusted_user),
    case(SUITE, "reader-without-a-gpu", without_gpu),
    case(SUITE, "gpu-and-host-memory-in-turn", in_turn),
    case(SUITE, "too-much-retired-memory", retired_bytes),
    case(SUITE, "no-events-left", no_events_left),
];

/// The exporter reports a lossless reader as blocking after this time.
const NOTICE_MS: f64 = 1000.0;

fn count() -> u64 {
    (frames() / 20).max(60)
}

/// Slow `latest` readers lose frames; every loss is counted, and delivered frames are intact and
/// carry their own metadata.
fn latest(seed: u64) -> Result<String> {
    let mut seen = Vec::new();
    for kind in KINDS {
        let setup = Setup::new(kind, seed)?;
        let readers = Peer::some(3)?;
        // The last reader is lossless and fast.
        setup.join(&readers, |number| Connect {
            policy: if number < 2 { Policy::Latest } else { Policy::Lossless },
            ..setup.lossless(number, Some(FENCES[number % 2]))
        })?;
        let publish =
            Publish { frames: count() / 2, size: SIZE, pace_us: 1000, metadata: 1, ..Publish::default() };
        let begin =
            |number: usize, slow| readers[number].begin(&Command::Read(Read { slow, ..to_the_end() }));
        begin(2, Slow::Never)?;
        // More frames than are queued for a reader that does not read yet.
        setup.exporter.publish(publish.clone())?;
        (0..2).try_for_each(|number| begin(number, Slow::Always(8000)))?;
        setup.exporter.publish(publish)?;
        setup.exporter.execute(Command::EndOfStream)?;
        let reads = readers.iter().map(Peer::was_read).collect::<Result<Vec<_>>>()?;
        whole(&reads[2], count() / 2 * 2).with_context(|| kind.to_string())?;
        for read in &reads[..2] {
            ensure!(read.wrong == 0, "{kind}: {:?}", read.first_wrong);
            ensure!(read.end == End::Stream && read.lost > 0, "{kind}: {read:?}");
            seen.push(format!("{kind}: {} lost of {}", read.lost, count()));
        }
    }
    Ok(seen.join(", "))
}

/// An exporter that waits for a reader before each frame continues as soon as a slot is free, and
/// never only after a timeout. The transition from polling to waiting for a wake-up must not lose a
/// wake-up.
fn waits(seed: u64) -> Result<String> {
    let mut seen = Vec::new();
    for fence in FENCES {
        let setup = Setup::new(MemoryKind::Vmm, seed)?;
        let readers = Peer::some(1)?;
        setup
            .join(&readers, |number| Connect { max_held: Some(1), ..setup.lossless(number, Some(fence)) })?;
        readers[0].begin(&Command::Read(Read { sit_ms: 2, ..to_the_end() }))?;
        let publish =
            Publish { frames: (15 * count()).min(3000), size: SIZE, drain: true, ..Publish::default() };
        let published = setup.exporter.publish(publish)?;
        setup.exporter.execute(Command::EndOfStream)?;
        whole(&readers[0].was_read()?, published.frames)?;
        // A wait of this length that is caused by the reader produces a notice.
        let notices = setup.exporter.texts(Command::Notices)?;
        let (gap, blocks) =
            (published.longest_gap_ms, notices.iter().any(|notice| notice.starts_with("blocking")));
        ensure!(gap < NOTICE_MS || blocks, "{fence}: the exporter got no wake-up for {gap:.1} ms");
        seen.push(format!("{fence}: {gap:.1} ms at most"));
    }
    Ok(seen.join("; "))
}

/// Readers that join while frames flow get intact frames from then on.
fn late_joiners(seed: u64) -> Result<String> {
    let setup = Setup::new(MemoryKind::Vmm, seed)?;
    let readers = Peer::some(4)?;
    let frames = 400;
    let publish = Publish { frames, size: SIZE, pace_us: 2000, ..Publish::default() };
    setup.exporter.begin(&Command::Publish(publish))?;
    let mut seen = Vec::new();
    for (number, reader) in readers.iter().enumerate() {
        reader.connect(setup.lossless(number, Some(FENCES[number % 2])))?;
        reader.begin(&Command::Read(to_the_end()))?;
        std::thread::sleep(Duration::from_millis(50));
    }
    setup.exporter.published()?;
    setup.exporter.execute(Command::EndOfStream)?;
    for reader in &readers {
        let read = reader.was_read()?;
        ensure!(read.end == End::Stream && read.lost == 0 && read.wrong == 0, "{read:?}");
        ensure!(read.frames <= frames, "{} frames delivered of {frames} published", read.frames);
        seen.push(read.frames.to_string());
    }
    Ok(format!("late readers got the last {} frames", seen.join(", ")))
}

/// A reader reconnects to a new exporter of the same name, after a kill and after a stop.
fn restarts(seed: u64) -> Result<String> {
    for kind in KINDS {
        let mut setup = Setup::new(kind, seed)?;
        let readers = Peer::some(2)?;
        setup.join(&readers, |number| Connect {
            reconnect: true,
            connection_timeout_ms: Some(PATIENCE_MS),
            ..setup.lossless(number, Some(FENCES[number]))
        })?;
        for reader in &readers {
            reader.begin(&Command::Read(to_the_end()))?;
        }
        let publish = Publish { frames: 20, size: SIZE, drain: true, ..Publish::default() };
        for killed in [true, false] {
            setup.exporter.publish(publish.clone())?;
            if killed {
                setup.exporter.kill()?;
            } else {
                setup.exporter.number(Command::Unbind)?;
            }
            setup.exporter = Peer::exporter()?;
            let bind = Bind { path: setup.place.path(), memory: Some(kind), ..Bind::default() };
            setup.exporter.bind(bind)?;
            if let Err(error) = setup.await_readers(2) {
                setup.exporter.kill()?;
                let ends: Vec<_> =
                    readers.iter().map(|reader| reader.was_read().map(|read| read.end)).collect();
                return Err(error.context(format!("{kind}, killed: {killed}: the readers: {ends:?}")));
            }
        }
        setup.exporter.publish(publish)?;
        setup.exporter.execute(Command::EndOfStream)?;
        for reader in &readers {
            let read = reader.was_read()?;
            ensure!(read.frames == 60 && read.reconnects == 2, "{kind}: {read:?}");
            ensure!(read.wrong == 0 && read.end == End::Stream, "{kind}: {read:?}");
        }
    }
    Ok(String::new())
}

/// Held frames outlive their reader, and their slots are not reused meanwhile.
fn ends_holding(seed: u64) -> Result<String> {
    for kind in KINDS {
        for fence in FENCES {
            let setup = Setup::new(kind, seed)?;
            let readers = Peer::some(1)?;
            setup.join(&readers, |number| setup.lossless(number, Some(fence)))?;
            readers[0].begin(&Command::Read(Read { frames: Some(3), hold: 3, ..to_the_end() }))?;
            setup.exporter.publish(Publish { frames: 3, size: SIZE, ..Publish::default() })?;
            readers[0].was_read()?;
            readers[0].execute(Command::Disconnect)?;
            setup.await_readers(0)?;
            setup.exporter.publish(Publish { frames: 30, size: SIZE, ..Publish::default() })?;
            let wrong = readers[0].texts(Command::CheckHeld)?;
            ensure!(wrong.is_empty(), "{kind} {fence}: {wrong:?}");
            readers[0].execute(Command::ReleaseHeld { count: 3 })?;
            setup.gets_all_slots_back(PATIENCE).with_context(|| format!("{kind} {fence}"))?;
        }
    }
    Ok(String::new())
}

/// A reader in the exporter's process and context.
fn same_process(seed: u64) -> Result<String> {
    for kind in KINDS {
        for fence in FENCES {
            let setup = Setup::new(kind, seed)?;
            let here = setup.lossless(0, Some(fence));
            let connected = setup.exporter.ask(Command::ConnectHere(here));
            ensure!(matches!(connected, Ok(Reply::Connected { .. })), "{kind} {fence}: {connected:?}");
            for round in 0..5 {
                // Up to the reader's credit: one process executes one command at a time.
                let slow = Slow::Always(2000);
                setup.exporter.publish(Publish { frames: 4, size: SIZE, slow, ..Publish::default() })?;
                let read =
                    Read { frames: Some(4), slow: Slow::Always(1000), patience_ms: 5000, ..Read::default() };
                let read = setup.exporter.read(read)?;
                let fine = read.frames == 4 && read.lost == 0 && read.wrong == 0;
                ensure!(fine, "{kind} {fence}, round {round}: {read:?}");
            }
            setup.exporter.execute(Command::Disconnect)?;
        }
    }
    Ok(String::new())
}

/// The daemon of MPS serves one user at a time.
fn require_root_outside(clients: &[Mps]) -> Result<()> {
    if clients.contains(&mps::here()) {
        return Err(Skip("MPS serves one user at a time".into()).into());
    }
    if rustix::process::geteuid().is_root() {
        Ok(())
    } else {
        Err(Skip("changing the user requires root".into()).into())
    }
}

/// Another unprivileged user is not admitted.
fn another_user(seed: u64) -> Result<String> {
    require_root_outside(&[Mps::All, Mps::Readers])?;
    let setup = Setup::new(MemoryKind::Vmm, seed)?;
    setup.place.open()?;
    let reader = Peer::new()?;
    reader.become_nobody()?;
    let Err(refused) = reader.connect(setup.lossless(0, None)) else {
        anyhow::bail!("another user was admitted")
    };
    let refusal = format!("{refused:#}");
    ensure!(refusal.contains("permission denied"), "{refusal}");
    Ok(refusal)
}

/// A reader that may connect but is not trusted with GPU memory gets downloaded frames; a trusted
/// one gets GPU memory.
fn untrusted_user(seed: u64) -> Result<String> {
    require_root_outside(&[Mps::All])?;
    let mut seen = Vec::new();
    for trusted in [false, true] {
        let place = super::Place::new()?;
        place.open()?;
        let setup = Setup { place, exporter: Peer::exporter()?, seed };
        setup.exporter.become_nobody()?;
        setup.exporter.bind(Bind {
            path: setup.place.path(),
            memory: Some(MemoryKind::Vmm),
            trusted_uids: if trusted { vec![0] } else { Vec::new() },
            ..Bind::default()
        })?;
        let readers = Peer::some(2)?;
        setup.join(&readers, |number| Connect {
            exporter_uid: Some(frameshare_gpu_harness::NOBODY),
            ..setup.lossless(number, None)
        })?;
        let publish =
            Publish { frames: count(), size: SIZE, slow: Slow::Sometimes(600), ..Publish::default() };
        for read in setup.run(&readers, publish, |_| to_the_end())? {
            whole(&read, count()).with_context(|| format!("trusted: {trusted}"))?;
        }
        let fence = setup.exporter.stats()?.readers[0].fence.clone();
        ensure!(fence.starts_with("timeline") == trusted, "trusted: {trusted}, but the fence is {fence}");
        seen.push(fence);
    }
    Ok(seen.join("; "))
}

/// Starts a reader without a GPU, and one for each kind of fence.
fn one_without_gpu(setup: &Setup) -> Result<Vec<Peer>> {
    let readers = Peer::some(3)?;
    setup.join(&readers, |number| Connect {
        host: number == 0,
        ..setup.lossless(number, if number == 0 { None } else { Some(FENCES[number - 1]) })
    })?;
    Ok(readers)
}

/// A reader without a GPU gets host memory, beside readers of GPU memory.
fn without_gpu(seed: u64) -> Result<String> {
    for kind in KINDS {
        let setup = Setup::new(kind, seed)?;
        let readers = one_without_gpu(&setup)?;
        let slow = Slow::Sometimes(600);
        let publish = Publish { frames: count(), size: SIZE, slow, metadata: 1, ..Publish::default() };
        for (number, read) in setup.run(&readers, publish, |_| to_the_end())?.iter().enumerate() {
            whole(read, count()).with_context(|| format!("{kind}, reader {number}"))?;
        }
    }
    Ok(String::new())
}

/// Frames alternate between GPU and host memory: readers of all kinds get every frame in order, and
/// unused memory is freed.
fn in_turn(seed: u64) -> Result<String> {
    const ROUNDS: u64 = 8;
    for kind in KINDS {
        let setup = Setup::new(kind, seed)?;
        let readers = one_without_gpu(&setup)?;
        for reader in &readers {
            reader.begin(&Command::Read(Read { slow: Slow::Sometimes(2000), ..to_the_end() }))?;
        }
        for round in 0..ROUNDS {
            setup.exporter.execute(Command::HostMemory { yes: round % 2 == 1 })?;
            let slow = Slow::Sometimes(600);
            setup.exporter.publish(Publish {
                frames: 7,
                size: SIZE,
                slow,
                metadata: 1,
                ..Publish::default()
            })?;
            let memory = setup.exporter.stats()?.memory;
            ensure!(memory.starts_with("host") == (round % 2 == 1), "round {round}: {memory}");
        }
        setup.exporter.execute(Command::EndOfStream)?;
        for (number, reader) in readers.iter().enumerate() {
            whole(&reader.was_read()?, 7 * ROUNDS).with_context(|| format!("{kind}, reader {number}"))?;
        }
        for reader in &readers {
            reader.execute(Command::Disconnect)?;
        }
        setup.frees_retired()?;
    }
    Ok(String::new())
}

/// A reader that keeps more retired memory than permitted is evicted, and its held frames stay
/// intact.
fn retired_bytes(seed: u64) -> Result<String> {
    let setup = Setup::with(
        seed,
        Bind { memory: Some(MemoryKind::Legacy), max_retired_bytes: Some(4 << 20), ..Bind::default() },
    )?;
    let readers = Peer::some(1)?;
    setup.join(&readers, |number| Connect {
        policy: Policy::Latest,
        max_held: Some(8),
        ..setup.lossless(number, Some(FenceKind::Timeline))
    })?;
    readers[0].begin(&Command::Read(Read { frames: Some(8), hold: 8, ..to_the_end() }))?;
    for round in 0..8 {
        setup.exporter.execute(Command::Format { caps: format!("round {round}") })?;
        let size = SIZE << (round % 4);
        setup.exporter.publish(Publish { frames: 1, size, pace_us: 20_000, ..Publish::default() })?;
    }
    let read = readers[0].was_read()?;
    let cut_off =
        matches!(&read.end, End::Error { kind, text, .. } if kind == "CutOff" && text.contains("retired"));
    ensure!(cut_off, "{:?}", read.end);
    let wrong = readers[0].texts(Command::CheckHeld)?;
    ensure!(wrong.is_empty(), "{wrong:?}");
    readers[0].execute(Command::ReleaseHeld { count: 8 })?;
    readers[0].execute(Command::Disconnect)?;
    setup.frees_retired()?;
    Ok(format!("after {} generations", read.frames))
}

/// An exhausted number of events is an early and clear error; timeline fences keep working.
fn no_events_left(seed: u64) -> Result<String> {
    let setup = Setup::new(MemoryKind::Vmm, seed)?;
    setup.exporter.execute(Command::TakeEvents { count: 4080 })?;
    let readers = Peer::some(3)?;
    readers[0]
        .connect(setup.lossless(0, Some(FenceKind::Event)))
        .context("opening eight of the last fourteen events")?;
    let Err(refused) = readers[1].connect(setup.lossless(1, Some(FenceKind::Event))) else {
        anyhow::bail!("more events were available than the driver's limit")
    };
    let refusal = format!("{refused:#}");
    ensure!(refusal.contains("4094") && refusal.contains("timeline"), "{refusal}");
    readers[2].connect(setup.lossless(2, None))?;
    let two = [&readers[0], &readers[2]];
    for reader in two {
        reader.begin(&Command::Read(to_the_end()))?;
    }
    setup.exporter.publish(Publish { frames: 20, size: SIZE, ..Publish::default() })?;
    setup.exporter.execute(Command::EndOfStream)?;
    for reader in two {
        whole(&reader.was_read()?, 20)?;
    }
    Ok(refusal)
}
