// SPDX-License-Identifier: MIT OR Apache-2.0

//! Many streams and many readers in one process: 32 cameras read by one thread and by a thread for
//! each, and one stream of 60 frames/s with 1 to 64 readers.

use crate::{slow::spread, stamp::nanoseconds};
use anyhow::{Context, Result};
use frameshare::{
    Endpoint, Interrupt, Wait,
    exporter::{Config, Exporter, Frame, Purpose},
    fence::Written,
    reader::{self, Item, Reader, ReaderSet},
};
use rustix::time::ClockId;
use serde::{Deserialize, Serialize};
use std::{
    env,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Bytes of a frame.
const SIZE: u64 = 64 << 10;
const CAMERAS: u32 = 32;
const CAMERA_RATE: u32 = 30;
const STREAM_RATE: u32 = 60;
const READERS: [u32; 3] = [1, 8, 64];
const SECONDS: u32 = 4;

/// Readers of one process.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Plan {
    /// The socket of each reader.
    sockets: Vec<String>,
    /// Each reader has a thread of its own.
    threads: bool,
}

/// The outcome of a process of readers.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Got {
    frames: u64,
    lost: u64,
    /// CPU time in ns.
    cpu: u64,
}

fn connect(socket: &str) -> Result<Reader> {
    let config = reader::Config::default().max_held(2);
    Ok(Reader::connect(&Endpoint::at(socket)?, config, &Interrupt::new()?)?)
}

/// Reads to the end of all streams, and prints the result.
pub fn gather(plan: &str) -> Result<()> {
    let plan: Plan = serde_json::from_str(plan).context("no plan of readers")?;
    let readers = plan.sockets.iter().map(|socket| connect(socket)).collect::<Result<Vec<_>>>()?;
    let begin = nanoseconds(ClockId::ProcessCPUTime);
    let counts = if plan.threads { read_in_threads(readers) } else { read_in_set(readers) }?;
    crate::say(&Got { cpu: nanoseconds(ClockId::ProcessCPUTime) - begin, ..counts })
}

fn read_in_set(readers: Vec<Reader>) -> Result<Got> {
    let interrupt = Interrupt::new()?;
    let (mut set, mut got, mut open) = (ReaderSet::default(), Got::default(), readers.len());
    let keys: Vec<_> = readers.into_iter().map(|reader| set.add(reader)).collect();
    while open > 0 {
        match set.next(None, &interrupt)?.context("it waits without limit")?.1? {
            Item::Frame(_) => got.frames += 1,
            Item::EndOfStream => open -= 1,
            _ => {}
        }
    }
    got.lost = keys.iter().filter_map(|key| set.get(*key)).map(|reader| reader.stats().lost).sum();
    Ok(got)
}

fn read_in_threads(readers: Vec<Reader>) -> Result<Got> {
    let read = |mut reader: Reader| {
        let (interrupt, mut frames) = (Interrupt::new()?, 0_u64);
        loop {
            match reader.next(None, &interrupt)? {
                Some(Item::Frame(_)) => frames += 1,
                Some(Item::EndOfStream) => break,
                _ => {}
            }
        }
        Ok((frames, reader.stats().lost))
    };
    let threads: Vec<_> = readers.into_iter().map(|reader| thread::spawn(move || read(reader))).collect();
    let mut got = Got::default();
    for thread in threads {
        let counts: Result<(u64, u64)> =
            thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a reader panicked")));
        let (frames, lost) = counts?;
        (got.frames, got.lost) = (got.frames + frames, got.lost + lost);
    }
    Ok(got)
}

/// The exporters of a run in this process, and a process of their readers.
struct Run {
    exporters: Vec<Exporter>,
    readers: Child,
}

/// CPU time of publishing frames, in ns.
#[derive(Default)]
struct Cost {
    /// Of the publishing thread, in acquiring.
    acquire: u64,
    publish: u64,
    /// Of all threads of the exporting process.
    process: u64,
}

impl Run {
    fn start(folder: &Path, streams: u32, readers: u32, threads: bool) -> Result<Self> {
        let socket = |stream: u32| folder.join(format!("s{stream}.sock")).to_string_lossy().into_owned();
        let bind =
            |stream: u32| Ok(Exporter::bind(&Endpoint::at(socket(stream))?, Config::default(), |_| ())?);
        let exporters = (0..streams).map(bind).collect::<Result<Vec<_>>>()?;
        let sockets = (0..streams).flat_map(|stream| (0..readers).map(move |_| stream)).map(socket).collect();
        let plan = serde_json::to_string(&Plan { sockets, threads })?;
        let readers_process =
            Command::new(env::current_exe()?).args(["gather", &plan]).stdout(Stdio::piped()).spawn()?;
        while exporters.iter().any(|exporter| exporter.reader_count() < readers as usize) {
            thread::sleep(Duration::from_millis(1));
        }
        Ok(Self { exporters, readers: readers_process })
    }

    /// Publishes to all streams in turns, each at this rate.
    fn publish(&self, rate: u32) -> Result<Cost> {
        let (begin, mut cost) = (Instant::now(), Cost::default());
        let process = nanoseconds(ClockId::ProcessCPUTime);
        let now = || nanoseconds(ClockId::ThreadCPUTime);
        let streams = self.exporters.len() as u32;
        for frame in 0..SECONDS * rate * streams {
            let due = begin + Duration::from_secs(1) * frame / (rate * streams);
            thread::sleep(due.saturating_duration_since(Instant::now()));
            let exporter = &self.exporters[(frame % streams) as usize];
            let times = (now(), exporter.acquire(SIZE, Purpose::Copy, Wait::No)?, now());
            exporter.publish(Frame::new(&times.1, SIZE, Written::Cpu), Wait::Forever)?;
            cost.acquire += times.2 - times.0;
            cost.publish += now() - times.2;
        }
        cost.process = nanoseconds(ClockId::ProcessCPUTime) - process;
        Ok(cost)
    }

    fn finish(mut self) -> Result<Got> {
        self.exporters.iter().for_each(Exporter::end_of_stream);
        let mut line = String::new();
        BufReader::new(self.readers.stdout.take().context("its output is piped")?).read_line(&mut line)?;
        self.readers.wait()?;
        serde_json::from_str(&line).with_context(|| format!("the readers said {line:?}"))
    }
}

/// Measures, and prints two tables.
pub fn all(rounds: usize) -> Result<()> {
    let folder = env::temp_dir().join(format!("frameshare-many-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let done = cameras(&folder, rounds).and_then(|()| readers(&folder, rounds));
    std::fs::remove_dir_all(&folder)?;
    done
}

fn cameras(folder: &Path, rounds: usize) -> Result<()> {
    println!("\n{CAMERAS} streams of {CAMERA_RATE} frames/s, one process of readers\n");
    println!("| readers | CPU of a core, % | frames | lost |\n| --- | --- | --- | --- |");
    let mut figures = [(Vec::new(), 0, 0), (Vec::new(), 0, 0)];
    for _ in 0..rounds {
        for (threads, (cpu, frames, lost)) in [false, true].into_iter().zip(&mut figures) {
            let run = Run::start(folder, CAMERAS, 1, threads)?;
            run.publish(CAMERA_RATE)?;
            let got = run.finish()?;
            cpu.push(got.cpu as f64 / 1e7 / f64::from(SECONDS));
            (*frames, *lost) = (*frames + got.frames, *lost + got.lost);
        }
    }
    for (name, (cpu, frames, lost)) in ["one thread (`ReaderSet`)", "a thread for each"].iter().zip(&figures)
    {
        println!("| {name} | {} | {frames} | {lost} |", spread(cpu));
    }
    Ok(())
}

fn readers(folder: &Path, rounds: usize) -> Result<()> {
    println!("\nOne stream of {STREAM_RATE} frames/s, CPU time of the publishing thread a frame, in µs\n");
    println!("| readers | acquire | publish, with wake-ups | whole process | frames | lost |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for readers in READERS {
        let (mut acquire, mut publish, mut process) = (Vec::new(), Vec::new(), Vec::new());
        let (mut frames, mut lost) = (0, 0);
        for _ in 0..rounds {
            let run = Run::start(folder, 1, readers, false)?;
            let cost = run.publish(STREAM_RATE)?;
            let published = f64::from(SECONDS * STREAM_RATE);
            acquire.push(cost.acquire as f64 / published / 1e3);
            publish.push(cost.publish as f64 / published / 1e3);
            process.push(cost.process as f64 / published / 1e3);
            let got = run.finish()?;
            (frames, lost) = (frames + got.frames, lost + got.lost);
        }
        let figures = [&acquire, &publish, &process].map(|figures| spread(figures)).join(" | ");
        println!("| {readers} | {figures} | {frames} | {lost} |");
    }
    Ok(())
}
