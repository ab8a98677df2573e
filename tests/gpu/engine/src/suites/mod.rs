// SPDX-License-Identifier: MIT OR Apache-2.0

//! Test cases by suite. Each case is documented at its function.

mod backlog;
mod bench;
mod captures;
mod crashes;
mod downloads;
mod endurance;
mod fences;
mod foreign;
mod fresh;
mod hostile;
mod isolated;
mod mps;
mod order;
mod policies;
mod shortage;
mod soak;
mod steady;
mod two_gpus;
mod waits;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use frameshare::{FenceKind, MemoryKind, Policy};
use frameshare_gpu_harness::order::{Expected, expect, is_checked};
use frameshare_gpu_harness::{Case, Needs, Place};

use crate::job::{Bind, Command, Connect, End, Publish, Read, WasRead};
use crate::peer::Peer;

/// Environment variable with the number of frames per case.
pub const FRAMES: &str = "GPU_ENGINE_FRAMES";

/// Frame size: writing a smaller frame completes before a reader could observe it in between.
const SIZE: u64 = 512 << 10;

/// Time limit of every wait, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(20);
const PATIENCE_MS: u64 = PATIENCE.as_millis() as u64;
/// Longer than any case: a stall of this length is resumed or its process killed first.
const FOREVER_US: u64 = 600_000_000;

/// All cases.
pub static ALL: &[&[Case]] = &[
    fences::CASES,
    order::CASES,
    crashes::CASES,
    hostile::CASES,
    endurance::CASES,
    soak::CASES,
    foreign::CASES,
    steady::CASES,
    waits::CASES,
    policies::CASES,
    backlog::CASES,
    downloads::CASES,
    captures::CASES,
    shortage::CASES,
    fresh::CASES,
    two_gpus::CASES,
    isolated::CASES,
    mps::CASES,
    bench::CASES,
];

/// Returns a case that needs only a GPU and little time.
const fn case(suite: &'static str, name: &'static str, conduct: fn(u64) -> Result<String>) -> Case {
    Case { suite, name, seconds: 60, needs: Needs::Nothing, conduct }
}

/// Returns the number of frames per case.
fn frames() -> u64 {
    std::env::var(FRAMES).ok().and_then(|count| count.parse().ok()).unwrap_or(10_000)
}

const KINDS: [MemoryKind; 3] = [MemoryKind::Vmm, MemoryKind::Pool, MemoryKind::Legacy];
const FENCES: [FenceKind; 2] = [FenceKind::Event, FenceKind::Timeline];

/// Runs a case with each kind of memory and joins the results.
fn each_kind(one: impl Fn(MemoryKind) -> Result<String>) -> Result<String> {
    let details =
        KINDS.into_iter().map(|kind| Ok(format!("{kind}: {}", one(kind).with_context(|| kind.to_string())?)));
    details.collect::<Result<Vec<_>>>().map(|details| details.join("; "))
}

/// A stream with its exporter.
struct Setup {
    place: Place,
    exporter: Peer,
    seed: u64,
}

/// Polls until `lacking` returns nothing; at the deadline its last text becomes the error.
fn wait_until(within: Duration, lacking: impl Fn() -> Result<Option<String>>) -> Result<()> {
    let until = Instant::now() + within;
    while let Some(what) = lacking()? {
        ensure!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

impl Setup {
    /// Starts an exporter of one kind of memory.
    fn new(kind: MemoryKind, seed: u64) -> Result<Setup> {
        Setup::with(seed, Bind { memory: Some(kind), ..Bind::default() })
    }

    /// Starts an exporter with the engine's default fence timeout, after which a reader with
    /// pending fences counts as dead.
    fn with_deadline(kind: MemoryKind, seed: u64) -> Result<Setup> {
        let fence_timeout = frameshare::exporter::Config::default().fence_timeout;
        let fence_timeout_ms = Some(fence_timeout.as_millis() as u64);
        Setup::with(seed, Bind { memory: Some(kind), fence_timeout_ms, ..Bind::default() })
    }

    fn with(seed: u64, bind: Bind) -> Result<Setup> {
        let setup = Setup { place: Place::new()?, exporter: Peer::exporter()?, seed };
        setup.exporter.bind(Bind { path: setup.place.path(), seed, ..bind })?;
        Ok(setup)
    }

    /// Returns the configuration of a lossless reader.
    fn lossless(&self, number: usize, fence: Option<FenceKind>) -> Connect {
        Connect {
            path: self.place.path(),
            fence,
            policy: Policy::Lossless,
            seed: self.seed.wrapping_mul(31) + number as u64,
            ..Connect::default()
        }
    }

    /// Connects readers in parallel: creating their contexts takes time.
    fn join(&self, readers: &[Peer], connect: impl Fn(usize) -> Connect) -> Result<()> {
        for (number, reader) in readers.iter().enumerate() {
            reader.begin(&Command::Connect(connect(number)))?;
        }
        for reader in readers {
            reader.end().context("connecting")?;
        }
        self.await_readers(readers.len())
    }

    fn await_readers(&self, count: usize) -> Result<()> {
        self.exporter.execute(Command::AwaitReaders { count, ms: 20_000 })
    }

    /// Waits until every reader has taken all published frames.
    fn await_taken(&self) -> Result<()> {
        wait_until(PATIENCE, || {
            let left = self.exporter.stats()?.readers.iter().any(|reader| reader.queued > 0);
            Ok(left.then(|| "readers did not take all published frames".into()))
        })
    }

    /// Waits until the memory of retired generations is freed.
    fn frees_retired(&self) -> Result<()> {
        wait_until(PATIENCE, || {
            let left = self.exporter.stats()?.retired_bytes;
            Ok((left > 0).then(|| format!("{left} bytes of retired memory were not freed")))
        })
    }

    /// Waits until all slots are free.
    fn gets_all_slots_back(&self, within: Duration) -> Result<()> {
        wait_until(within, || {
            let stats = self.exporter.stats()?;
            let (free, all) = (stats.free_slots, stats.slots);
            Ok((free != all).then(|| format!("{free} of {all} slots are free")))
        })
    }

    /// Publishes while readers read, each to the end of the stream.
    fn run(&self, readers: &[Peer], publish: Publish, read: impl Fn(usize) -> Read) -> Result<Vec<WasRead>> {
        for (number, reader) in readers.iter().enumerate() {
            reader.begin(&Command::Read(read(number)))?;
        }
        let published = self.exporter.publish(publish);
        self.exporter.execute(Command::EndOfStream)?;
        let read: Vec<_> = readers.iter().map(Peer::was_read).collect();
        published?;
        read.into_iter().collect()
    }
}

/// Returns the parameters of reading to the end of the stream.
fn to_the_end() -> Read {
    Read { patience_ms: 30_000, ..Read::default() }
}

/// Checks that a reader got every frame intact.
fn whole(read: &WasRead, frames: u64) -> Result<()> {
    let WasRead { frames: got, lost, wrong, first_wrong, end, .. } = read;
    ensure!(*end == End::Stream, "after {got} frames: {end:?}");
    ensure!(*got == frames && *lost == 0, "{got} of {frames} frames arrived, {lost} were lost");
    ensure!(*wrong == 0, "{wrong} of {frames} frames are wrong: {}", first_wrong.clone().unwrap_or_default());
    Ok(())
}

/// Checks that the only error of this case was detected: by the detector of unordered accesses
/// where it is at work, since not every run shows wrong frames.
fn reported(read: &WasRead, what: &str) -> Result<String> {
    expect(Expected::Unordered);
    if is_checked() { Ok(what.to_owned()) } else { caught(read, what) }
}

/// Checks that an expected error was detected.
fn caught(read: &WasRead, what: &str) -> Result<String> {
    ensure!(read.wrong > 0, "{what}, but none of {} frames is wrong", read.frames);
    Ok(format!("{}: {} of {} frames wrong", what, read.wrong, read.frames))
}
