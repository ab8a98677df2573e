// SPDX-License-Identifier: MIT OR Apache-2.0

//! Slow and paused readers of the engine: the age of their frames, the cost of a backlog that stays
//! empty, and the pause of one reader beside others. Each figure has a control in the same round.

use crate::{stamp::now, usage::Usage};
use anyhow::{Context, Result};
use frameshare::{
    Endpoint, Interrupt, Policy, Wait,
    exporter::{Config, Exporter, Frame, Purpose, SlowReaders},
    fence::Written,
    reader::{self, Item, Reader},
};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use std::{
    env,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Bytes of a frame.
const SIZE: u64 = 1 << 20;

/// A reader in a process of its own, which reads to the end of the stream.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Reads {
    pub socket: String,
    pub policy: Policy,
    pub max_held: u32,
    pub max_queued: u32,
    /// Time that it takes over each frame.
    pub takes: Duration,
}

/// The frames that a reader got.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Got {
    pub frames: u64,
    pub lost: u64,
    /// Age of the frames when they were taken, in µs.
    pub p50: f64,
    pub p99: f64,
    /// CPU time of the reader's process a frame, in µs.
    pub cpu: f64,
}

/// Reads to the end of the stream, and prints the result.
pub fn read(plan: &Reads) -> Result<()> {
    let config = reader::Config::default()
        .policy(plan.policy)
        .max_held(plan.max_held)
        .max_queued(plan.max_queued)
        .connection_timeout(None);
    let interrupt = Interrupt::new()?;
    let mut reader = Reader::connect(&Endpoint::at(&plan.socket)?, config, &interrupt)?;
    let mut ages = Vec::new();
    loop {
        match reader.next(None, &interrupt)? {
            Some(Item::Frame(frame)) => {
                ages.push(now().saturating_sub(frame.descriptor().published));
                if !plan.takes.is_zero() {
                    thread::sleep(plan.takes);
                }
            }
            Some(Item::EndOfStream) => break,
            _ => {}
        }
    }
    ages.sort_unstable();
    let at = |share: f64| ages.get((ages.len() as f64 * share) as usize).map_or(0.0, |age| *age as f64 / 1e3);
    let (p50, p99) = (at(0.5), at(0.99));
    let cpu = Usage::now().cpu as f64 / ages.len().max(1) as f64 / 1e3;
    crate::say(&Got { frames: ages.len() as u64, lost: reader.stats().lost, p50, p99, cpu })
}

/// A running reader.
struct Running {
    process: Child,
    out: BufReader<ChildStdout>,
}

impl Running {
    fn start(plan: &Reads) -> Result<Self> {
        let mut process = Command::new(env::current_exe()?)
            .args(["read-slowly", &serde_json::to_string(plan)?])
            .stdout(Stdio::piped())
            .spawn()?;
        let out = BufReader::new(process.stdout.take().context("its output is piped")?);
        Ok(Self { process, out })
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.process), signal)?)
    }

    fn finish(mut self) -> Result<Got> {
        let mut line = String::new();
        self.out.read_line(&mut line)?;
        self.process.wait()?;
        serde_json::from_str(&line).with_context(|| format!("a reader said {line:?}"))
    }
}

/// A stream and its readers.
pub struct Stream {
    exporter: Exporter,
    readers: Vec<Running>,
}

impl Stream {
    pub fn start(socket: &Path, slow: SlowReaders, plans: &[Reads]) -> Result<Self> {
        let config = Config::default().slow_readers(slow);
        let exporter = Exporter::bind(&Endpoint::at(socket)?, config, |_| ())?;
        let readers = plans.iter().map(Running::start).collect::<Result<_>>()?;
        while exporter.reader_count() < plans.len() {
            thread::sleep(Duration::from_millis(1));
        }
        Ok(Self { exporter, readers })
    }

    /// Publishes at a rate, and calls `each` with the number of each frame before it.
    pub fn publish(
        &self,
        frames: u32,
        per_second: u32,
        mut each: impl FnMut(u32) -> Result<()>,
    ) -> Result<()> {
        let begin = Instant::now();
        for number in 0..frames {
            each(number)?;
            // A frame is written before it is due.
            let slot = self.exporter.acquire(SIZE, Purpose::Copy, Wait::No)?;
            let due = begin + Duration::from_secs(1) * number / per_second;
            thread::sleep(due.saturating_duration_since(Instant::now()));
            self.exporter.publish(Frame::new(&slot, SIZE, Written::Cpu), Wait::Forever)?;
        }
        Ok(())
    }

    pub fn finish(self) -> Result<Vec<Got>> {
        self.exporter.end_of_stream();
        let got = self.readers.into_iter().map(Running::finish).collect();
        drop(self.exporter);
        got
    }
}

/// Measures all cases, and prints tables.
pub fn all(rounds: usize) -> Result<()> {
    let folder = env::temp_dir().join(format!("frameshare-slow-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let socket = folder.join("s.sock");
    let plan = |policy, max_held, max_queued, takes| Reads {
        socket: socket.to_string_lossy().into_owned(),
        policy,
        max_held,
        max_queued,
        takes: Duration::from_millis(takes),
    };
    ages(rounds, &socket, &plan)?;
    empty(rounds, &socket, &plan)?;
    pause(rounds, &socket, &plan)?;
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

type Plan<'a> = &'a dyn Fn(Policy, u32, u32, u64) -> Reads;

/// Readers that take 100 ms over each frame of 30 in a second.
fn ages(rounds: usize, socket: &Path, plan: Plan<'_>) -> Result<()> {
    println!(
        "\nAge in ms of a frame when a `latest` reader takes it, 30 frames/s, 100 ms a frame (p50, p99)\n"
    );
    println!("| max-held | max-queued=1 | as many as max-held (control) |\n| --- | --- | --- |");
    for held in [1, 4, 16] {
        let (mut newest, mut control) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let plans = [1, held].map(|queued| plan(Policy::Latest, held, queued, 100));
            let stream = Stream::start(socket, SlowReaders::Wait, &plans)?;
            stream.publish(120, 30, |_| Ok(()))?;
            let got = stream.finish()?;
            newest.push((got[0].p50 / 1e3, got[0].p99 / 1e3));
            control.push((got[1].p50 / 1e3, got[1].p99 / 1e3));
        }
        println!("| {held} | {} | {} |", pairs(&newest), pairs(&control));
    }
    Ok(())
}

/// The exporter's CPU time a frame, with a reader that keeps up: with and without a backlog.
fn empty(rounds: usize, socket: &Path, plan: Plan<'_>) -> Result<()> {
    const FRAMES: u32 = 4000;
    let modes = [SlowReaders::QueueThenDisconnect, SlowReaders::Wait];
    let mut costs = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        for (mode, costs) in modes.into_iter().zip(&mut costs) {
            let stream = Stream::start(socket, mode, &[plan(Policy::Lossless, 16, 1, 0)])?;
            stream.publish(200, 2000, |_| Ok(()))?;
            let begin = Usage::now();
            stream.publish(FRAMES, 2000, |_| Ok(()))?;
            costs.push(Usage::now().since(begin).cpu as f64 / f64::from(FRAMES) / 1e3);
            stream.finish()?;
        }
    }
    println!("\nExporter's CPU time in µs a frame, 2,000 frames/s, one lossless reader that keeps up\n");
    println!("| with a backlog, empty | without (control) | difference |\n| --- | --- | --- |");
    let [with, without] = costs;
    let difference: Vec<_> = with.iter().zip(&without).map(|(with, without)| with - without).collect();
    println!("| {} | {} | {} |", spread(&with), spread(&without), spread(&difference));
    Ok(())
}

/// A lossless reader that is stopped for 1.5 s, beside a lossless and a `latest` one.
fn pause(rounds: usize, socket: &Path, plan: Plan<'_>) -> Result<()> {
    println!("\nOne of three readers is stopped for 1.5 s, 100 frames/s\n");
    println!(
        "| | other lossless reader, p99 in µs | `latest` reader, p99 in µs | lost | until it has caught up, ms |\n\
         | --- | --- | --- | --- | --- |"
    );
    let cases = [
        ("backlog", SlowReaders::QueueThenDisconnect, true),
        ("no pause (control)", SlowReaders::QueueThenDisconnect, false),
        ("no backlog", SlowReaders::Wait, true),
    ];
    let mut results: [Paused; 3] = Default::default();
    for _ in 0..rounds {
        for ((_, mode, is_paused), result) in cases.iter().zip(&mut results) {
            pause_once(socket, plan, *mode, *is_paused, result)?;
        }
    }
    for ((name, ..), Paused { lossless, latest, recovery, lost }) in cases.iter().zip(&results) {
        let caught_up = if recovery.is_empty() { "-".into() } else { spread(recovery) };
        println!("| {name} | {} | {} | {lost} | {caught_up} |", spread(lossless), spread(latest));
    }
    // The aim is at most 1.5, in the median of the rounds.
    let [backlog, control, _] = &results;
    let (lossless, latest) =
        (ratios(&backlog.lossless, &control.lossless), ratios(&backlog.latest, &control.latest));
    println!("| backlog to control, in the same round | {} | {} | | |", spread(&lossless), spread(&latest));
    Ok(())
}

/// Figures of one case, of each round: p99 of both readers in µs, and the time to catch up in ms.
#[derive(Default)]
struct Paused {
    lossless: Vec<f64>,
    latest: Vec<f64>,
    recovery: Vec<f64>,
    lost: u64,
}

fn pause_once(
    socket: &Path,
    plan: Plan<'_>,
    mode: SlowReaders,
    is_paused: bool,
    result: &mut Paused,
) -> Result<()> {
    let plans =
        [plan(Policy::Lossless, 4, 1, 0), plan(Policy::Lossless, 4, 1, 0), plan(Policy::Latest, 4, 4, 0)];
    let stream = Stream::start(socket, mode, &plans)?;
    let waiting = || stream.exporter.stats().readers.iter().any(|reader| reader.waiting > 0);
    let mut resumed = None;
    let waker = thread::scope(|scope| {
        // The publication may wait for the reader: another thread wakes it.
        let pause = scope.spawn(|| {
            thread::sleep(Duration::from_secs(1));
            if is_paused {
                stream.readers[0].signal(Signal::STOP)?;
                thread::sleep(Duration::from_millis(1500));
                stream.readers[0].signal(Signal::CONT)?;
            }
            anyhow::Ok(Instant::now())
        });
        stream.publish(400, 100, |_| {
            if pause.is_finished() && resumed.is_none() && is_paused {
                let begin = Instant::now();
                while waiting() {
                    thread::yield_now();
                }
                resumed = Some(begin.elapsed());
            }
            Ok(())
        })?;
        pause.join().map_err(|_| anyhow::anyhow!("a thread has panicked"))?
    });
    waker?;
    let got = stream.finish()?;
    result.lossless.push(got[1].p99);
    result.latest.push(got[2].p99);
    result.lost += got.iter().map(|got| got.lost).sum::<u64>();
    result.recovery.extend(resumed.map(|time| time.as_secs_f64() * 1e3));
    Ok(())
}

/// Returns the ratio of two figures for each round.
fn ratios(figures: &[f64], controls: &[f64]) -> Vec<f64> {
    figures.iter().zip(controls).map(|(figure, control)| figure / control).collect()
}

/// The median of some figures, and their range.
pub fn spread(figures: &[f64]) -> String {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (Some(least), Some(most)) = (sorted.first(), sorted.last()) else { return "-".into() };
    format!("{:.1} ({least:.1} to {most:.1})", sorted[sorted.len() / 2])
}

fn pairs(figures: &[(f64, f64)]) -> String {
    let (p50, p99): (Vec<_>, Vec<_>) = figures.iter().copied().unzip();
    format!("{}, {}", spread(&p50), spread(&p99))
}
