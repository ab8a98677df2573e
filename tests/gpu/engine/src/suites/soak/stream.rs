// SPDX-License-Identifier: MIT OR Apache-2.0

//! One stream of the soak test: an exporter, a permanent reader and two temporary ones.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use frameshare::{FenceKind, MemoryKind, Policy};
use frameshare_gpu_harness::{Place, random::Random};
use frameshare_tests::census::{Census, growth_of_all};

use super::{
    limits::{LIMIT, PACE_US, PATIENCE_MS, RENEW},
    temporary::TemporaryReader,
    watched::Watched,
};
use crate::job::{Bind, Command, Connect, End, Publish, Read, Slow};
use crate::peer::Peer;
use crate::suites::SIZE;

/// Frame sizes, in rotation.
const SIZES: [u64; 3] = [SIZE / 2, SIZE, 2 * SIZE];
/// Polling interval of the temporary readers.
const TURN: Duration = Duration::from_millis(5);
/// Time limit for the cleanup of resources.
const REST: Duration = Duration::from_secs(5);
/// Most slots that an exporter allocates; below it the number varies.
const MAX_SLOTS: usize = 64;
/// Permitted growth: of the process heap in kB, and of the GPU memory that a driver keeps in bytes.
const GROWTH_KB: u64 = 4096;
const GROWTH_GPU: u64 = 16 << 20;

/// Memory kinds and fences of the streams, in rotation.
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
    /// Whether its exporter is killed now and then.
    is_killed: bool,
    random: Random,
    rounds: u64,
    /// Frames published since the permanent reader began to read.
    published: u64,
    exporter: Peer,
    permanent: Peer,
    /// Time at which the exporter last reported the permanent reader as connected.
    seen: Instant,
    temporary: [Option<TemporaryReader>; 2],
}

/// Resources of the long-lived processes of a stream when it is idle.
pub struct Rest {
    census: [Census; 2],
    /// Allocated GPU memory, as seen by the exporter and by the permanent reader.
    taken: [u64; 2],
}

impl Stream<'_> {
    pub fn start(number: usize, is_killed: bool, seed: u64, watched: &Watched) -> Result<Stream<'_>> {
        watched.begins("the start of the exporter and the permanent reader");
        let (memory, fence) = MIX[number % MIX.len()];
        // CUDA does not guarantee that memory of other kinds outlives its exporter.
        let memory = if is_killed { MemoryKind::Vmm } else { memory };
        let (place, exporter, permanent) = (Place::new()?, Peer::exporter()?, Peer::new()?);
        let stream = Stream {
            watched,
            place,
            memory,
            is_killed,
            random: Random::new(seed.wrapping_mul(31).wrapping_add(number as u64)),
            rounds: 0,
            published: 0,
            exporter,
            permanent,
            seen: Instant::now(),
            temporary: [None, None],
        };
        stream.exporter.bind(stream.bind())?;
        stream.permanent.connect(Connect { fence, policy: Policy::Lossless, ..stream.connect() })?;
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
            reconnect: self.is_killed,
            // Speculatively delivered frames are torn when the exporter is killed.
            written_only: self.is_killed,
            ..Connect::default()
        }
    }

    /// Publishes for the given time, and at least one round of every size, while temporary readers
    /// join and leave; then brings the stream to rest.
    pub fn play(&mut self, time: Duration) -> Result<()> {
        let (until, at_least) = (Instant::now() + time, self.rounds + SIZES.len() as u64);
        (self.published, self.seen) = (0, Instant::now());
        self.permanent.begin(&Command::Read(Read { patience_ms: PATIENCE_MS, ..Read::default() }))?;
        while Instant::now() < until || self.rounds < at_least {
            self.round()?;
        }
        self.settle()
    }

    /// Publishes frames of one size.
    fn round(&mut self) -> Result<()> {
        self.rounds += 1;
        let size = SIZES[self.rounds as usize % SIZES.len()];
        self.watched.begins(format!("round {} with frames of {size} bytes", self.rounds));
        self.exporter.execute(Command::Format { caps: format!("round {}", self.rounds) })?;
        let slow = Slow::Sometimes(4000);
        let publish = Publish { frames: RENEW, size, pace_us: PACE_US, slow, ..Publish::default() };
        let kill_at = (self.is_killed && self.rounds.is_multiple_of(4))
            .then(|| Instant::now() + Duration::from_micros(self.random.below(RENEW * PACE_US)));
        self.exporter.begin(&Command::Publish(publish))?;
        if !self.run_until(kill_at)? {
            return self.replace_exporter();
        }
        let frames = self.exporter.published()?.frames;
        self.has_published(frames);
        self.has_permanent()
    }

    /// Checks that the permanent reader is connected: a reader that is evicted while it hangs
    /// reports nothing. It may be reconnecting to a new exporter.
    fn has_permanent(&mut self) -> Result<()> {
        let pid = self.permanent.pid();
        if self.exporter.stats()?.readers.iter().any(|reader| reader.pid == pid) {
            self.seen = Instant::now();
        } else if self.seen.elapsed() > LIMIT {
            let mut notices = self.exporter.texts(Command::Notices)?;
            notices.retain(|notice| notice.contains(&format!(" {pid}:")));
            bail!("the permanent reader has not been connected for {} s: {notices:?}", LIMIT.as_secs());
        }
        Ok(())
    }

    /// Runs the temporary readers until the exporter has completed its command; returns false if
    /// the time to kill it comes first.
    fn run_until(&mut self, kill_at: Option<Instant>) -> Result<bool> {
        while !self.exporter.has_reported()? {
            if kill_at.is_some_and(|kill_at| kill_at < Instant::now()) {
                return Ok(false);
            }
            if self.permanent.has_reported()? {
                let read = self.permanent.was_read().context("permanent reader")?;
                bail!("the permanent reader ended after {} frames: {:?}", read.frames, read.end);
            }
            for at in 0..self.temporary.len() {
                self.step(at)?;
            }
            std::thread::sleep(TURN);
        }
        Ok(true)
    }

    /// Starts a new exporter with the name of the dead one.
    fn replace_exporter(&mut self) -> Result<()> {
        self.watched.begins("the replacement of a killed exporter");
        self.exporter.kill()?;
        self.exporter = Peer::exporter()?;
        self.watched.count(|tally| tally.exporters_killed += 1);
        // Frames published before the kill may be read too.
        self.published += RENEW;
        self.exporter.begin(&Command::Bind(self.bind()))?;
        self.run_until(None)?;
        self.exporter.end().context("replacement exporter")?;
        Ok(())
    }

    fn has_published(&mut self, frames: u64) {
        self.published += frames;
        self.watched.published(frames);
    }

    /// Starts or advances a temporary reader if that is due.
    fn step(&mut self, at: usize) -> Result<()> {
        let Some(reader) = &mut self.temporary[at] else {
            if self.random.below(20) == 0 {
                let reader = TemporaryReader::start(self.connect(), !self.is_killed, &mut self.random)?;
                self.temporary[at] = Some(reader);
                self.watched.count(|tally| tally.joined += 1);
            }
            return Ok(());
        };
        if reader.step(self.watched)? {
            self.temporary[at] = None;
        }
        Ok(())
    }

    /// Kills the temporary readers, publishes some frames of a distinct size one by one, and checks
    /// the totals of the permanent reader.
    fn settle(&mut self) -> Result<()> {
        self.watched.begins("the removal of the temporary readers");
        for reader in self.temporary.iter_mut().flatten() {
            reader.remove(self.watched)?;
        }
        // Dropping a peer ends its process.
        self.temporary = [None, None];
        self.exporter.execute(Command::AwaitReaders { count: 1, ms: 20_000 })?;
        self.rounds += 1;
        self.watched.begins("the last frames and the permanent reader's reading of them");
        self.exporter.execute(Command::Format { caps: format!("rest {}", self.rounds) })?;
        for _ in 0..3 {
            self.exporter.publish(Publish {
                frames: 1,
                size: SIZE / 4,
                drain: true,
                ..Publish::default()
            })?;
            self.has_published(1);
        }
        self.exporter.execute(Command::EndOfStream)?;
        let read = self.permanent.was_read().context("permanent reader")?;
        ensure!(read.wrong == 0, "the permanent reader got a wrong frame: {:?}", read.first_wrong);
        ensure!(
            read.end == End::Stream,
            "the permanent reader ended after {} frames: {:?}",
            read.frames,
            read.end
        );
        ensure!(read.lost == 0, "the permanent reader lost {} frames", read.lost);
        let all = if self.is_killed { read.frames <= self.published } else { read.frames == self.published };
        ensure!(all, "the permanent reader read {} of {} frames", read.frames, self.published);
        self.watched.count(|tally| tally.frames += read.frames);
        Ok(())
    }

    fn rest(&self) -> Result<Rest> {
        let taken = [self.exporter.taken_memory()?, self.permanent.taken_memory()?];
        let census = [Census::of(self.exporter.pid())?, Census::of(self.permanent.pid())?];
        Ok(Rest { census, taken })
    }

    /// Measures the resources after cleanup: none of former sizes may be left, and no more than
    /// `before`.
    pub fn at_rest(&self, before: Option<&Rest>) -> Result<Rest> {
        self.watched.begins("the cleanup of resources");
        if before.is_none() {
            // Let earlier cleanup finish: resources freed late must not hide later growth.
            std::thread::sleep(REST / 4);
        }
        let until = Instant::now() + REST;
        loop {
            let (now, retired) = (self.rest()?, self.exporter.stats()?.retired_bytes);
            let is_calm = retired == 0 && before.is_none_or(|before| before.growth(&now).is_none());
            if is_calm || Instant::now() > until {
                ensure!(retired == 0, "{retired} bytes of retired memory were not freed");
                return Ok(now);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Rest {
    /// Returns what has grown. The processes that replaced a killed exporter are not compared.
    pub fn growth(&self, after: &Rest) -> Option<String> {
        let tolerant = |census: Census| census.with_slots_up_to(MAX_SLOTS).with_kilobytes(GROWTH_KB);
        let mut growth = growth_of_all(&self.census.clone().map(tolerant), &after.census);
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
        let Self { census: [exporter, permanent], taken } = self;
        write!(f, "{exporter}, {permanent}, {} and {} bytes of GPU memory", taken[0], taken[1])
    }
}
