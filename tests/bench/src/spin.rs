// SPDX-License-Identifier: MIT OR Apache-2.0

//! Readers of the engine that sleep, spin when a frame is expected, and always spin: time from the
//! publication until the reader has the frame, frames that came in a spin, and the CPU time of the
//! reader. The source publishes 60 frames a second with more and less jitter, or is another
//! program's stream.
//!
//! Each reader is a process of its own.

use crate::{
    alone::{in_folder, publish},
    slow::spread,
    stamp::now,
    usage::Usage,
};
use anyhow::{Context, Result};
use frameshare::{
    Endpoint, Interrupt,
    exporter::{Config, Exporter},
    reader::{self, Item, Reader},
};
use serde::{Deserialize, Serialize};
use std::{
    env,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

const RATE: u32 = 60;
/// Frames before the measurement: a rhythm is that of 64 frames.
const WARM: usize = 80;
const FRAMES: usize = 300;
/// Maximum delay of a frame behind its due time in ms, and the share between sleeping and always
/// spinning that is measured with it.
const CASES: [(u32, u32); 3] = [(0, 4), (1, 6), (5, 25)];
const COLUMNS: &str = "reader | p50 | p99 | frames that came in a spin, % | spins | CPU";

/// A reader in a process of its own.
#[derive(Serialize, Deserialize)]
struct Reads {
    /// Name or socket of the stream.
    stream: String,
    spin: u32,
}

/// Measurements of one reader.
#[derive(Serialize, Deserialize)]
struct Figures {
    /// Latency in µs.
    p50: f64,
    p99: f64,
    /// Frames that came in a spin, %.
    spun: f64,
    /// Time in spins and CPU time, % of a core.
    spins: f64,
    cpu: f64,
}

/// Reads some frames, and prints the measurements.
pub fn read(plan: &str) -> Result<()> {
    let plan: Reads = serde_json::from_str(plan).context("no plan of a reader")?;
    let (config, interrupt) = (reader::Config::default().spin(plan.spin), Interrupt::new()?);
    let mut reader = Reader::connect(&Endpoint::find(&plan.stream)?, config, &interrupt)?;
    take(&mut reader, &interrupt, WARM)?;
    let (began, before, cpu) = (Instant::now(), reader.stats(), Usage::now().cpu);
    let mut latencies = take(&mut reader, &interrupt, FRAMES)?;
    let (time, stats) = (began.elapsed().as_secs_f64(), reader.stats());
    latencies.sort_unstable();
    let at = |part: usize| latencies[FRAMES * part / 100] as f64 / 1e3;
    crate::say(&Figures {
        p50: at(50),
        p99: at(99),
        spun: (stats.spin_frames - before.spin_frames) as f64 * 100.0 / FRAMES as f64,
        spins: (stats.spin_time - before.spin_time).as_secs_f64() * 100.0 / time,
        cpu: (Usage::now().cpu - cpu) as f64 / 1e7 / time,
    })
}

/// Takes frames, and returns their latencies in ns.
fn take(reader: &mut Reader, interrupt: &Interrupt, count: usize) -> Result<Vec<u64>> {
    let mut latencies = Vec::with_capacity(count);
    while latencies.len() < count {
        if let Some(Item::Frame(frame)) = reader.next(None, interrupt)? {
            latencies.push(now().saturating_sub(frame.descriptor().published));
        }
    }
    Ok(latencies)
}

fn start(stream: &str, spin: u32) -> Result<Child> {
    let plan = serde_json::to_string(&Reads { stream: stream.into(), spin })?;
    let mut command = Command::new(env::current_exe()?);
    Ok(command.args(["spin-read", &plan]).stdout(Stdio::piped()).spawn()?)
}

fn result(reader: Child) -> Result<Figures> {
    let line = String::from_utf8(reader.wait_with_output()?.stdout)?;
    serde_json::from_str(&line).with_context(|| format!("a reader said {line:?}"))
}

/// Publishes at the rate until the reader has enough, each frame up to `jitter` after it is due.
fn publish_to(reader: &mut Child, exporter: &Exporter, jitter: Duration) -> Result<()> {
    let begin = Instant::now();
    for number in 0_u32.. {
        let part = f64::from(number.wrapping_mul(0x9e37_79b9) >> 8) / f64::from(1 << 24);
        let due = begin + Duration::from_secs(1) * number / RATE + jitter.mul_f64(part);
        thread::sleep(due.saturating_duration_since(Instant::now()));
        publish(exporter)?;
        if reader.try_wait()?.is_some() {
            break;
        }
    }
    Ok(())
}

/// Measures each case, and prints a table.
pub fn all(rounds: usize) -> Result<()> {
    println!("\n{RATE} frames/s, one reader. Latency in µs, spins and CPU time in % of a core\n");
    println!("| jitter of the source | {COLUMNS} |\n| --- | --- | --- | --- | --- | --- | --- |");
    in_folder("spin", |folder| {
        let socket = folder.join("spin.sock");
        let exporter = Exporter::bind(&Endpoint::at(&socket)?, Config::default(), |_| ())?;
        let socket = socket.to_string_lossy();
        for (jitter, share) in CASES {
            let measure = |spin| {
                let mut reader = start(&socket, spin)?;
                publish_to(&mut reader, &exporter, Duration::from_millis(jitter.into()))?;
                result(reader)
            };
            compare(rounds, share, &format!("{jitter} ms | "), measure)?;
        }
        Ok(())
    })
}

/// Measures readers of another program's stream, and prints a table.
pub fn of(stream: &str, share: u32, rounds: usize) -> Result<()> {
    println!("\n{stream}, one reader. Latency in µs, spins and CPU time in % of a core\n");
    println!("| {COLUMNS} |\n| --- | --- | --- | --- | --- | --- |");
    compare(rounds, share, "", |spin| result(start(stream, spin)?))
}

/// Measures the three readers in turns, and prints a row for each.
fn compare(
    rounds: usize,
    share: u32,
    source: &str,
    mut measure: impl FnMut(u32) -> Result<Figures>,
) -> Result<()> {
    let mut readers = [0, share, 100].map(|spin| (spin, Vec::new()));
    for _ in 0..rounds {
        for (spin, figures) in &mut readers {
            figures.push(measure(*spin)?);
        }
    }
    for (spin, figures) in &readers {
        let of = |of: fn(&Figures) -> f64| spread(&figures.iter().map(of).collect::<Vec<_>>());
        let columns =
            [of(|it| it.p50), of(|it| it.p99), of(|it| it.spun), of(|it| it.spins), of(|it| it.cpu)];
        println!("| {source}`spin={spin}` | {} |", columns.join(" | "));
    }
    Ok(())
}
