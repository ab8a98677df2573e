// SPDX-License-Identifier: MIT OR Apache-2.0

//! Readers that get host memory although the frames are in GPU memory.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use frameshare::{FenceKind, MemoryKind, Policy};
use frameshare_gpu_harness::order::{self, Expected};

use super::{Case, FOREVER_US, PATIENCE, PATIENCE_MS, SIZE, Setup, case, to_the_end, wait_until, whole};
use crate::job::{Bind, Command, Connect, End, Publish, Read, Slow, Use, WasRead};
use crate::peer::Peer;

const SUITE: &str = "engine-downloads";

pub const CASES: &[Case] = &[
    case(SUITE, "one-download-for-all", one_for_all),
    case(SUITE, "gpu-far-behind", far_behind),
    case(SUITE, "others-lose-nothing", others_lose_nothing),
    case(SUITE, "lossless-reader-at-the-slot-limit", at_the_limit),
    case(SUITE, "lossless-readers-lose-nothing", lose_nothing),
    case(SUITE, "nothing-passes-a-download", nothing_passes),
    case(SUITE, "nothing-passes-a-frame-just-downloaded", nothing_passes_at_once),
    case(SUITE, "reader-joins-during-a-download", joins),
    case(SUITE, "formats-change", formats_change),
    case(SUITE, "stop-behind-a-busy-stream", stops),
    case(SUITE, "host-memory-that-cannot-be-registered", unregistered),
    case(SUITE, "no-host-slot-left", no_host_slot),
    case(SUITE, "no-fence-in-common", no_common_fence),
    case(SUITE, "owner-notified-whatever-becomes-of-the-frame", notified_whatever),
];

fn publish(frames: u64) -> Publish {
    Publish { frames, size: SIZE, ..Publish::default() }
}

fn reader(setup: &Setup, number: usize, policy: Policy) -> Connect {
    Connect { host: true, policy, ..setup.lossless(number, None) }
}

/// A frame is downloaded once for all readers without a GPU, and never for readers with one.
fn one_for_all(seed: u64) -> Result<String> {
    const FRAMES: u64 = 40;
    let mut counts = Vec::new();
    for (count, expected) in [(0, 0), (1, FRAMES), (3, FRAMES)] {
        let setup = Setup::new(MemoryKind::Vmm, seed)?;
        let readers = Peer::some(1 + count)?;
        setup.join(&readers, |number| match number {
            0 => setup.lossless(0, None),
            _ => reader(&setup, number, Policy::Lossless),
        })?;
        for reader in &readers {
            reader.begin(&Command::Read(to_the_end()))?;
        }
        let published = setup.exporter.publish(Publish { drain: true, ..publish(FRAMES) })?;
        setup.exporter.execute(Command::EndOfStream)?;
        for reader in &readers {
            whole(&reader.was_read()?, FRAMES).with_context(|| format!("{count} readers without a GPU"))?;
        }
        let copies = published.steady.calls.into_iter().filter(|(call, _)| call.starts_with("cuMemcpy"));
        let downloads: u64 = copies.map(|(_, count)| count).sum();
        ensure!(
            downloads == expected,
            "{downloads} downloads of {FRAMES} frames, for {count} readers without a GPU"
        );
        counts.push(format!("{downloads} for {count}"));
    }
    Ok(format!("copies of {FRAMES} frames: {}", counts.join(", ")))
}

/// Frames that the GPU has no time to download are lost to `latest` readers and counted. The stream
/// continues although upstream holds as many slots as it may, as soon as the GPU has written the
/// slots that are left.
fn far_behind(seed: u64) -> Result<String> {
    const FRAMES: u64 = 20;
    const LEFT: u64 = 3;
    let setup =
        Setup::with(seed, Bind { memory: Some(MemoryKind::Vmm), max_slots: Some(8), ..Bind::default() })?;
    let readers = Peer::some(1)?;
    setup.join(&readers, |number| Connect { max_held: Some(1), ..reader(&setup, number, Policy::Latest) })?;
    readers[0].begin(&Command::Read(to_the_end()))?;
    let held = setup.exporter.number(Command::HoldSlots { size: SIZE })?;
    ensure!(
        held == 5,
        "{held} slots are held instead of 5: the reader's slot and two spare slots must remain"
    );
    setup.exporter.execute(Command::Stall { us: FOREVER_US })?;
    // Each of the slots that are left takes a frame while the GPU stands still.
    setup.exporter.publish(publish(LEFT))?;
    setup.exporter.execute(Command::Resume)?;
    setup.exporter.execute(Command::Stall { us: 300_000 })?;
    setup.exporter.publish(publish(FRAMES - LEFT))?;
    setup.exporter.execute(Command::EndOfStream)?;
    let read = readers[0].was_read()?;
    ensure!(read.end == End::Stream && read.wrong == 0, "{read:?}");
    let lost = setup.exporter.stats()?.readers[0].lost;
    ensure!(
        lost > 0 && read.frames + lost == FRAMES,
        "{} of {FRAMES} frames arrived, {lost} frames were lost instead of 1",
        read.frames
    );
    Ok(format!("{lost} of {FRAMES} lost"))
}

/// Readers at their credit limit, with held or untaken frames, lose nothing because of downloads
/// for others.
fn others_lose_nothing(seed: u64) -> Result<String> {
    // A reader whose stream does not wait may be ordered by chance.
    order::expect(Expected::Any);
    let bind = Bind { memory: Some(MemoryKind::Vmm), max_slots: Some(10), ..Bind::default() };
    let setup = Setup::with(seed, bind)?;
    let readers = Peer::some(2)?;
    setup.join(&readers, |number| match number {
        0 => setup.lossless(0, Some(FenceKind::Timeline)),
        _ => reader(&setup, number, Policy::Latest),
    })?;
    // Its stream does not wait, so the reader releases frames before they are written.
    let read = Read { frames: Some(8), hold: 3, without_wait: true, what: Use::Touch, ..to_the_end() };
    readers[0].begin(&Command::Read(read))?;
    for frames in 1..=4 {
        setup.exporter.publish(publish(1))?;
        wait_until(Duration::from_secs(10), || {
            let has_all = setup.exporter.stats()?.readers.iter().all(|reader| reader.sent == frames);
            Ok((!has_all).then(|| format!("frame {frames} was not downloaded")))
        })?;
    }
    setup.exporter.execute(Command::Stall { us: FOREVER_US })?;
    setup.exporter.publish(publish(4))?;
    let read = readers[0].was_read()?;
    setup.exporter.execute(Command::Resume)?;
    ensure!(read.end == End::Enough && read.lost == 0, "{read:?}");
    Ok(String::new())
}

/// Lossless readers get every frame: one without a GPU, and one that prefers frames on the GPU.
/// Calls of the driver may fail, and it may lack fences.
fn lose_nothing(seed: u64) -> Result<String> {
    const FRAMES: u64 = 60;
    let setup = Setup::new(MemoryKind::Vmm, seed)?;
    let readers = Peer::some(2)?;
    setup.join(&readers, |number| match number {
        0 => reader(&setup, 0, Policy::Lossless),
        _ => Connect { host_fallback: true, ..setup.lossless(1, None) },
    })?;
    let publish = Publish { slow: Slow::Sometimes(2000), drain: true, ..publish(FRAMES) };
    for (number, read) in setup.run(&readers, publish, |_| to_the_end())?.iter().enumerate() {
        whole(read, FRAMES).with_context(|| format!("reader {number}"))?;
    }
    let stats = setup.exporter.stats()?;
    let choices: Vec<_> = stats.readers.into_iter().map(|reader| reader.fence).collect();
    Ok(format!("{:?}; {}", stats.copies, choices.join("; ")))
}

/// A lossless reader of downloads gets every frame where held frames, its backlog and downloads
/// under way take all slots: the exporter waits.
fn at_the_limit(seed: u64) -> Result<String> {
    let bind = Bind { memory: Some(MemoryKind::Vmm), max_slots: Some(11), queues: true, ..Bind::default() };
    let setup = Setup::with(seed, bind)?;
    let readers = Peer::some(2)?;
    readers[0].connect(Connect { max_held: Some(2), policy: Policy::Latest, ..setup.lossless(0, None) })?;
    readers[1].connect(Connect { max_held: Some(4), ..reader(&setup, 1, Policy::Lossless) })?;
    readers[0].begin(&Command::Read(Read { frames: Some(2), hold: 2, ..to_the_end() }))?;
    setup.exporter.publish(publish(2))?;
    ensure!(readers[0].was_read()?.end == End::Enough, "the first reader holds no frame");
    // Those that the other one may hold, and the three that may wait for it.
    setup.exporter.publish(publish(5))?;
    wait_until(PATIENCE, || {
        let reader = &setup.exporter.stats()?.readers[1];
        let (sent, waiting) = (reader.sent, reader.waiting);
        Ok(((sent, waiting) != (4, 3)).then(|| format!("{sent} frames were sent, {waiting} wait")))
    })?;
    setup.exporter.execute(Command::Stall { us: 500_000 })?;
    setup.exporter.begin(&Command::Publish(publish(4)))?;
    // Time to lose a frame.
    std::thread::sleep(Duration::from_millis(200));
    readers[1].begin(&Command::Read(to_the_end()))?;
    setup.exporter.published()?;
    setup.exporter.execute(Command::EndOfStream)?;
    whole(&readers[1].was_read()?, 11)?;
    Ok(String::new())
}

/// A lost frame does not overtake a pending download of an earlier one; neither do a format and the
/// end of the stream. Metadata stays with its own frame.
fn nothing_passes(seed: u64) -> Result<String> {
    let setup = Setup::new(MemoryKind::Vmm, seed)?;
    let readers = Peer::some(1)?;
    setup.join(&readers, |number| reader(&setup, number, Policy::Latest))?;
    readers[0].begin(&Command::Read(to_the_end()))?;
    setup.exporter.execute(Command::Stall { us: FOREVER_US })?;
    // Oversized metadata, sent outside the metadata area.
    setup.exporter.publish(Publish { metadata: 1000, ..publish(1) })?;
    setup.exporter.execute(Command::Format { caps: "another".into() })?;
    setup.exporter.execute(Command::HostMemory { yes: true })?;
    setup.exporter.publish(publish(1))?;
    setup.exporter.execute(Command::EndOfStream)?;
    setup.exporter.execute(Command::Resume)?;
    let read = readers[0].was_read()?;
    ensure!(read.end == End::Stream && read.frames == 1 && read.wrong == 0, "{read:?}");
    ensure!(read.metadata == 8000, "{} bytes of metadata arrived", read.metadata);
    let lost = setup.exporter.stats()?.readers[0].lost;
    ensure!(lost == 1, "{lost} frames were lost instead of 1");
    Ok(String::new())
}

/// The same for a reader that spins when the frame arrives.
fn nothing_passes_at_once(seed: u64) -> Result<String> {
    const ROUNDS: u64 = 60;
    let setup = Setup::new(MemoryKind::Vmm, seed)?;
    let readers = Peer::some(1)?;
    setup.join(&readers, |number| Connect { spin: 100, ..reader(&setup, number, Policy::Lossless) })?;
    for round in 1..=ROUNDS {
        readers[0].begin(&Command::Read(to_the_end()))?;
        setup.exporter.publish(Publish { slow: Slow::Always(2_000), ..publish(1) })?;
        setup.exporter.execute(Command::EndOfStream)?;
        let read = readers[0].was_read()?;
        ensure!(read.end == End::Stream && read.frames == 1 && read.wrong == 0, "round {round}: {read:?}");
    }
    Ok(String::new())
}

/// A joining reader gets frames published from then on, and no earlier pending ones.
fn joins(seed: u64) -> Result<String> {
    let setup = Setup::new(MemoryKind::Vmm, seed)?;
    let readers = Peer::some(2)?;
    readers[0].connect(reader(&setup, 0, Policy::Lossless))?;
    readers[0].begin(&Command::Read(to_the_end()))?;
    setup.exporter.execute(Command::Stall { us: FOREVER_US })?;
    setup.exporter.publish(publish(1))?;
    readers[1].connect(reader(&setup, 1, Policy::Lossless))?;
    readers[1].begin(&Command::Read(to_the_end()))?;
    setup.exporter.publish(publish(2))?;
    setup.exporter.execute(Command::EndOfStream)?;
    setup.exporter.execute(Command::Resume)?;
    for (reader, frames) in readers.iter().zip([3, 2]) {
        whole(&reader.was_read()?, frames)?;
    }
    Ok(String::new())
}

/// Download buffers of former formats are freed.
fn formats_change(seed: u64) -> Result<String> {
    const ROUNDS: u64 = 40;
    /// Round after which all one-time resources exist.
    const SETTLED: u64 = 5;
    let setup = Setup::new(MemoryKind::Vmm, seed)?;
    let readers = Peer::some(1)?;
    setup.join(&readers, |number| reader(&setup, number, Policy::Lossless))?;
    readers[0].begin(&Command::Read(to_the_end()))?;
    let files = || frameshare_tests::census::descriptors(setup.exporter.pid());
    let mut before = 0;
    for round in 0..ROUNDS {
        if round == SETTLED {
            before = files()?;
        }
        setup.exporter.execute(Command::Format { caps: format!("round {round}") })?;
        let size = SIZE << (round % 3);
        setup.exporter.publish(Publish { size, drain: true, ..publish(2) })?;
    }
    wait_until(Duration::from_secs(5), || {
        let now = files()?;
        // The number of slots may vary by one or two generations.
        Ok((now > before + 8)
            .then(|| format!("{before} files are open after {SETTLED} rounds, {now} in the end")))
    })?;
    setup.exporter.execute(Command::EndOfStream)?;
    whole(&readers[0].was_read()?, 2 * ROUNDS)?;
    Ok(format!("{before} files are open after {SETTLED} rounds, {} in the end", files()?))
}

/// Dropping the exporter waits for no GPU work, downloads included.
fn stops(seed: u64) -> Result<String> {
    let setup = Setup::new(MemoryKind::Vmm, seed)?;
    let readers = Peer::some(1)?;
    setup.join(&readers, |number| reader(&setup, number, Policy::Lossless))?;
    readers[0].begin(&Command::Read(to_the_end()))?;
    setup.exporter.publish(Publish { drain: true, ..publish(3) })?;
    setup.exporter.execute(Command::Stall { us: 2 * PATIENCE_MS * 1000 })?;
    let ms = setup.exporter.number(Command::Unbind).context("dropping the exporter")?;
    ensure!(ms < PATIENCE_MS, "dropping the exporter took {ms} ms");
    setup.exporter.execute(Command::Resume)?;
    let read = readers[0].was_read()?;
    ensure!(read.frames == 3 && read.wrong == 0, "{read:?}");
    Ok(format!("{ms} ms"))
}

/// Where the driver registers no host memory, as here since it is registered already, frames are
/// downloaded all the same. No reader waits for another one's download, and the exporter for none.
fn unregistered(seed: u64) -> Result<String> {
    const FRAMES: u64 = 60;
    let mut counts = Vec::new();
    for count in [0, 2, 16] {
        let setup = Setup::new(MemoryKind::Vmm, seed)?;
        setup.exporter.execute(Command::RegisterHostSlots { size: SIZE, count })?;
        let readers = Peer::some(3)?;
        setup.join(&readers, |number| match number {
            0 => setup.lossless(0, None),
            _ => reader(&setup, number, Policy::Lossless),
        })?;
        let publish = Publish { slow: Slow::Sometimes(2000), drain: true, ..publish(FRAMES) };
        for read in setup.run(&readers, publish, |_| to_the_end())? {
            whole(&read, FRAMES).with_context(|| format!("{count} slots are registered already"))?;
        }
        let copies = setup.exporter.stats()?.copies;
        let of = |reason| copies.get(reason).copied().unwrap_or_default();
        let (registered, other) = (of("download"), of("download-unregistered"));
        let expected = match count {
            0 => other == 0,
            2 => other > 0,
            _ => registered == 0,
        };
        // The environment may withhold all registrations.
        let is_withheld = std::env::var_os("SIMCUDA_WITHHOLD").is_some();
        ensure!(expected || is_withheld, "{count} slots are registered already: {copies:?}");
        ensure!(registered + other == FRAMES, "{copies:?}");
        counts.push(format!("{count} slots registered already: {other} of {FRAMES}"));
    }
    Ok(counts.join("; "))
}

/// An exporter that may open no file allocates no host slot. A lossless reader waits for a slot
/// that there is and loses nothing; one that finds none is disconnected with the reason.
fn no_host_slot(seed: u64) -> Result<String> {
    // The simulated driver names shared words by a file, which the exporter cannot open meanwhile.
    order::expect(Expected::Any);
    let bind = Bind { memory: Some(MemoryKind::Vmm), max_slots: Some(10), ..Bind::default() };
    let setup = Setup::with(seed, bind)?;
    let readers = Peer::some(1)?;
    setup.join(&readers, |number| reader(&setup, number, Policy::Lossless))?;
    readers[0].begin(&Command::Read(Read { frames: Some(2), hold: 2, ..to_the_end() }))?;
    for _ in 0..2 {
        setup.exporter.publish(Publish { pace_us: 50_000, ..publish(1) })?;
    }
    ensure!(readers[0].was_read()?.end == End::Enough, "the reader does not hold two frames");
    setup.exporter.execute(Command::LimitFiles { limited: true })?;
    setup.exporter.begin(&Command::Publish(Publish { drain: true, ..publish(4) }))?;
    // Time to lose a frame.
    std::thread::sleep(Duration::from_millis(200));
    readers[0].execute(Command::ReleaseHeld { count: 2 })?;
    readers[0].begin(&Command::Read(to_the_end()))?;
    setup.exporter.published()?;
    // A larger frame fits into none of the slots.
    setup.exporter.execute(Command::LimitFiles { limited: false })?;
    setup.exporter.number(Command::HoldSlots { size: 4 * SIZE })?;
    setup.exporter.execute(Command::LimitFiles { limited: true })?;
    setup.exporter.execute(Command::PublishHeld)?;
    let WasRead { frames, lost, wrong, end, .. } = readers[0].was_read()?;
    ensure!(
        (frames, lost, wrong) == (4, 0, 0),
        "{frames} of 4 frames arrived, {lost} were lost, {wrong} are wrong"
    );
    let End::Error { text, .. } = end else { bail!("the reader ended with {end:?}") };
    ensure!(text.contains("cannot copy its frames to host memory"), "{text}");
    Ok(text)
}

/// A reader with a GPU that has no kind of fence in common with the exporter gets host frames if
/// it takes them. Negative control: it is refused if it does not.
fn no_common_fence(seed: u64) -> Result<String> {
    const FRAMES: u64 = 40;
    for (ours, theirs) in [(FenceKind::Event, FenceKind::Timeline), (FenceKind::Timeline, FenceKind::Event)] {
        let bind = Bind { memory: Some(MemoryKind::Vmm), fence: Some(ours), ..Bind::default() };
        let setup = Setup::with(seed, bind)?;
        let readers = Peer::some(2)?;
        let connect =
            |number, host_fallback| Connect { host_fallback, ..setup.lossless(number, Some(theirs)) };
        let Err(refused) = readers[1].connect(connect(1, false)) else {
            bail!("a reader with {theirs} fences was admitted by an exporter with {ours} fences")
        };
        let refusal = format!("{refused:#}");
        ensure!(refusal.contains("no kind of fence in common"), "{refusal}");
        readers[1].connect(Connect { fence: Some(ours), ..connect(1, false) })?;
        readers[0].connect(connect(0, true))?;
        let stats = setup.exporter.stats()?;
        let choices: Vec<_> = stats.readers.iter().map(|reader| &reader.fence).collect();
        let is_told =
            choices.iter().any(|why| why.contains("downloaded") && why.contains("no kind of fence"));
        ensure!(is_told, "{choices:?}");
        let publish = Publish { slow: Slow::Sometimes(2000), ..publish(FRAMES) };
        for read in setup.run(&readers, publish, |_| to_the_end())? {
            whole(&read, FRAMES).with_context(|| format!("{ours}, {theirs}"))?;
        }
        let downloads = setup.exporter.stats()?.copies;
        ensure!(downloads.values().sum::<u64>() == FRAMES, "{downloads:?}");
    }
    Ok(String::new())
}

/// Memory shared in place is returned while the exporter lives, after its frame was read or a
/// driver call failed. The injected faults of the simulated driver hit the signaling of the frame
/// or the check of its download.
fn notified_whatever(seed: u64) -> Result<String> {
    let setup = Setup::new(MemoryKind::Vmm, seed)?;
    let readers = Peer::some(2)?;
    setup.join(&readers, |number| match number {
        0 => setup.lossless(0, Some(FenceKind::Timeline)),
        _ => reader(&setup, number, Policy::Lossless),
    })?;
    // The readers use no events, so that only the downloads' events are queried.
    for (reader, what) in readers.iter().zip([Use::Touch, Use::Check]) {
        reader.begin(&Command::Read(Read { frames: Some(1), what, ..to_the_end() }))?;
    }
    let adopted = setup.exporter.number(Command::Adopt { size: SIZE, slow: Slow::Never });
    let mut frames = 0;
    for reader in &readers {
        frames += reader.was_read()?.frames;
        reader.execute(Command::Disconnect)?;
    }
    let notified = setup.exporter.number(Command::RetireAdopted { ms: PATIENCE_MS })?;
    ensure!(
        notified == 1,
        "the owner was not notified, {frames} readers got the frame, published: {adopted:?}"
    );
    Ok(format!("{frames} readers got the frame, published: {}", adopted.is_ok()))
}
