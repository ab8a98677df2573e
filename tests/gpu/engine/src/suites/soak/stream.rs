//! One stream: an exporter, a reader that stays, and two that come and go.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use frameshare::{FenceKind, MemoryKind, Policy};
use frameshare_gpu_harness::{Place, random::Random};
use frameshare_tests::census::Census;

use super::{LIMIT, guest::Guest, watched::Watched};
use crate::job::{Bind, Command, Connect, End, Publish, Read, Slow};
use crate::peer::Peer;
use crate::suites::SIZE;

/// Frames of one size, and how far they are apart.
pub const RENEW: u64 = 25;
pub const PACE_US: u64 = 20_000;
/// The sizes that frames have in turn.
const SIZES: [u64; 3] = [SIZE / 2, SIZE, 2 * SIZE];
/// How long guests are left alone.
const TURN: Duration = Duration::from_millis(5);
/// Nobody gives anybody up before the case does, so that it says what hangs.
pub const PATIENCE_MS: u64 = 2 * LIMIT.as_millis() as u64;
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

pub struct Stream<'a> {
    watched: &'a Watched,
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
    /// When the exporter had the reader that stays last.
    seen: Instant,
    guests: [Option<Guest>; 2],
}

/// What the processes of a stream that stay have, when nothing moves.
pub struct Rest {
    census: Census,
    /// Of the GPU's memory, as the exporter sees it and as the reader does.
    taken: [u64; 2],
}

impl Stream<'_> {
    pub fn start(number: usize, is_doomed: bool, seed: u64, watched: &Watched) -> Result<Stream<'_>> {
        watched.begins("the start of its exporter and of the reader that stays");
        let (memory, fence) = MIX[number % MIX.len()];
        // CUDA does not promise that other memory outlives its exporter.
        let memory = if is_doomed { MemoryKind::Vmm } else { memory };
        let (place, exporter, resident) = (Place::new()?, Peer::new()?, Peer::new()?);
        let stream = Stream {
            watched,
            place,
            memory,
            is_doomed,
            random: Random::new(seed.wrapping_mul(31).wrapping_add(number as u64)),
            rounds: 0,
            published: 0,
            exporter,
            resident,
            seen: Instant::now(),
            guests: [None, None],
        };
        stream.exporter.bind(stream.bind())?;
        stream.resident.connect(Connect { fence, policy: Policy::Lossless, ..stream.connect() })?;
        Ok(stream)
    }

    fn bind(&self) -> Bind {
        Bind {
            path: self.place.path(),
            memory: Some(self.memory),
            reader_timeout_ms: Some(PATIENCE_MS),
            ..Bind::default()
        }
    }

    fn connect(&self) -> Connect {
        Connect {
            path: self.place.path(),
            connection_timeout_ms: Some(PATIENCE_MS),
            reconnect: self.is_doomed,
            // What is pushed ahead of a fence is torn when the exporter is killed.
            gpu_wait: Some(!self.is_doomed),
            ..Connect::default()
        }
    }

    /// Publishes for so long while readers come and go, and frames of each size at least; then lets everything come to
    /// rest.
    pub fn play(&mut self, time: Duration) -> Result<()> {
        let (until, at_least) = (Instant::now() + time, self.rounds + SIZES.len() as u64);
        (self.published, self.seen) = (0, Instant::now());
        self.resident.begin(&Command::Read(Read { patience_ms: PATIENCE_MS, ..Read::default() }))?;
        while Instant::now() < until || self.rounds < at_least {
            self.round()?;
        }
        self.come_to_rest()
    }

    /// Frames of one size.
    fn round(&mut self) -> Result<()> {
        self.rounds += 1;
        let size = SIZES[self.rounds as usize % SIZES.len()];
        self.watched.begins(format!("round {}, of frames of {size} bytes", self.rounds));
        self.exporter.tell(Command::Format { caps: format!("round {}", self.rounds) })?;
        let slow = Slow::Sometimes(4000);
        let publish = Publish { frames: RENEW, size, pace_us: PACE_US, slow, ..Publish::default() };
        let doom = (self.is_doomed && self.rounds.is_multiple_of(4))
            .then(|| Instant::now() + Duration::from_micros(self.random.below(RENEW * PACE_US)));
        self.exporter.begin(&Command::Publish(publish))?;
        if !self.does_its_job(doom)? {
            return self.replace_exporter();
        }
        let frames = self.exporter.published()?.frames;
        self.has_published(frames);
        self.has_resident()
    }

    /// Checks that the reader that stays does: one that is cut off while it hangs says nothing. It may be on the way to
    /// another exporter.
    fn has_resident(&mut self) -> Result<()> {
        let pid = self.resident.pid();
        if self.exporter.stats()?.readers.iter().any(|reader| reader.pid == pid) {
            self.seen = Instant::now();
        } else if self.seen.elapsed() > LIMIT {
            let mut notices = self.exporter.texts(Command::Notices)?;
            notices.retain(|notice| notice.contains(&format!(" {pid}:")));
            bail!("who stays has not been there for {} s: {notices:?}", LIMIT.as_secs());
        }
        Ok(())
    }

    /// Lets readers come and go until the exporter has done its job, which it has not if it meets its doom before.
    fn does_its_job(&mut self, doom: Option<Instant>) -> Result<bool> {
        while !self.exporter.has_reported()? {
            if doom.is_some_and(|doom| doom < Instant::now()) {
                return Ok(false);
            }
            if self.resident.has_reported()? {
                let read = self.resident.was_read().context("who stays")?;
                bail!("who stays has left after {} frames: {:?}", read.frames, read.end);
            }
            for at in 0..self.guests.len() {
                self.turn(at)?;
            }
            std::thread::sleep(TURN);
        }
        Ok(true)
    }

    /// The next takes the name of one that is dead.
    fn replace_exporter(&mut self) -> Result<()> {
        self.watched.begins("another exporter's coming in place of a killed one");
        self.exporter.kill()?;
        self.exporter = Peer::new()?;
        self.watched.count(|tally| tally.exporters_killed += 1);
        // What was published before the kill may be read as well.
        self.published += RENEW;
        self.exporter.begin(&Command::Bind(self.bind()))?;
        self.does_its_job(None)?;
        self.exporter.end().context("the next exporter")?;
        Ok(())
    }

    fn has_published(&mut self, frames: u64) {
        self.published += frames;
        self.watched.published(frames);
    }

    /// Has a guest come, go on or go, if that is due.
    fn turn(&mut self, at: usize) -> Result<()> {
        let Some(guest) = &mut self.guests[at] else {
            if self.random.below(20) == 0 {
                let guest = Guest::invite(self.connect(), !self.is_doomed, &mut self.random)?;
                self.guests[at] = Some(guest);
                self.watched.count(|tally| tally.joined += 1);
            }
            return Ok(());
        };
        if guest.turn(self.watched)? {
            self.guests[at] = None;
        }
        Ok(())
    }

    /// Sends the guests away, publishes some frames of a size of their own, one by one, and sees what the reader that stays
    /// has read.
    fn come_to_rest(&mut self) -> Result<()> {
        self.watched.begins("guests' being sent away");
        for guest in self.guests.iter_mut().flatten() {
            guest.send_away(self.watched)?;
        }
        // A peer that is dropped is gone then.
        self.guests = [None, None];
        self.exporter.tell(Command::AwaitReaders { count: 1, ms: 20_000 })?;
        self.rounds += 1;
        self.watched.begins("the last frames, all that the reader that stays has to read");
        self.exporter.tell(Command::Format { caps: format!("rest {}", self.rounds) })?;
        for _ in 0..3 {
            self.exporter.publish(Publish {
                frames: 1,
                size: SIZE / 4,
                drain: true,
                ..Publish::default()
            })?;
            self.has_published(1);
        }
        self.exporter.tell(Command::EndOfStream)?;
        let read = self.resident.was_read().context("who stays")?;
        ensure!(read.wrong == 0, "who stays saw {:?}", read.first_wrong);
        ensure!(read.end == End::Stream, "who stays after {} frames: {:?}", read.frames, read.end);
        ensure!(read.lost == 0, "who stays lost {} frames", read.lost);
        let all = if self.is_doomed { read.frames <= self.published } else { read.frames == self.published };
        ensure!(all, "who stays read {} of {} frames", read.frames, self.published);
        self.watched.count(|tally| tally.frames += read.frames);
        Ok(())
    }

    fn rest(&self) -> Result<Rest> {
        let taken =
            [self.exporter.number(Command::TakenMemory)?, self.resident.number(Command::TakenMemory)?];
        Ok(Rest { census: Census::of(&[self.exporter.pid(), self.resident.pid()])?, taken })
    }

    /// What it has once nothing more is cleared away: nothing of former sizes, and no more than `before`.
    pub fn at_rest(&self, before: Option<&Rest>) -> Result<Rest> {
        self.watched.begins("coming to rest");
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
    pub fn growth(&self, after: &Rest) -> Option<String> {
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

impl fmt::Display for Rest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} and {} bytes of GPU memory", self.census, self.taken[0], self.taken[1])
    }
}
