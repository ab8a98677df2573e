// SPDX-License-Identifier: MIT OR Apache-2.0

//! Hostile peers, on either side: the attacked component and all others continue.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use frameshare::{FenceKind, MemoryKind};
use frameshare_gpu_harness::order::{self, Expected};

use super::{Case, FENCES, Needs, PATIENCE, Place, SIZE, Setup, to_the_end, wait_until};
use crate::hostile::exporter::{self, FENCE_TIMEOUT, Fate, HONEST};
use crate::hostile::reader;
use crate::job::{Bind, Command, Connect, End, Publish, Read, Reply, Use, WasRead};
use crate::peer::Peer;

const SUITE: &str = "engine-hostile";

pub const CASES: &[Case] = &[
    hostile("exporters-that-welcome-with-wrong-things", welcomes),
    hostile("exporters-that-hand-over-what-is-no-memory", memory),
    hostile("exporters-that-do-not-write-their-words", words),
    hostile("readers-of-gpu-memory", readers),
    hostile("exporters-stop-after-each-reader", exporters_stop),
];

const fn hostile(name: &'static str, conduct: fn(u64) -> Result<String>) -> Case {
    Case { suite: SUITE, name, seconds: 150, needs: Needs::Nothing, conduct }
}

/// Behavior of an app whose exporter is hostile.
#[derive(Clone, Copy, PartialEq, Eq)]
enum App {
    /// Waits for its stream before it requests the next frame.
    Waits,
    /// Requests the next frame immediately.
    GoesOn,
    /// As `GoesOn`, but only touches frames and never waits for a copy.
    Skims,
    /// Holds each frame for some time before reading it.
    Sits,
    /// Takes an unwritten frame and leaves.
    Leaves,
    /// As `Leaves`, and its stream reaches the frame late.
    LeavesWork,
}

/// A reader, a hostile exporter and an honest one.
struct Scenario {
    victim: Peer,
    harmer: Peer,
    place: Place,
    honest: Setup,
}

/// Maximum time a reader may take to finish with a hostile exporter.
const SOON: Duration = PATIENCE;
const SOON_MS: u64 = SOON.as_millis() as u64;

/// Time within which a reader or an exporter stops, whatever its peers do. A longer one is printed.
const PROMISED: Duration = Duration::from_secs(1).saturating_add(FENCE_TIMEOUT);

/// Maximum of that on a busy machine: less than the two seconds of the shortest wait for a peer.
const STOPS_WITHIN: Duration = Duration::from_millis(1900);

/// Delay of a stream before it reaches its wait: longer than any timeout for an exporter.
const LATE: Duration = Duration::from_secs(5);

impl Scenario {
    fn new(seed: u64) -> Result<Scenario> {
        // A hostile exporter writes frames whenever it likes.
        order::expect(Expected::Any);
        let honest = Setup::new(MemoryKind::Vmm, seed)?;
        Ok(Scenario { victim: Peer::new()?, harmer: Peer::new()?, place: Place::new()?, honest })
    }

    /// Lets the exporter attack the reader in one way. The reader then reads another stream in the
    /// same context.
    fn harm(&self, attack: &str, fate: Fate, app: App) -> Result<()> {
        self.harmer.execute(Command::Harmer { path: self.place.path() })?;
        self.harmer.begin(&Command::Harm { attack: attack.into() })?;
        let connect = Connect {
            path: self.place.path(),
            fence_timeout_ms: Some(FENCE_TIMEOUT.as_millis() as u64),
            ..Connect::default()
        };
        let connected = self.victim.connect(connect);
        if fate == Fate::StaysAway {
            ensure!(connected.is_err(), "the reader connected to a hostile exporter");
            self.harmer.end()?;
        } else {
            connected?;
            self.read(fate, app)?;
            let begin = Instant::now();
            self.victim.execute(Command::Disconnect)?;
            stopped_in_time(begin.elapsed())?;
            self.harmer.end()?;
        }
        let work = if app == App::LeavesWork { LATE } else { Duration::ZERO };
        self.victim.execute(Command::AwaitIdle { ms: (work + SOON).as_millis() as u64 })?;
        self.reads_another_stream().context("reading from an honest exporter afterwards")
    }

    /// Reads as the app does and checks the result.
    fn read(&self, fate: Fate, app: App) -> Result<()> {
        if matches!(app, App::Leaves | App::LeavesWork) {
            return self.read_and_leave(app);
        }
        let read = Read {
            patience_ms: 2 * SOON_MS,
            at_once_ms: (app == App::Waits).then_some(SOON_MS),
            sit_ms: if app == App::Sits { 50 } else { 0 },
            what: if app == App::Skims { Use::Touch } else { Use::Check },
            settle_ms: Some(SOON_MS),
            ..Read::default()
        };
        let begin = Instant::now();
        let read = self.victim.read(read)?;
        ensure!(
            begin.elapsed() < SOON + Duration::from_secs(2),
            "the read run ended only after {:?}: {read:?}",
            begin.elapsed()
        );
        ensure!(read.stuck == 0, "{} downloads do not complete", read.stuck);
        match (&read.end, fate) {
            (End::Stream, Fate::Reads) => {
                ensure!(read.frames == HONEST && read.wrong == 0, "{read:?}");
            }
            (End::Error { kind, .. }, Fate::Ends(with)) if kind == with => {}
            (end, _) => bail!("expected {fate:?}, but reading ended with {end:?}"),
        }
        Ok(())
    }

    /// Takes one frame more than were written.
    fn read_and_leave(&self, app: App) -> Result<()> {
        all_whole(&self.victim.read(Read { frames: Some(HONEST), ..to_the_end() })?, HONEST)?;
        if app == App::LeavesWork {
            self.victim.execute(Command::StallReading { us: LATE.as_micros() as u64 })?;
        }
        let read = self.victim.read(Read { frames: Some(1), settle_ms: Some(0), ..to_the_end() })?;
        ensure!(read.end == End::Enough && read.stuck == 1, "{read:?}");
        Ok(())
    }

    fn reads_another_stream(&self) -> Result<()> {
        const FRAMES: u64 = 8;
        self.victim.connect(self.honest.lossless(0, Some(FenceKind::Timeline)))?;
        self.victim.begin(&Command::Read(Read { frames: Some(FRAMES), ..to_the_end() }))?;
        self.honest.exporter.publish(Publish { frames: FRAMES, size: SIZE, ..Publish::default() })?;
        all_whole(&self.victim.was_read()?, FRAMES)?;
        self.victim.execute(Command::Disconnect)?;
        // Memory that is unregistered beside the long work of the next attack would hold up every
        // call that creates an event.
        self.victim.execute(Command::AwaitIdle { ms: SOON_MS })?;
        Ok(())
    }
}

/// Checks how long a reader or an exporter took to stop.
fn stopped_in_time(took: Duration) -> Result<()> {
    if took > PROMISED {
        eprintln!("stopping took {took:?}; {PROMISED:?} are promised");
    }
    ensure!(took <= STOPS_WITHIN, "stopping took {took:?}");
    Ok(())
}

fn all_whole(read: &WasRead, frames: u64) -> Result<()> {
    let fine = read.frames == frames && read.end == End::Enough && read.lost == 0 && read.wrong == 0;
    ensure!(fine, "{read:?}");
    Ok(())
}

/// A reader checks all fields and descriptors of the welcome before it uses any of them.
fn welcomes(seed: u64) -> Result<String> {
    let scenario = Scenario::new(seed)?;
    for (attack, fate, _) in exporter::WELCOMES {
        scenario.harm(attack, *fate, App::GoesOn).context(*attack)?;
    }
    Ok(format!("{} attacks", exporter::WELCOMES.len()))
}

/// A reader rejects memory that is not of the announced kind and size; it loses only its exporter.
fn memory(seed: u64) -> Result<String> {
    let scenario = Scenario::new(seed)?;
    for (attack, fate, _) in exporter::MEMORY {
        scenario.harm(attack, *fate, App::GoesOn).context(*attack)?;
    }
    Ok(format!("{} attacks", exporter::MEMORY.len()))
}

/// No stream stays stuck on a live exporter that never writes its published frames, whatever the
/// app does meanwhile.
fn words(seed: u64) -> Result<String> {
    let scenario = Scenario::new(seed)?;
    let mut took = Vec::new();
    for (attack, fate, _) in exporter::WORDS {
        let apps: &[App] = match *attack {
            "word-never-written-in-one-entry" => &[App::Skims],
            "word-goes-back" => &[App::Sits],
            "word-half-of-all-numbers-ahead" => &[App::Waits],
            "word-never-written" => &[App::Waits, App::GoesOn, App::Leaves],
            "word-written-over-all-the-time" => &[App::Waits, App::GoesOn, App::LeavesWork],
            _ => &[App::GoesOn],
        };
        for app in apps {
            let begin = Instant::now();
            scenario.harm(attack, *fate, *app).context(*attack)?;
            took.push(format!("{attack} {} ms", begin.elapsed().as_millis()));
        }
    }
    Ok(format!("the attacks ended after: {}", took.join(", ")))
}

/// A reader that misuses the GPU memory shared with the exporter harms only itself.
fn readers(seed: u64) -> Result<String> {
    const FRAMES: u64 = 100;
    let setup = Setup::with_deadline(MemoryKind::Vmm, seed)?;
    let (intruder, witnesses) = (Peer::new()?, Peer::some(2)?);
    setup.join(&witnesses, |number| setup.lossless(number, Some(FENCES[number % 2])))?;
    intruder.execute(Command::Intruder { path: setup.place.path() })?;
    let (mut gaps, mut received) = (Vec::new(), setup.exporter.texts(Command::Notices)?.len());
    for (attack, fate, _) in reader::ATTACKS {
        let one = || -> Result<(f64, usize)> {
            for witness in &witnesses {
                witness.begin(&Command::Read(Read { frames: Some(FRAMES), ..to_the_end() }))?;
            }
            intruder.begin(&Command::Harm { attack: (*attack).into() })?;
            if *fate != reader::Fate::Refused {
                // The attack runs while frames flow.
                let name = format!("added {}", intruder.pid());
                wait_until(SOON, || {
                    let joined = setup.exporter.texts(Command::Notices)?[received..].contains(&name);
                    Ok((!joined).then(|| "the hostile reader was not admitted".into()))
                })?;
            }
            let publish = Publish { frames: FRAMES, size: SIZE, pace_us: 4000, ..Publish::default() };
            let gap = setup.exporter.publish(publish)?.longest_gap_ms;
            ensure!(gap < SOON_MS as f64, "the exporter was blocked for {gap:.0} ms");
            for witness in &witnesses {
                all_whole(&witness.was_read()?, FRAMES).context("witness reader")?;
            }
            let refused = matches!(intruder.end()?, Reply::Refused);
            setup.await_readers(2)?;
            let notices = setup.exporter.texts(Command::Notices)?;
            let why = match fate {
                // The reader gets the reason; the exporter's owner gets at most one notice of a
                // rejection a second.
                reader::Fate::Refused => return Ok((gap, notices.len())),
                reader::Fate::Removed(why) if !refused => *why,
                reader::Fate::Removed(_) | reader::Fate::Leaves => "it hung up",
            };
            let name = format!("removed {}: ", intruder.pid());
            ensure!(
                notices[received..].iter().any(|notice| notice.starts_with(&name) && notice.contains(why)),
                "the exporter reported {:?}",
                &notices[received..]
            );
            Ok((gap, notices.len()))
        };
        let (gap, report) = one().context(*attack)?;
        gaps.push(format!("{attack} {gap:.0} ms"));
        received = report;
    }
    setup.exporter.execute(Command::Drain { ms: SOON_MS })?;
    let stats = setup.exporter.stats()?;
    ensure!(
        stats.free_slots == stats.slots,
        "only {} of {} slots are free again",
        stats.free_slots,
        stats.slots
    );
    Ok(format!("longest delay of the exporter: {}", gaps.join(", ")))
}

/// An exporter stops in time after each attack.
fn exporters_stop(seed: u64) -> Result<String> {
    const FRAMES: u64 = 50;
    let fence_timeout_ms = Some(FENCE_TIMEOUT.as_millis() as u64);
    let bind = Bind { memory: Some(MemoryKind::Vmm), fence_timeout_ms, ..Bind::default() };
    let mut took = Vec::new();
    for (attack, fate, _) in reader::ATTACKS {
        let one = || -> Result<Duration> {
            let (setup, intruder) = (Setup::with(seed, bind.clone())?, Peer::new()?);
            intruder.execute(Command::Intruder { path: setup.place.path() })?;
            intruder.begin(&Command::Harm { attack: (*attack).into() })?;
            if *fate != reader::Fate::Refused {
                await_admission(&setup)?;
            }
            setup.exporter.publish(Publish {
                frames: FRAMES,
                size: SIZE,
                pace_us: 4000,
                ..Publish::default()
            })?;
            let begin = Instant::now();
            setup.exporter.number(Command::Unbind)?;
            stopped_in_time(begin.elapsed())?;
            intruder.end()?;
            Ok(begin.elapsed())
        };
        let stop = one().context(*attack)?;
        took.push(format!("{attack} {} ms", stop.as_millis()));
    }
    Ok(format!("the exporter stopped after: {}", took.join(", ")))
}

/// Waits until the exporter has admitted a reader, which it may have evicted since.
fn await_admission(setup: &Setup) -> Result<()> {
    let deadline = Instant::now() + SOON;
    while !setup.exporter.texts(Command::Notices)?.iter().any(|notice| notice.starts_with("added")) {
        ensure!(Instant::now() < deadline, "no reader was admitted");
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
