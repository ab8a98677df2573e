//! The long run: streams with three readers each that join, leave and are killed at random, while frames change their
//! size every few seconds. Every frame that is read is compared with what was published; at the end nothing may have
//! grown.

use std::fmt;
use std::sync::{Barrier, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use frameshare::{FenceKind, MemoryKind, Policy};
use frameshare_gpu_harness::random::Random;
use frameshare_gpu_harness::{Case, Needs, Place};
use frameshare_tests::{census::Census, tally::Tally};

use super::{SIZE, frames, to_the_end};
use crate::job::{Bind, Command, Connect, End, Publish, Read, Slow};
use crate::peer::Peer;

pub const CASES: &[Case] = &[Case {
    suite: "engine-soak",
    name: "streams-that-come-and-go",
    // As long as the frames take; whatever hangs is noticed before.
    seconds: 24 * 3600,
    needs: Needs::Nothing,
    conduct: come_and_go,
}];

/// Frames of one size, and how far they are apart.
const RENEW: u64 = 25;
const PACE_US: u64 = 20_000;
/// The sizes that frames have in turn.
const SIZES: [u64; 3] = [SIZE / 2, SIZE, 2 * SIZE];
/// Fewer frames show nothing, nor does what was there before all sizes have been.
const SHORTEST: u64 = 200;
const WARM_UP: u64 = 3 * RENEW;
/// Until what is left behind is cleared away.
const REST: Duration = Duration::from_secs(5);
/// How much more an allocator may keep in the end, in kilobytes, and a driver of the GPU's memory, in bytes.
const GROWTH_KB: u64 = 4096;
const GROWTH_GPU: u64 = 16 << 20;

/// Memory and fences of the streams, in turn.
const MIX: [(MemoryKind, Option<FenceKind>); 8] = [
    (MemoryKind::Pool, Some(FenceKind::Event)),
    (MemoryKind::Legacy, Some(FenceKind::Timeline)),
    (MemoryKind::Vmm, Some(FenceKind::Event)),
    (MemoryKind::Pool, Some(FenceKind::Timeline)),
    (MemoryKind::Legacy, None),
    (MemoryKind::Pool, None),
    (MemoryKind::Legacy, Some(FenceKind::Event)),
    (MemoryKind::Vmm, Some(FenceKind::Timeline)),
];

/// How a reader that comes will go.
enum Plan {
    /// By itself, after so many frames.
    Leave,
    /// It is killed, whatever it is doing then.
    Kill(Instant),
}

struct Guest {
    peer: Peer,
    plan: Plan,
    is_lossless: bool,
}

/// An exporter, a reader that stays, and two that come and go.
struct Stream {
    place: Place,
    memory: MemoryKind,
    /// Its exporter is killed now and then.
    is_doomed: bool,
    random: Random,
    rounds: u64,
    /// Since the reader that stays began to read.
    published: u64,
    exporter: Peer,
    resident: Peer,
    guests: [Option<Guest>; 2],
    tally: Tally,
}

/// What the processes of a stream that stay have, when nothing moves.
struct Rest {
    census: Census,
    /// Of the GPU's memory, as the exporter sees it and as the reader does.
    taken: [u64; 2],
}

impl Stream {
    fn start(number: usize, is_doomed: bool, seed: u64) -> Result<Stream> {
        let (memory, fence) = MIX[number % MIX.len()];
        // CUDA does not promise that other memory outlives its exporter.
        let memory = if is_doomed { MemoryKind::Vmm } else { memory };
        let (place, exporter, resident) = (Place::new()?, Peer::new()?, Peer::new()?);
        let stream = Stream {
            place,
            memory,
            is_doomed,
            random: Random::new(seed.wrapping_mul(31).wrapping_add(number as u64)),
            rounds: 0,
            published: 0,
            exporter,
            resident,
            guests: [None, None],
            tally: Tally::default(),
        };
        stream.exporter.bind(stream.bind())?;
        stream.resident.connect(Connect { fence, policy: Policy::Lossless, ..stream.connect() })?;
        Ok(stream)
    }

    fn bind(&self) -> Bind {
        Bind { path: self.place.path(), memory: Some(self.memory), ..Bind::default() }
    }

    fn connect(&self) -> Connect {
        Connect {
            path: self.place.path(),
            reconnect: self.is_doomed,
            // What is pushed ahead of a fence is torn when the exporter is killed.
            gpu_wait: Some(!self.is_doomed),
            ..Connect::default()
        }
    }

    /// Publishes so many frames at least while readers come and go, then lets everything come to rest.
    fn play(&mut self, frames: u64, together: &Together) -> Result<()> {
        self.published = 0;
        self.resident.begin(&Command::Read(Read { patience_ms: 60_000, ..to_the_end() }))?;
        for _ in 0..frames.div_ceil(RENEW) {
            ensure!(together.failure.get().is_none(), "another stream has failed");
            self.round()?;
        }
        self.come_to_rest()
    }

    /// Frames of one size.
    fn round(&mut self) -> Result<()> {
        self.rounds += 1;
        self.exporter.tell(Command::Format { caps: format!("round {}", self.rounds) })?;
        let size = SIZES[self.rounds as usize % SIZES.len()];
        let slow = Slow::Sometimes(4000);
        let publish = Publish { frames: RENEW, size, pace_us: PACE_US, slow, ..Publish::default() };
        let doom = (self.is_doomed && self.rounds.is_multiple_of(4))
            .then(|| Instant::now() + Duration::from_micros(self.random.below(RENEW * PACE_US)));
        self.exporter.begin(&Command::Publish(publish))?;
        while !self.exporter.has_reported()? {
            if doom.is_some_and(|doom| doom < Instant::now()) {
                return self.replace_exporter();
            }
            for at in 0..self.guests.len() {
                self.turn(at)?;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.published += self.exporter.published()?.frames;
        Ok(())
    }

    /// The next takes the name of one that is dead.
    fn replace_exporter(&mut self) -> Result<()> {
        self.exporter.kill()?;
        self.exporter = Peer::new()?;
        self.tally.exporters_killed += 1;
        // What was published before the kill may be read as well.
        self.published += RENEW;
        self.exporter.bind(self.bind())
    }

    /// Has a guest come or go, if that is due.
    fn turn(&mut self, at: usize) -> Result<()> {
        let Some(mut guest) = self.guests[at].take() else {
            if self.random.below(20) == 0 {
                self.guests[at] = Some(self.invite()?);
                self.tally.joined += 1;
            }
            return Ok(());
        };
        match guest.plan {
            Plan::Kill(when) if when < Instant::now() => {
                guest.peer.kill()?;
                self.tally.killed += 1;
            }
            Plan::Leave if guest.peer.has_reported()? => guest.see_off(&mut self.tally)?,
            _ => self.guests[at] = Some(guest),
        }
        Ok(())
    }

    fn invite(&mut self) -> Result<Guest> {
        let is_lossless = !self.is_doomed && self.random.below(2) == 0;
        let fences = [None, Some(FenceKind::Event), Some(FenceKind::Timeline)];
        let connect = Connect {
            policy: if is_lossless { Policy::Lossless } else { Policy::Latest },
            fence: fences[self.random.below(fences.len() as u64) as usize],
            max_held: Some(4 + self.random.below(4) as u32),
            seed: self.random.below(1 << 31),
            ..self.connect()
        };
        let peer = Peer::new()?;
        peer.begin(&Command::Connect(connect))?;
        let in_a_while = Duration::from_millis(self.random.below(1500));
        let plan = match self.random.below(4) {
            // Most likely while it connects.
            0 => {
                let plan = Plan::Kill(Instant::now() + in_a_while / 10);
                return Ok(Guest { peer, plan, is_lossless });
            }
            1 => Plan::Kill(Instant::now() + in_a_while),
            _ => Plan::Leave,
        };
        peer.end().context("a guest connects")?;
        let slow = if is_lossless { Slow::Never } else { Slow::Sometimes(200_000) };
        let frames = matches!(plan, Plan::Leave).then(|| 1 + self.random.below(3 * RENEW));
        let hold = self.random.below(3) as usize;
        peer.begin(&Command::Read(Read { frames, hold, slow, ..to_the_end() }))?;
        Ok(Guest { peer, plan, is_lossless })
    }

    /// Sends the guests away, publishes some frames of a size of their own, one by one, and sees what the reader that stays
    /// has read.
    fn come_to_rest(&mut self) -> Result<()> {
        for mut guest in self.guests.iter_mut().filter_map(Option::take) {
            guest.peer.kill()?;
            self.tally.killed += 1;
        }
        self.exporter.tell(Command::AwaitReaders { count: 1, ms: 20_000 })?;
        self.rounds += 1;
        self.exporter.tell(Command::Format { caps: format!("rest {}", self.rounds) })?;
        for _ in 0..3 {
            self.exporter.publish(Publish {
                frames: 1,
                size: SIZE / 4,
                drain: true,
                ..Publish::default()
            })?;
            self.published += 1;
        }
        self.exporter.tell(Command::EndOfStream)?;
        let read = self.resident.was_read()?;
        ensure!(read.wrong == 0 && read.lost == 0 && read.end == End::Stream, "who stays: {read:?}");
        let all = if self.is_doomed { read.frames <= self.published } else { read.frames == self.published };
        ensure!(all, "who stays read {} of {} frames", read.frames, self.published);
        self.tally.frames += read.frames;
        Ok(())
    }

    fn rest(&self) -> Result<Rest> {
        let taken =
            [self.exporter.number(Command::TakenMemory)?, self.resident.number(Command::TakenMemory)?];
        Ok(Rest { census: Census::of(&[self.exporter.pid(), self.resident.pid()])?, taken })
    }

    /// What it has once nothing more is cleared away: nothing of former sizes, and no more than `before`.
    fn at_rest(&self, before: Option<&Rest>) -> Result<Rest> {
        if before.is_none() {
            // What is not needed any more shall not make up for what is added later.
            std::thread::sleep(REST / 4);
        }
        let until = Instant::now() + REST;
        loop {
            let (now, retired) = (self.rest()?, self.exporter.stats()?.retired_bytes);
            let is_calm = retired == 0 && before.is_none_or(|before| before.growth(&now).is_none());
            if is_calm || Instant::now() > until {
                ensure!(retired == 0, "{retired} bytes of retired memory are not freed");
                return Ok(now);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Rest {
    /// What there is more of than there was. What took the place of a killed exporter has a history of its own.
    fn growth(&self, after: &Rest) -> Option<String> {
        let mut growth = Vec::new();
        if self.census.is_of_the_same_process_as(&after.census) {
            growth.extend(self.census.growth(&after.census, GROWTH_KB));
        }
        for (before, after) in self.taken.iter().zip(&after.taken) {
            if *after > before + GROWTH_GPU {
                growth.push(format!("{before} bytes of GPU memory became {after}"));
            }
        }
        (!growth.is_empty()).then(|| growth.join("; "))
    }
}

impl Guest {
    /// Judges what it saw, and lets it go in good order.
    fn see_off(self, tally: &mut Tally) -> Result<()> {
        let read = self.peer.was_read().context("a guest")?;
        ensure!(read.wrong == 0, "a guest saw {:?}", read.first_wrong);
        ensure!(read.end == End::Enough, "a guest after {} frames: {:?}", read.frames, read.end);
        ensure!(!self.is_lossless || read.lost == 0, "a lossless guest lost {} frames", read.lost);
        self.peer.tell(Command::LetGo { count: usize::MAX })?;
        self.peer.tell(Command::Disconnect)?;
        tally.frames += read.frames;
        tally.lost += read.lost;
        tally.left += 1;
        Ok(())
    }
}

/// What streams that play at the same time have in common.
struct Together {
    barrier: Barrier,
    /// What went wrong first: the others give up.
    failure: OnceLock<String>,
}

impl Together {
    /// Waits until all streams have come so far.
    fn after<T>(&self, number: usize, done: Result<T>) -> Result<T> {
        if let Err(error) = &done {
            self.failure.get_or_init(|| format!("stream {number}: {error:#}"));
        }
        self.barrier.wait();
        done
    }
}

/// One stream from the start to the end. Peers go with the thread that started them, so it is one thread for all.
fn live(number: usize, count: usize, seed: u64, together: &Together) -> Result<(Tally, Rest, Rest)> {
    let frames = length();
    let warm_up = (frames / 4).max(WARM_UP);
    let mut stream = Stream::start(number, number + 1 == count, seed);
    let warm = stream.as_mut().map_or(Ok(()), |stream| stream.play(warm_up, together));
    let stream = together.after(number, stream.and_then(|stream| warm.map(|()| stream)));
    let stream = stream.and_then(|stream| Ok((stream.at_rest(None)?, stream)));
    let stream = together.after(number, stream);
    let stream = stream.and_then(|(before, mut stream)| {
        stream.play(frames, together)?;
        Ok((before, stream))
    });
    let stream = together.after(number, stream);
    let end = stream.and_then(|(before, stream)| {
        let after = stream.at_rest(Some(&before))?;
        let growth = before.growth(&after);
        ensure!(growth.is_none(), "has grown: {}", growth.unwrap_or_default());
        Ok((stream.tally, before, after))
    });
    together.after(number, end)
}

/// How many frames each stream publishes after the warm-up.
fn length() -> u64 {
    frames().max(SHORTEST)
}

/// Streams of every kind of memory and fence, of which the last loses its exporter now and then. `--frames` is how many
/// frames each publishes, 50 a second.
fn come_and_go(seed: u64) -> Result<String> {
    let count = (length() / 1000).clamp(3, 8) as usize;
    let together = Together { barrier: Barrier::new(count), failure: OnceLock::new() };
    let ends: Vec<_> = std::thread::scope(|scope| {
        let start = |number| {
            let together = &together;
            scope.spawn(move || live(number, count, seed, together))
        };
        let threads: Vec<_> = (0..count).map(start).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    if let Some(failure) = together.failure.get() {
        bail!("{failure}");
    }
    let ends: Vec<_> = ends.into_iter().collect::<Result<_>>()?;
    ensure!(ends.len() == count, "a thread of the case panicked");
    let tally = ends.iter().fold(Tally::default(), |sum, (tally, ..)| sum.plus(tally));
    let rests = ends.iter().map(|(_, before, after)| format!("{before}; in the end {after}"));
    Ok(format!("{count} streams: {tally}. {}", rests.collect::<Vec<_>>().join(". ")))
}

impl fmt::Display for Rest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} and {} bytes of GPU memory", self.census, self.taken[0], self.taken[1])
    }
}
