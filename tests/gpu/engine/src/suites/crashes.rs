//! Peers that die, or whose GPU does: the others go on when the fence's deadline is over, if not before, and lose
//! nothing.

use std::fmt::{self, Display, Formatter};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use frameshare::{FenceKind, MemoryKind};
use frameshare_gpu_harness::{Failed, Skip};

use super::{
    Case, FENCES, FOREVER_US, KINDS, Needs, PATIENCE, PATIENCE_MS, SIZE, Stage, each_kind, to_the_end, whole,
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

/// A stream with a victim and two witnesses, of whom one has the other kind of fence.
struct Scene {
    stage: Stage,
    victim: Peer,
    witnesses: Vec<Peer>,
}

/// Frames of a scene, and how far they are apart.
const FRAMES: u64 = 100;
const PACE_US: u64 = 4_000;

impl Scene {
    fn new(kind: MemoryKind, fence: FenceKind, seed: u64) -> Result<Scene> {
        Scene::at(Stage::new(kind, seed)?, fence)
    }

    fn with_deadline(kind: MemoryKind, fence: FenceKind, seed: u64) -> Result<Scene> {
        Scene::at(Stage::with_deadline(kind, seed)?, fence)
    }

    fn at(stage: Stage, fence: FenceKind) -> Result<Scene> {
        let (victim, witnesses) = (Peer::new()?, Peer::some(2)?);
        stage.join(&witnesses, |number| Connect {
            gpu_wait: Some(true),
            ..stage.lossless(number, Some(FENCES[number % 2]))
        })?;
        victim.connect(Connect { gpu_wait: Some(true), ..stage.lossless(9, Some(fence)) })?;
        stage.await_readers(3)?;
        for witness in &witnesses {
            witness.begin(&Command::Read(to_the_end()))?;
        }
        Ok(Scene { stage, victim, witnesses })
    }

    fn publish(&self) -> Result<()> {
        let publish = Publish { frames: FRAMES, size: SIZE, pace_us: PACE_US, ..Publish::default() };
        self.stage.exporter.begin(&Command::Publish(publish))
    }

    /// The exporter did not wait as long as it does for a slow reader, and the witnesses have seen everything. Then what
    /// they and the victim had imported is given up for frames of another size.
    fn survives(&self) -> Result<HeldUp> {
        let published = self.stage.exporter.published()?;
        let mut held_up = HeldUp { exporter: published.longest_gap_ms, witnesses: 0.0 };
        let most = PATIENCE_MS as f64;
        ensure!(held_up.exporter < most, "the exporter was held up for {:.0} ms", held_up.exporter);
        self.stage.exporter.tell(Command::EndOfStream)?;
        for witness in &self.witnesses {
            let read = witness.was_read()?;
            whole(&read, FRAMES)?;
            held_up.witnesses = held_up.witnesses.max(read.longest_gap_ms);
        }
        let newcomer = Peer::some(1)?;
        let begin = Instant::now();
        newcomer[0].connect(self.stage.lossless(10, None))?;
        ensure!(begin.elapsed() < PATIENCE, "a newcomer waits for {:?}", begin.elapsed());
        Ok(held_up)
    }

    /// Memory of frames of another size than now comes free, the victim's process being gone.
    fn frees_memory(&self) -> Result<()> {
        self.renews_memory()?;
        self.stage.frees_retired()
    }

    /// Frames go to other memory, and what can be of the former is freed.
    fn renews_memory(&self) -> Result<()> {
        for witness in &self.witnesses {
            witness.begin(&Command::Read(Read { frames: Some(4), ..to_the_end() }))?;
        }
        self.stage.exporter.tell(Command::Format { caps: "another".into() })?;
        self.stage.exporter.publish(Publish { frames: 4, size: 4 * SIZE, ..Publish::default() })?;
        for witness in &self.witnesses {
            let read = witness.was_read()?;
            ensure!(read.wrong == 0, "after the crash: {:?}", read.first_wrong);
        }
        Ok(())
    }
}

/// For how many ms those that survive stood still at most.
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
            "the exporter was held up for {exporter:.1} ms at most, its other readers for {witnesses:.1} ms"
        )
    }
}

/// Each kind and fence.
fn everywhere(mut one: impl FnMut(MemoryKind, FenceKind) -> Result<HeldUp>) -> Result<String> {
    let mut longest = HeldUp::default();
    for kind in KINDS {
        for fence in FENCES {
            longest = longest.max(one(kind, fence).with_context(|| format!("{kind} {fence}"))?);
        }
    }
    Ok(longest.to_string())
}

/// Reads some frames on a stream that never gets to them.
fn read_and_stick(victim: &Peer, frames: u64) -> Result<()> {
    victim.tell(Command::StallReading { us: FOREVER_US })?;
    let read = Read { frames: Some(frames), settle_ms: Some(0), ..to_the_end() };
    victim.begin(&Command::Read(read))
}

/// A reader is killed whose release fences are pending, all of them: the exporter waits for it, being lossless, until it
/// is gone, and not a moment longer.
fn reader_killed(seed: u64) -> Result<String> {
    everywhere(|kind, fence| {
        let mut scene = Scene::new(kind, fence, seed)?;
        read_and_stick(&scene.victim, 4)?;
        scene.publish()?;
        let read = scene.victim.was_read()?;
        ensure!(read.stuck == 4, "{} of 4 downloads are stuck", read.stuck);
        std::thread::sleep(Duration::from_millis(100));
        scene.victim.kill()?;
        let held_up = scene.survives()?;
        scene.frees_memory()?;
        Ok(held_up)
    })
}

/// The same reader lives on: it counts as dead when its fences are pending for too long.
fn reader_stuck(seed: u64) -> Result<String> {
    everywhere(|kind, fence| {
        let mut scene = Scene::with_deadline(kind, fence, seed)?;
        read_and_stick(&scene.victim, 4)?;
        scene.publish()?;
        scene.victim.was_read()?;
        let held_up = scene.survives()?;
        let notices = scene.stage.exporter.texts(Command::Notices)?;
        let name = format!("removed {}", scene.victim.pid());
        let why =
            notices.into_iter().find(|notice| notice.starts_with(&name)).context("nobody was cut off")?;
        ensure!(why.contains("fence-timeout"), "{why}");
        let end = scene.victim.read(Read { settle_ms: Some(0), ..to_the_end() })?.end;
        ensure!(matches!(&end, End::Error { kind, .. } if kind == "CutOff"), "the reader is told {end:?}");
        scene.victim.kill()?;
        scene.frees_memory()?;
        Ok(held_up)
    })
}

/// A reader leaves whose release fences never come: it counts as dead as well.
fn reader_leaves_stuck(seed: u64) -> Result<String> {
    everywhere(|kind, fence| {
        let mut scene = Scene::with_deadline(kind, fence, seed)?;
        scene.victim.tell(Command::StallReading { us: FOREVER_US })?;
        let read = Read { frames: Some(4), settle_ms: Some(0), leave: true, ..to_the_end() };
        scene.victim.begin(&Command::Read(read))?;
        scene.publish()?;
        let read = scene.victim.was_read()?;
        ensure!(read.stuck == 4, "{} of 4 downloads are stuck", read.stuck);
        let held_up = scene.survives()?;
        scene.stage.gets_all_slots_back(PATIENCE)?;
        scene.victim.kill()?;
        scene.frees_memory()?;
        Ok(held_up)
    })
}

/// A reader lives and its context does not: what it holds then is never released, and what it has imported not given up.
fn reader_loses_context(seed: u64) -> Result<String> {
    everywhere(|kind, fence| {
        let mut scene = Scene::with_deadline(kind, fence, seed)?;
        scene.victim.begin(&Command::Read(Read { frames: Some(2), hold: 2, ..to_the_end() }))?;
        scene.publish()?;
        scene.victim.was_read()?;
        lose_context(&scene.victim)?;
        scene.victim.tell(Command::LetGo { count: 2 })?;
        let held_up = scene.survives()?;
        scene.victim.tell(Command::Disconnect)?;
        let notices = scene.stage.exporter.texts(Command::Notices)?;
        let name = format!("removed {}", scene.victim.pid());
        ensure!(
            notices.iter().any(|notice| notice.starts_with(&name)),
            "the reader is not cut off: {notices:?}"
        );
        scene.renews_memory()?;
        scene.victim.kill()?;
        scene.stage.frees_retired()?;
        Ok(held_up)
    })
}

/// The same reader has left, with two frames of which it lets one go.
fn reader_loses_context_later(seed: u64) -> Result<String> {
    everywhere(|kind, fence| {
        let mut scene = Scene::new(kind, fence, seed)?;
        scene.victim.begin(&Command::Read(Read { frames: Some(2), hold: 2, ..to_the_end() }))?;
        scene.publish()?;
        scene.victim.was_read()?;
        scene.victim.tell(Command::Disconnect)?;
        lose_context(&scene.victim)?;
        scene.victim.tell(Command::LetGo { count: 1 })?;
        let held_up = scene.survives()?;
        scene.stage.gets_all_slots_back(PATIENCE)?;
        scene.victim.tell(Command::LetGo { count: 1 })?;
        scene.renews_memory()?;
        scene.victim.kill()?;
        scene.stage.frees_retired()?;
        Ok(held_up)
    })
}

/// A reader records over the ready events that it was given, and dies: whoever records them again is stuck, and that is
/// its own signal stream alone.
fn reader_recorded_over(seed: u64) -> Result<String> {
    let mut longest = HeldUp::default();
    for kind in KINDS {
        let mut scene = Scene::new(kind, FenceKind::Timeline, seed)?;
        let mut rogue = Peer::new()?;
        let connect = Connect { max_held: Some(3), ..scene.stage.lossless(8, Some(FenceKind::Event)) };
        rogue.tell(Command::Rogue(connect))?;
        rogue.tell(Command::RecordOver { us: FOREVER_US })?;
        scene.victim.kill()?;
        scene.publish()?;
        std::thread::sleep(Duration::from_millis(100));
        rogue.kill()?;
        longest = longest.max(scene.survives().with_context(|| kind.to_string())?);
        scene.frees_memory()?;
    }
    Ok(longest.to_string())
}

/// An app that waits for its stream asks for no further frame meanwhile, and must be set free all the same.
fn exporter_killed_under_app(seed: u64) -> Result<String> {
    each_kind(|kind| app_is_set_free(kind, seed))
}

fn app_is_set_free(kind: MemoryKind, seed: u64) -> Result<String> {
    let mut stage = Stage::new(kind, seed)?;
    let readers = Peer::some(2)?;
    stage.join(&readers, |number| stage.lossless(number, Some(FenceKind::Timeline)))?;
    for reader in &readers {
        let read = Read { at_once_ms: Some(PATIENCE_MS), settle_ms: Some(0), ..to_the_end() };
        reader.begin(&Command::Read(read))?;
    }
    publish_at_once(&stage.exporter, 4)?;
    stage.exporter.tell(Command::Stall { us: FOREVER_US })?;
    stage.exporter.publish(Publish { frames: 2, size: SIZE, ..Publish::default() })?;
    std::thread::sleep(Duration::from_millis(50));
    let begin = Instant::now();
    stage.exporter.kill()?;
    for reader in &readers {
        let read = reader.was_read()?;
        let gone =
            matches!(&read.end, End::Error { kind, torn, .. } if kind == "Gone" && *torn >= read.wrong);
        ensure!(gone, "{:?}", read.end);
    }
    let took = begin.elapsed();
    ensure!(took < PATIENCE, "the app was free only after {took:?}");
    Ok(format!("the app was free {} ms after the kill", took.as_millis()))
}

fn lose_context(peer: &Peer) -> Result<()> {
    let lost = peer.tell(Command::LoseContext);
    if let Some(failed) = lost.as_ref().err().and_then(|error| error.downcast_ref::<Failed>())
        && failed.code.is_none()
    {
        return Err(Skip(failed.to_string()).into());
    }
    lost
}

/// Three readers whose streams wait for the exporter; `pending` puts in its way what the exporter does not survive. What they
/// read, and how long after the kill the last of them heard of it.
fn exporter_killed(
    kind: MemoryKind,
    fence: FenceKind,
    gpu_wait: bool,
    seed: u64,
    pending: impl Fn(&Peer) -> Result<()>,
) -> Result<(Vec<WasRead>, Heard)> {
    let bind = Bind { memory: Some(kind), max_slots: Some(256), max_held_limit: Some(64), ..Bind::default() };
    let mut stage = Stage::with(seed, bind)?;
    let readers = Peer::some(3)?;
    stage.join(&readers, |number| Connect {
        gpu_wait: Some(gpu_wait),
        max_held: Some(64),
        ..stage.lossless(number, Some(fence))
    })?;
    // Streams that wait for events are not expected to be free again.
    let settle_ms = if gpu_wait && fence == FenceKind::Event { 3000 } else { PATIENCE_MS };
    for reader in &readers {
        let read = Read { settle_ms: Some(settle_ms), without_wait: !gpu_wait, ..to_the_end() };
        reader.begin(&Command::Read(read))?;
    }
    stage.exporter.publish(Publish { frames: 5, size: SIZE, drain: true, ..Publish::default() })?;
    pending(&stage.exporter)?;
    // Frames that are not written are taken by those alone whose streams wait for them.
    if gpu_wait {
        stage.await_taken()?;
    }
    let killed_at = frameshare::monotonic_ns();
    stage.exporter.kill()?;
    let reads = readers.iter().map(Peer::was_read).collect::<Result<Vec<_>>>()?;
    let heard = Heard::of(&reads, killed_at);
    Ok((reads, heard))
}

/// How many ms after something happened the last reader heard of it.
#[derive(Clone, Copy, Default)]
struct Heard(f64);

impl Heard {
    fn of<'r>(reads: impl IntoIterator<Item = &'r WasRead>, since: u64) -> Heard {
        let ended_at = reads.into_iter().map(|read| read.ended_at).max().unwrap_or(since);
        Heard(ended_at.saturating_sub(since) as f64 / 1e6)
    }

    fn max(self, other: Heard) -> Heard {
        Heard(self.0.max(other.0))
    }
}

impl Display for Heard {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "all readers had heard of it after {:.1} ms", self.0)
    }
}

/// Streams that wait for a timeline word of the dead are set free, and what they then read is counted as torn.
fn set_free(read: &WasRead) -> Result<()> {
    let End::Error { kind, torn, .. } = &read.end else { anyhow::bail!("it ended with {:?}", read.end) };
    ensure!(kind == "Gone" && *torn > 0, "it ended with {:?}", read.end);
    ensure!(read.stuck == 0, "{} downloads are stuck", read.stuck);
    ensure!(read.wrong <= *torn, "{} frames are wrong, and {torn} are said to be torn", read.wrong);
    Ok(())
}

fn told(reads: &[WasRead], heard: Heard) -> String {
    let most = |of: fn(&WasRead) -> u64| reads.iter().map(of).max().unwrap_or(0);
    let torn = most(|read| if let End::Error { torn, .. } = read.end { torn } else { 0 });
    format!(
        "{heard}, and their streams were free {} ms later; of {} frames {torn} torn, {} wrong at most",
        most(|read| read.settled_ms),
        most(|read| read.frames),
        most(|read| read.wrong),
    )
}

/// The exporter's stream sleeps: nothing that was queued behind ever runs.
fn exporter_killed_stalled(seed: u64) -> Result<String> {
    each_kind(|kind| {
        let (reads, heard) = exporter_killed(kind, FenceKind::Timeline, true, seed, |exporter| {
            exporter.tell(Command::Stall { us: FOREVER_US })?;
            exporter.publish(Publish { frames: 60, size: SIZE, ..Publish::default() }).map(|_| ())
        })?;
        for read in &reads {
            set_free(read)?;
            ensure!(read.frames == 65, "{} of 65 frames were delivered", read.frames);
        }
        Ok(told(&reads, heard))
    })
}

/// The exporter's GPU is busy: its queue runs on for a while after the kill, and writes old words over what the survivors
/// store.
fn exporter_killed_loaded(seed: u64) -> Result<String> {
    each_kind(|kind| {
        let (reads, heard) = exporter_killed(kind, FenceKind::Timeline, true, seed, |exporter| {
            // Somewhat more than a queue has room for: what is too much is waited for here.
            let publish = Publish { frames: 20, size: SIZE, load: 8 << 30, ..Publish::default() };
            exporter.publish(publish).map(|_| ())
        })?;
        for read in &reads {
            set_free(read)?;
        }
        Ok(told(&reads, heard))
    })
}

/// Publishes frames of which none is written before the last is published, so that each has a slot of its own, and waits
/// until they are read. So many frames more need no slot that readers have not imported: `legacy` memory of the dead cannot
/// be, and frames in such slots are lost.
fn publish_at_once(exporter: &Peer, frames: u64) -> Result<()> {
    exporter.tell(Command::Stall { us: FOREVER_US })?;
    exporter.publish(Publish { frames, size: SIZE, ..Publish::default() })?;
    exporter.tell(Command::Resume)?;
    exporter.tell(Command::Drain { ms: PATIENCE_MS })
}

/// Readers that are given written frames alone hear of it without anything being stuck or torn; the others are lost.
fn exporter_killed_unseen(seed: u64) -> Result<String> {
    each_kind(|kind| {
        let mut last = Heard::default();
        for fence in FENCES {
            let (reads, heard) = exporter_killed(kind, fence, false, seed, |exporter| {
                exporter.tell(Command::Stall { us: FOREVER_US })?;
                exporter.publish(Publish { frames: 20, size: SIZE, ..Publish::default() }).map(|_| ())
            })?;
            for read in reads {
                let gone = matches!(&read.end, End::Error { kind, torn: 0, lost: 20, .. } if kind == "Gone");
                ensure!(gone && read.frames == 5 && read.wrong == 0 && read.stuck == 0, "{fence}: {read:?}");
            }
            last = last.max(heard);
        }
        Ok(last.to_string())
    })
}

/// CUDA's own way has its price: the stream is stuck. The reader is told, and nothing that it checked was wrong.
fn exporter_killed_under_events(seed: u64) -> Result<String> {
    each_kind(|kind| {
        let (reads, heard) = exporter_killed(kind, FenceKind::Event, true, seed, |exporter| {
            exporter.tell(Command::Stall { us: FOREVER_US })?;
            exporter.publish(Publish { frames: 20, size: SIZE, ..Publish::default() }).map(|_| ())
        })?;
        for read in &reads {
            let gone = matches!(&read.end, End::Error { kind, torn: 20, .. } if kind == "Gone");
            ensure!(gone && read.wrong == 0, "{read:?}");
            ensure!(read.stuck == 20, "{} of 20 downloads are stuck", read.stuck);
        }
        Ok(format!("{heard}; as documented, 20 downloads are stuck"))
    })
}

/// Streams that somebody else holds up for ever cannot be set free: what is done for them costs one thread, and hardly ever
/// anything, however many exporters go.
fn exporters_killed_under_stuck(seed: u64) -> Result<String> {
    const EXPORTERS: usize = 4;
    let reader = Peer::new()?;
    let mut last = Heard::default();
    for number in 0..EXPORTERS {
        let kind = KINDS[number % KINDS.len()];
        let mut stage = Stage::new(kind, seed)?;
        reader.connect(Connect { gpu_wait: Some(true), ..stage.lossless(0, Some(FenceKind::Timeline)) })?;
        stage.await_readers(1)?;
        reader.tell(Command::StallReading { us: FOREVER_US })?;
        reader.begin(&Command::Read(Read { settle_ms: Some(0), ..to_the_end() }))?;
        stage.exporter.tell(Command::Stall { us: FOREVER_US })?;
        stage.exporter.publish(Publish { frames: 2, size: SIZE, ..Publish::default() })?;
        stage.await_taken()?;
        let killed_at = frameshare::monotonic_ns();
        stage.exporter.kill()?;
        let read = reader.was_read()?;
        let gone = matches!(&read.end, End::Error { kind, torn: 2, .. } if kind == "Gone");
        ensure!(gone && read.stuck == 2, "{kind}: {read:?}");
        last = last.max(Heard::of([&read], killed_at));
    }
    reader.tell(Command::Disconnect)?;
    std::thread::sleep(Duration::from_secs(3));
    let (threads, before) = own_threads(&reader)?;
    std::thread::sleep(Duration::from_secs(1));
    let (_, after) = own_threads(&reader)?;
    ensure!(threads.len() <= 2, "after {EXPORTERS} exporters these threads are left: {threads:?}");
    let woken = after - before;
    ensure!(woken < 200, "{threads:?} wake up {woken} times a second");
    Ok(format!("{last}; {threads:?} wake up {woken} times a second"))
}

/// The engine's threads in a process, and how often they have slept.
fn own_threads(peer: &Peer) -> Result<(Vec<String>, u64)> {
    let (mut names, mut sleeps) = (Vec::new(), 0);
    for thread in std::fs::read_dir(format!("/proc/{}/task", peer.pid()))? {
        let thread = thread?.path();
        // One that ends meanwhile is none.
        let Ok(status) = std::fs::read_to_string(thread.join("status")) else { continue };
        let value = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let name = value("Name:").context("a thread without a name")?;
        if name.starts_with("frameshare") {
            names.push(name.to_owned());
            sleeps += value("voluntary_ctxt_switches:").context("no count")?.parse::<u64>()?;
        }
    }
    Ok((names, sleeps))
}

/// An exporter lives and its context does not: it is told so, and its readers too when it gives up.
fn exporter_loses_context(seed: u64) -> Result<String> {
    each_kind(|kind| {
        let mut last = Heard::default();
        for fence in FENCES {
            last = last.max(exporter_gives_up(kind, fence, seed).with_context(|| fence.to_string())?);
        }
        Ok(last.to_string())
    })
}

fn exporter_gives_up(kind: MemoryKind, fence: FenceKind, seed: u64) -> Result<Heard> {
    let stage = Stage::new(kind, seed)?;
    let readers = Peer::some(2)?;
    stage.join(&readers, |number| stage.lossless(number, Some(fence)))?;
    for reader in &readers {
        reader.begin(&Command::Read(Read { settle_ms: Some(PATIENCE_MS), ..to_the_end() }))?;
    }
    stage.exporter.publish(Publish { frames: 20, size: SIZE, ..Publish::default() })?;
    lose_context(&stage.exporter)?;
    let (begin, begun_at) = (Instant::now(), frameshare::monotonic_ns());
    let published = stage.exporter.publish(Publish { frames: 1, size: SIZE, ..Publish::default() });
    ensure!(published.is_err(), "a frame was published in a lost context");
    let took = stage.exporter.number(Command::Unbind)?;
    ensure!(took < PATIENCE_MS, "the exporter took {took} ms to stop");
    let reads = readers.iter().map(Peer::was_read).collect::<Result<Vec<_>>>()?;
    for read in &reads {
        ensure!(matches!(read.end, End::Error { .. }), "{:?}", read.end);
        ensure!(read.wrong == 0 && read.stuck == 0 && read.frames == 20, "{read:?}");
    }
    ensure!(begin.elapsed() < PATIENCE, "after {:?}", begin.elapsed());
    Ok(Heard::of(&reads, begun_at))
}
