// SPDX-License-Identifier: MIT OR Apache-2.0

//! Crashes of peers and losses of CUDA contexts: the survivors continue within the fence timeout
//! and lose no frames.

use std::fmt::{self, Display, Formatter};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use frameshare::{FenceKind, MemoryKind};
use frameshare_gpu_harness::{
    Failed, Skip,
    mps::{self, Mps},
};

use super::{
    Case, FENCES, FOREVER_US, KINDS, Needs, PATIENCE, PATIENCE_MS, SIZE, Setup, each_kind, to_the_end, whole,
};
use crate::job::{Bind, Command, Connect, End, Publish, Read, WasRead};
use crate::peer::Peer;

const SUITE: &str = "engine-crashes";

pub const CASES: &[Case] = &[
    crash("reader-killed-with-a-release-pending", reader_killed),
    crash("reader-lives-with-a-release-pending", reader_stuck),
    crash("reader-leaves-with-a-release-pending", reader_leaves_stuck),
    crash("reader-loses-its-context", reader_loses_context),
    crash("reader-loses-its-context-when-it-has-left", reader_loses_context_later),
    crash("reader-killed-after-recording-over-ready-events", reader_recorded_over),
    crash("exporter-killed-under-an-app-that-waits-for-its-stream", exporter_killed_under_app),
    crash("exporter-killed-with-a-frame-pending", exporter_killed_stalled),
    crash("exporter-killed-with-many-frames-queued", exporter_killed_loaded),
    crash("exporter-killed-under-readers-of-written-frames", exporter_killed_unseen),
    crash("exporter-killed-under-streams-that-wait-for-events", exporter_killed_under_events),
    crash("exporters-killed-under-a-stream-that-is-stuck-anyway", exporters_killed_under_stuck),
    crash("exporter-loses-its-context", exporter_loses_context),
];

const fn crash(name: &'static str, conduct: fn(u64) -> Result<String>) -> Case {
    Case { suite: SUITE, name, seconds: 150, needs: Needs::Nothing, conduct }
}

/// A stream with a victim and two witnesses, one of which uses the other kind of fence.
struct Scenario {
    setup: Setup,
    victim: Peer,
    witnesses: Vec<Peer>,
}

/// Frames per case, and their interval.
const FRAMES: u64 = 100;
const PACE_US: u64 = 4_000;

impl Scenario {
    fn new(kind: MemoryKind, fence: FenceKind, seed: u64) -> Result<Scenario> {
        Scenario::at(Setup::new(kind, seed)?, fence)
    }

    fn with_deadline(kind: MemoryKind, fence: FenceKind, seed: u64) -> Result<Scenario> {
        Scenario::at(Setup::with_deadline(kind, seed)?, fence)
    }

    fn at(setup: Setup, fence: FenceKind) -> Result<Scenario> {
        let (victim, witnesses) = (Peer::new()?, Peer::some(2)?);
        setup.join(&witnesses, |number| setup.lossless(number, Some(FENCES[number % 2])))?;
        victim.connect(setup.lossless(9, Some(fence)))?;
        setup.await_readers(3)?;
        for witness in &witnesses {
            witness.begin(&Command::Read(to_the_end()))?;
        }
        Ok(Scenario { setup, victim, witnesses })
    }

    fn publish(&self) -> Result<()> {
        let publish = Publish { frames: FRAMES, size: SIZE, pace_us: PACE_US, ..Publish::default() };
        self.setup.exporter.begin(&Command::Publish(publish))
    }

    /// Checks that the exporter waited for less than the timeout of a slow reader and that the
    /// witnesses got every frame. Then the size of frames changes, and readers must release their
    /// old imports.
    fn survives(&self) -> Result<HeldUp> {
        let published = self.setup.exporter.published()?;
        let mut held_up = HeldUp { exporter: published.longest_gap_ms, witnesses: 0.0 };
        let most = PATIENCE_MS as f64;
        ensure!(held_up.exporter < most, "the exporter was blocked for {:.0} ms", held_up.exporter);
        self.setup.exporter.execute(Command::EndOfStream)?;
        for witness in &self.witnesses {
            let read = witness.was_read()?;
            whole(&read, FRAMES)?;
            held_up.witnesses = held_up.witnesses.max(read.longest_gap_ms);
        }
        let joining = Peer::some(1)?;
        let begin = Instant::now();
        joining[0].connect(self.setup.lossless(10, None))?;
        ensure!(begin.elapsed() < PATIENCE, "a joining reader waited for {:?}", begin.elapsed());
        Ok(held_up)
    }

    /// Checks that memory of the former frame size is freed after the victim's process has exited.
    fn frees_memory(&self) -> Result<()> {
        self.renews_memory()?;
        self.setup.frees_retired()
    }

    /// Publishes frames in new memory and frees as much of the old as possible.
    fn renews_memory(&self) -> Result<()> {
        for witness in &self.witnesses {
            witness.begin(&Command::Read(Read { frames: Some(4), ..to_the_end() }))?;
        }
        self.setup.exporter.execute(Command::Format { caps: "another".into() })?;
        self.setup.exporter.publish(Publish { frames: 4, size: 4 * SIZE, ..Publish::default() })?;
        for witness in &self.witnesses {
            let read = witness.was_read()?;
            ensure!(read.wrong == 0, "after the crash: {:?}", read.first_wrong);
        }
        Ok(())
    }
}

/// Longest interruption of the survivors, in ms.
#[derive(Default)]
struct HeldUp {
    exporter: f64,
    witnesses: f64,
}

impl HeldUp {
    fn max(self, other: HeldUp) -> HeldUp {
        HeldUp { exporter: self.exporter.max(other.exporter), witnesses: self.witnesses.max(other.witnesses) }
    }
}

impl Display for HeldUp {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let HeldUp { exporter, witnesses } = self;
        write!(
            f,
            "the exporter was blocked for {exporter:.1} ms at most, its other readers for {witnesses:.1} ms"
        )
    }
}

/// Runs a case with each kind of memory and fence.
fn everywhere(mut one: impl FnMut(MemoryKind, FenceKind) -> Result<HeldUp>) -> Result<String> {
    let mut longest = HeldUp::default();
    for kind in KINDS {
        for fence in FENCES {
            longest = longest.max(one(kind, fence).with_context(|| format!("{kind} {fence}"))?);
        }
    }
    Ok(longest.to_string())
}

/// Reads frames on a stream that never reaches them.
pub(super) fn read_and_stick(victim: &Peer, frames: u64) -> Result<()> {
    victim.execute(Command::StallReading { us: FOREVER_US })?;
    let read = Read { frames: Some(frames), settle_ms: Some(0), ..to_the_end() };
    victim.begin(&Command::Read(read))
}

/// A reader is killed while all of its release fences are pending. The exporter waits for it, since
/// it is lossless, until the process has exited and no longer.
fn reader_killed(seed: u64) -> Result<String> {
    everywhere(|kind, fence| {
        let mut scenario = Scenario::new(kind, fence, seed)?;
        read_and_stick(&scenario.victim, 4)?;
        scenario.publish()?;
        let read = scenario.victim.was_read()?;
        ensure!(read.stuck == 4, "{} of 4 downloads are pending", read.stuck);
        std::thread::sleep(Duration::from_millis(100));
        scenario.victim.kill()?;
        let held_up = scenario.survives()?;
        scenario.frees_memory()?;
        Ok(held_up)
    })
}

/// The same reader stays alive: it counts as dead when its fences are pending longer than the
/// timeout.
fn reader_stuck(seed: u64) -> Result<String> {
    everywhere(|kind, fence| {
        let mut scenario = Scenario::with_deadline(kind, fence, seed)?;
        read_and_stick(&scenario.victim, 4)?;
        scenario.publish()?;
        scenario.victim.was_read()?;
        let held_up = scenario.survives()?;
        let notices = scenario.setup.exporter.texts(Command::Notices)?;
        let name = format!("removed {}", scenario.victim.pid());
        let why =
            notices.into_iter().find(|notice| notice.starts_with(&name)).context("no reader was evicted")?;
        ensure!(why.contains("fence timeout"), "{why}");
        let end = scenario.victim.read(Read { settle_ms: Some(0), ..to_the_end() })?.end;
        ensure!(matches!(&end, End::Error { kind, .. } if kind == "CutOff"), "the reader ended with {end:?}");
        scenario.victim.kill()?;
        scenario.frees_memory()?;
        Ok(held_up)
    })
}

/// A reader leaves and its release fences are never signaled: it counts as dead after the timeout.
fn reader_leaves_stuck(seed: u64) -> Result<String> {
    everywhere(|kind, fence| {
        let mut scenario = Scenario::with_deadline(kind, fence, seed)?;
        scenario.victim.execute(Command::StallReading { us: FOREVER_US })?;
        let read = Read { frames: Some(4), settle_ms: Some(0), leave: true, ..to_the_end() };
        scenario.victim.begin(&Command::Read(read))?;
        scenario.publish()?;
        let read = scenario.victim.was_read()?;
        ensure!(read.stuck == 4, "{} of 4 downloads are pending", read.stuck);
        let held_up = scenario.survives()?;
        scenario.setup.gets_all_slots_back(PATIENCE)?;
        scenario.victim.kill()?;
        scenario.frees_memory()?;
        Ok(held_up)
    })
}

/// A reader's context is lost while its process lives: its held frames are never released and its
/// imports never closed.
fn reader_loses_context(seed: u64) -> Result<String> {
    require_contained_faults()?;
    everywhere(|kind, fence| {
        let mut scenario = Scenario::with_deadline(kind, fence, seed)?;
        scenario.victim.begin(&Command::Read(Read { frames: Some(2), hold: 2, ..to_the_end() }))?;
        scenario.publish()?;
        scenario.victim.was_read()?;
        lose_context(&scenario.victim)?;
        scenario.victim.execute(Command::ReleaseHeld { count: 2 })?;
        let held_up = scenario.survives()?;
        scenario.victim.execute(Command::Disconnect)?;
        let notices = scenario.setup.exporter.texts(Command::Notices)?;
        let name = format!("removed {}", scenario.victim.pid());
        // By its own report, with the error of its driver.
        ensure!(
            notices.iter().any(|notice| notice.starts_with(&name) && notice.contains("CUDA_ERROR")),
            "the reader was not evicted for the loss of its context: {notices:?}"
        );
        scenario.renews_memory()?;
        scenario.victim.kill()?;
        scenario.setup.frees_retired()?;
        Ok(held_up)
    })
}

/// A fault of one reader must leave the others' contexts intact.
fn require_contained_faults() -> Result<()> {
    match mps::here() {
        Mps::None => Ok(()),
        _ => Err(Skip("under MPS a reader's fault ends its peers' contexts: see engine-mps".into()).into()),
    }
}

/// A process that is killed with work which never ends must leave the streams of others alone.
/// Under MPS its work stays, and blocks the streams of other clients (measured on an H200, driver
/// 580).
fn require_own_streams() -> Result<()> {
    match mps::here() {
        Mps::None | Mps::Readers => Ok(()),
        Mps::All => Err(Skip("under MPS endless work of a dead client blocks the others".into()).into()),
    }
}

/// The same, after the reader left with two held frames, one of which it releases.
fn reader_loses_context_later(seed: u64) -> Result<String> {
    require_contained_faults()?;
    everywhere(|kind, fence| {
        let mut scenario = Scenario::with_deadline(kind, fence, seed)?;
        scenario.victim.begin(&Command::Read(Read { frames: Some(2), hold: 2, ..to_the_end() }))?;
        scenario.publish()?;
        scenario.victim.was_read()?;
        scenario.victim.execute(Command::Disconnect)?;
        lose_context(&scenario.victim)?;
        scenario.victim.execute(Command::ReleaseHeld { count: 1 })?;
        let held_up = scenario.survives()?;
        scenario.setup.gets_all_slots_back(PATIENCE)?;
        scenario.victim.execute(Command::ReleaseHeld { count: 1 })?;
        scenario.renews_memory()?;
        scenario.victim.kill()?;
        scenario.setup.frees_retired()?;
        Ok(held_up)
    })
}

/// A reader records again the ready events it received, and dies. Recording such an event again
/// blocks the recording stream, which is only the signal stream of that reader. Memory that could
/// be freed then must stay: the driver would wait for that stream, and hold up other threads.
fn reader_recorded_over(seed: u64) -> Result<String> {
    require_own_streams()?;
    let mut longest = HeldUp::default();
    for kind in KINDS {
        let mut scenario = Scenario::new(kind, FenceKind::Timeline, seed)?;
        let mut rogue = Peer::new()?;
        let connect = Connect { max_held: Some(3), ..scenario.setup.lossless(8, Some(FenceKind::Event)) };
        rogue.execute(Command::Rogue(connect))?;
        scenario.victim.kill()?;
        scenario.setup.await_readers(3)?;
        rogue.execute(Command::RecordOver { us: FOREVER_US })?;
        scenario.setup.exporter.execute(Command::DropRegistered { us: 50_000 })?;
        scenario.publish()?;
        std::thread::sleep(Duration::from_millis(100));
        rogue.kill()?;
        longest = longest.max(scenario.survives().with_context(|| kind.to_string())?);
        scenario.frees_memory()?;
    }
    Ok(longest.to_string())
}

/// An app that waits for its stream requests no further frame meanwhile; the engine must release
/// its stream nevertheless.
fn exporter_killed_under_app(seed: u64) -> Result<String> {
    require_own_streams()?;
    each_kind(|kind| app_is_set_free(kind, seed))
}

fn app_is_set_free(kind: MemoryKind, seed: u64) -> Result<String> {
    let mut setup = Setup::new(kind, seed)?;
    let readers = Peer::some(2)?;
    setup.join(&readers, |number| setup.lossless(number, Some(FenceKind::Timeline)))?;
    for reader in &readers {
        let read = Read { at_once_ms: Some(PATIENCE_MS), settle_ms: Some(0), ..to_the_end() };
        reader.begin(&Command::Read(read))?;
    }
    publish_at_once(&setup.exporter, 4)?;
    setup.exporter.execute(Command::Stall { us: FOREVER_US })?;
    setup.exporter.publish(Publish { frames: 2, size: SIZE, ..Publish::default() })?;
    std::thread::sleep(Duration::from_millis(50));
    let begin = Instant::now();
    setup.exporter.kill()?;
    for reader in &readers {
        let read = reader.was_read()?;
        let gone =
            matches!(&read.end, End::Error { kind, torn, .. } if kind == "Gone" && *torn >= read.wrong);
        ensure!(gone, "{:?}", read.end);
    }
    let took = begin.elapsed();
    ensure!(took < PATIENCE, "the app's stream was released only after {took:?}");
    Ok(format!("the app's stream was released {} ms after the kill", took.as_millis()))
}

/// Loses the context of a peer, in the way that this driver allows.
pub(super) fn lose_context(peer: &Peer) -> Result<()> {
    let lost = peer.execute(Command::LoseContext);
    if let Some(failed) = lost.as_ref().err().and_then(|error| error.downcast_ref::<Failed>())
        && failed.code.is_none()
    {
        return Err(Skip(failed.to_string()).into());
    }
    lost
}

/// Runs three readers whose streams wait for the exporter; `pending` queues the work that does not
/// complete. Returns the read results, and how long after the kill the last reader reported it.
fn exporter_killed(
    kind: MemoryKind,
    fence: FenceKind,
    waits: bool,
    seed: u64,
    pending: impl Fn(&Peer) -> Result<()>,
) -> Result<(Vec<WasRead>, ErrorDelay)> {
    let bind = Bind { memory: Some(kind), max_slots: Some(256), max_held_limit: Some(64), ..Bind::default() };
    let mut setup = Setup::with(seed, bind)?;
    let readers = Peer::some(3)?;
    setup.join(&readers, |number| Connect {
        written_only: !waits,
        max_held: Some(64),
        ..setup.lossless(number, Some(fence))
    })?;
    // Streams that wait for events are not expected to be released.
    let settle_ms = if waits && fence == FenceKind::Event { 3000 } else { PATIENCE_MS };
    for reader in &readers {
        let read = Read { settle_ms: Some(settle_ms), without_wait: !waits, ..to_the_end() };
        reader.begin(&Command::Read(read))?;
    }
    setup.exporter.publish(Publish { frames: 5, size: SIZE, drain: true, ..Publish::default() })?;
    pending(&setup.exporter)?;
    // Only readers whose streams wait for fences get unwritten frames.
    if waits {
        setup.await_taken()?;
    }
    let killed_at = frameshare::monotonic_ns();
    setup.exporter.kill()?;
    let reads = readers.iter().map(Peer::was_read).collect::<Result<Vec<_>>>()?;
    let delay = ErrorDelay::of(&reads, killed_at);
    ensure!(delay.0 < 1000.0, "{delay}");
    for reader in &readers {
        let begin = Instant::now();
        reader.execute(Command::Disconnect)?;
        ensure!(begin.elapsed() < Duration::from_secs(1), "a reader stopped after {:?}", begin.elapsed());
    }
    Ok((reads, delay))
}

/// Time from an exporter's death until the last reader reported it, in ms.
#[derive(Clone, Copy, Default)]
struct ErrorDelay(f64);

impl ErrorDelay {
    fn of<'r>(reads: impl IntoIterator<Item = &'r WasRead>, since: u64) -> ErrorDelay {
        let ended_at = reads.into_iter().map(|read| read.ended_at).max().unwrap_or(since);
        ErrorDelay(ended_at.saturating_sub(since) as f64 / 1e6)
    }

    fn max(self, other: ErrorDelay) -> ErrorDelay {
        ErrorDelay(self.0.max(other.0))
    }
}

impl Display for ErrorDelay {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "all readers reported the loss after {:.1} ms", self.0)
    }
}

/// Checks that streams waiting for a timeline value of the dead exporter were released, and that
/// frames read then are counted as torn.
fn unblocked(read: &WasRead) -> Result<()> {
    let End::Error { kind, torn, .. } = &read.end else { anyhow::bail!("reading ended with {:?}", read.end) };
    ensure!(kind == "Gone" && *torn > 0, "reading ended with {:?}", read.end);
    ensure!(read.stuck == 0, "{} downloads do not complete", read.stuck);
    ensure!(read.wrong <= *torn, "{} frames are wrong, but only {torn} are counted as torn", read.wrong);
    Ok(())
}

fn summary(reads: &[WasRead], delay: ErrorDelay) -> String {
    let most = |of: fn(&WasRead) -> u64| reads.iter().map(of).max().unwrap_or(0);
    let torn = most(|read| if let End::Error { torn, .. } = read.end { torn } else { 0 });
    format!(
        "{delay}, and their streams were released {} ms later; of {} frames {torn} torn, {} wrong at most",
        most(|read| read.settled_ms),
        most(|read| read.frames),
        most(|read| read.wrong),
    )
}

/// The exporter's stream is stalled: work queued behind the stall never runs.
fn exporter_killed_stalled(seed: u64) -> Result<String> {
    require_own_streams()?;
    each_kind(|kind| {
        let (reads, delay) = exporter_killed(kind, FenceKind::Timeline, true, seed, |exporter| {
            exporter.execute(Command::Stall { us: FOREVER_US })?;
            exporter.publish(Publish { frames: 60, size: SIZE, ..Publish::default() }).map(|_| ())
        })?;
        for read in &reads {
            unblocked(read)?;
            ensure!(read.frames == 65, "{} of 65 frames were delivered", read.frames);
        }
        Ok(summary(&reads, delay))
    })
}

/// The exporter's GPU is busy: its queue continues for a while after the kill, and overwrites the
/// values that the survivors store with older ones.
fn exporter_killed_loaded(seed: u64) -> Result<String> {
    each_kind(|kind| {
        let (reads, delay) = exporter_killed(kind, FenceKind::Timeline, true, seed, |exporter| {
            // Slightly more than a queue accepts: the rest is waited for here.
            let publish = Publish { frames: 20, size: SIZE, load: 32, ..Publish::default() };
            exporter.publish(publish).map(|_| ())
        })?;
        for read in &reads {
            unblocked(read)?;
        }
        Ok(summary(&reads, delay))
    })
}

/// Publishes frames none of which is written before the last is published, so that each has its own
/// slot, and waits until they are read. The same number of further frames then needs no slot that
/// readers have not imported: `legacy` memory of a dead exporter cannot be imported, and frames in
/// such slots are lost.
fn publish_at_once(exporter: &Peer, frames: u64) -> Result<()> {
    exporter.execute(Command::Stall { us: FOREVER_US })?;
    exporter.publish(Publish { frames, size: SIZE, ..Publish::default() })?;
    exporter.execute(Command::Resume)?;
    exporter.execute(Command::Drain { ms: PATIENCE_MS })
}

/// Readers that get only written frames report the loss with nothing stuck or torn; unwritten
/// frames are lost.
fn exporter_killed_unseen(seed: u64) -> Result<String> {
    require_own_streams()?;
    each_kind(|kind| {
        let mut last = ErrorDelay::default();
        for fence in FENCES {
            let (reads, delay) = exporter_killed(kind, fence, false, seed, |exporter| {
                exporter.execute(Command::Stall { us: FOREVER_US })?;
                exporter.publish(Publish { frames: 20, size: SIZE, ..Publish::default() }).map(|_| ())
            })?;
            for read in reads {
                let gone = matches!(&read.end, End::Error { kind, torn: 0, lost: 20, .. } if kind == "Gone");
                ensure!(gone && read.frames == 5 && read.wrong == 0 && read.stuck == 0, "{fence}: {read:?}");
            }
            last = last.max(delay);
        }
        Ok(last.to_string())
    })
}

/// CUDA events have this cost: the stream stays stuck. The reader gets an error, and no frame that
/// it checked was wrong.
fn exporter_killed_under_events(seed: u64) -> Result<String> {
    require_own_streams()?;
    each_kind(|kind| {
        let (reads, delay) = exporter_killed(kind, FenceKind::Event, true, seed, |exporter| {
            exporter.execute(Command::Stall { us: FOREVER_US })?;
            exporter.publish(Publish { frames: 20, size: SIZE, ..Publish::default() }).map(|_| ())
        })?;
        for read in &reads {
            let gone = matches!(&read.end, End::Error { kind, torn: 20, .. } if kind == "Gone");
            ensure!(gone && read.wrong == 0, "{read:?}");
            ensure!(read.stuck == 20, "{} of 20 downloads do not complete", read.stuck);
        }
        Ok(format!("{delay}; as documented, 20 downloads do not complete"))
    })
}

/// Streams that are blocked for good by other work cannot be released. Handling them takes one
/// thread with very few wake-ups, however many exporters die.
fn exporters_killed_under_stuck(seed: u64) -> Result<String> {
    require_own_streams()?;
    const EXPORTERS: usize = 4;
    let reader = Peer::new()?;
    let mut last = ErrorDelay::default();
    for number in 0..EXPORTERS {
        let kind = KINDS[number % KINDS.len()];
        let mut setup = Setup::new(kind, seed)?;
        reader.connect(setup.lossless(0, Some(FenceKind::Timeline)))?;
        setup.await_readers(1)?;
        reader.execute(Command::StallReading { us: FOREVER_US })?;
        reader.begin(&Command::Read(Read { settle_ms: Some(0), ..to_the_end() }))?;
        setup.exporter.execute(Command::Stall { us: FOREVER_US })?;
        setup.exporter.publish(Publish { frames: 2, size: SIZE, ..Publish::default() })?;
        setup.await_taken()?;
        let killed_at = frameshare::monotonic_ns();
        setup.exporter.kill()?;
        let read = reader.was_read()?;
        let gone = matches!(&read.end, End::Error { kind, torn: 2, .. } if kind == "Gone");
        ensure!(gone && read.stuck == 2, "{kind}: {read:?}");
        last = last.max(ErrorDelay::of([&read], killed_at));
    }
    reader.execute(Command::Disconnect)?;
    std::thread::sleep(Duration::from_secs(3));
    let (threads, before) = own_threads(&reader)?;
    std::thread::sleep(Duration::from_secs(1));
    let (_, after) = own_threads(&reader)?;
    ensure!(threads.len() <= 2, "after {EXPORTERS} exporters these threads remain: {threads:?}");
    let woken = after - before;
    ensure!(woken < 200, "{threads:?} wake up {woken} times a second");
    Ok(format!("{last}; {threads:?} wake up {woken} times a second"))
}

/// Returns the engine's threads in a process, and their number of voluntary context switches.
fn own_threads(peer: &Peer) -> Result<(Vec<String>, u64)> {
    let (mut names, mut sleeps) = (Vec::new(), 0);
    for thread in std::fs::read_dir(format!("/proc/{}/task", peer.pid()))? {
        let thread = thread?.path();
        // A thread that has ended meanwhile is not counted.
        let Ok(status) = std::fs::read_to_string(thread.join("status")) else { continue };
        let value = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let name = value("Name:").context("no thread name in /proc")?;
        if name.starts_with("frameshare") {
            names.push(name.to_owned());
            sleeps += value("voluntary_ctxt_switches:")
                .context("no context switch count in /proc")?
                .parse::<u64>()?;
        }
    }
    Ok((names, sleeps))
}

/// The exporter's context is lost while its process lives: the exporter gets an error, and the
/// readers do when it stops.
fn exporter_loses_context(seed: u64) -> Result<String> {
    if mps::here() == Mps::All {
        return Err(
            Skip("under MPS the exporter's fault ends the readers' contexts: see engine-mps".into()).into()
        );
    }
    each_kind(|kind| {
        let mut last = ErrorDelay::default();
        for fence in FENCES {
            last = last.max(exporter_gives_up(kind, fence, seed).with_context(|| fence.to_string())?);
        }
        Ok(last.to_string())
    })
}

fn exporter_gives_up(kind: MemoryKind, fence: FenceKind, seed: u64) -> Result<ErrorDelay> {
    let setup = Setup::new(kind, seed)?;
    let readers = Peer::some(2)?;
    setup.join(&readers, |number| setup.lossless(number, Some(fence)))?;
    for reader in &readers {
        reader.begin(&Command::Read(Read { settle_ms: Some(PATIENCE_MS), ..to_the_end() }))?;
    }
    setup.exporter.publish(Publish { frames: 20, size: SIZE, ..Publish::default() })?;
    lose_context(&setup.exporter)?;
    let (begin, begun_at) = (Instant::now(), frameshare::monotonic_ns());
    let published = setup.exporter.publish(Publish { frames: 1, size: SIZE, ..Publish::default() });
    ensure!(published.is_err(), "a frame was published in a lost context");
    let took = setup.exporter.number(Command::Unbind)?;
    ensure!(took < PATIENCE_MS, "the exporter took {took} ms to stop");
    let reads = readers.iter().map(Peer::was_read).collect::<Result<Vec<_>>>()?;
    for read in &reads {
        ensure!(matches!(read.end, End::Error { .. }), "{:?}", read.end);
        ensure!(read.wrong == 0 && read.stuck == 0 && read.frames == 20, "{read:?}");
    }
    ensure!(begin.elapsed() < PATIENCE, "after {:?}", begin.elapsed());
    Ok(ErrorDelay::of(&reads, begun_at))
}
