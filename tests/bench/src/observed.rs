// SPDX-License-Identifier: MIT OR Apache-2.0

//! A lossless reader beside 1,000 connections of observers a second, and without them in the same
//! round.

use crate::{
    slow::{Got, Reads, Stream, spread},
    usage::Usage,
};
use anyhow::{Context, Result};
use frameshare::{Endpoint, Policy, exporter::SlowReaders, observer::Observer};
use serde::{Deserialize, Serialize};
use std::{
    env,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

const FRAMES: u32 = 2000;
const FRAMES_PER_SECOND: u32 = 500;
const CONNECTIONS_PER_SECOND: u32 = 1000;
const THREADS: u32 = 4;

/// Connections of the observers' process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Connections {
    made: u64,
    failed: u64,
    seconds: f64,
}

/// Connects and disconnects observers for the time of the frames, and prints the result.
pub fn observe(socket: &str) -> Result<()> {
    let endpoint = Endpoint::at(socket)?;
    let begin = Instant::now();
    let counts = thread::scope(|scope| {
        let connect = || {
            let (mut made, mut failed) = (0_u64, 0_u64);
            let number = FRAMES / FRAMES_PER_SECOND * CONNECTIONS_PER_SECOND / THREADS;
            for connection in 0..number {
                let due = begin + Duration::from_secs(1) * connection * THREADS / CONNECTIONS_PER_SECOND;
                thread::sleep(due.saturating_duration_since(Instant::now()));
                match Observer::connect(&endpoint, Duration::from_secs(5)) {
                    Ok(_) => made += 1,
                    Err(_) => failed += 1,
                }
            }
            (made, failed)
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(connect)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_default()).collect::<Vec<_>>()
    });
    crate::say(&Connections {
        made: counts.iter().map(|(made, _)| made).sum(),
        failed: counts.iter().map(|(_, failed)| failed).sum(),
        seconds: begin.elapsed().as_secs_f64(),
    })
}

/// Figures of one run: the reader's, the exporter's CPU time a frame in µs, and the observers'.
struct Figures {
    reader: Got,
    exporter_cpu: f64,
    connections: Connections,
}

fn run(socket: &Path, is_observed: bool) -> Result<Figures> {
    let path = socket.to_string_lossy().into_owned();
    let plan = Reads {
        socket: path.clone(),
        policy: Policy::Lossless,
        max_held: 16,
        max_queued: 1,
        takes: Duration::ZERO,
    };
    let stream = Stream::start(socket, SlowReaders::QueueThenDisconnect, &[plan])?;
    stream.publish(100, FRAMES_PER_SECOND, |_| Ok(()))?;
    let observers = is_observed
        .then(|| Command::new(env::current_exe()?).args(["observe", &path]).stdout(Stdio::piped()).spawn());
    let observers = observers.transpose()?;
    let begin = Usage::now();
    stream.publish(FRAMES, FRAMES_PER_SECOND, |_| Ok(()))?;
    let exporter_cpu = Usage::now().since(begin).cpu as f64 / f64::from(FRAMES) / 1e3;
    let connections = match observers {
        Some(observers) => {
            let output = observers.wait_with_output()?;
            serde_json::from_slice(&output.stdout).context("observers said nothing")?
        }
        None => Connections::default(),
    };
    let reader = stream.finish()?.pop().context("one reader")?;
    Ok(Figures { reader, exporter_cpu, connections })
}

/// A row of the table.
type Measure = (&'static str, fn(&Figures) -> f64);

/// Measures, and prints a table: each figure with observers, without, and their ratio.
pub fn all(rounds: usize) -> Result<()> {
    let folder = env::temp_dir().join(format!("frameshare-observed-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let mut pairs = Vec::new();
    for _ in 0..rounds {
        let socket = folder.join("s.sock");
        pairs.push((run(&socket, true)?, run(&socket, false)?));
    }
    std::fs::remove_dir_all(&folder)?;
    let made: u64 = pairs.iter().map(|(with, _)| with.connections.made).sum();
    let failed: u64 = pairs.iter().map(|(with, _)| with.connections.failed).sum();
    let rates: Vec<_> =
        pairs.iter().map(|(with, _)| with.connections.made as f64 / with.connections.seconds).collect();
    let lost: u64 = pairs.iter().map(|(with, _)| with.reader.lost).sum();
    println!(
        "\nOne lossless reader, {FRAMES_PER_SECOND} frames/s, beside {} observers a second: {made} connections, {failed} \
         failed, {lost} frames lost\n",
        spread(&rates)
    );
    println!("| µs | with observers | without (control) | ratio |\n| --- | --- | --- | --- |");
    let measures: [Measure; 4] = [
        ("age of a frame, p50", |figures| figures.reader.p50),
        ("age of a frame, p99", |figures| figures.reader.p99),
        ("reader's CPU a frame", |figures| figures.reader.cpu),
        ("exporter's CPU a frame", |figures| figures.exporter_cpu),
    ];
    for (name, of) in measures {
        let with: Vec<_> = pairs.iter().map(|(with, _)| of(with)).collect();
        let without: Vec<_> = pairs.iter().map(|(_, without)| of(without)).collect();
        let ratios: Vec<_> = with.iter().zip(&without).map(|(with, without)| with / without).collect();
        let ratio = format!("{:.2}", median(&ratios));
        println!("| {name} | {} | {} | {ratio} |", spread(&with), spread(&without));
    }
    Ok(())
}

fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}
