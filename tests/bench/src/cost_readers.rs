// SPDX-License-Identifier: MIT OR Apache-2.0

//! Cost of readers: one thread acquires, publishes and reads each frame with all readers, without
//! sleeping.
//!
//! No wake-up and no other thread takes part: the figures are those of the exporter's own work for
//! each reader. Under callgrind they are instructions, which no load of the machine changes.

use crate::{
    cost_metadata::{median, micros},
    slow::spread,
};
use anyhow::{Context, Result};
use frameshare::{
    Endpoint, Interrupt,
    exporter::{Config, Exporter, Frame, Purpose},
    fence::Written,
    reader::{self, Item, Reader},
};
use std::{
    env,
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// Bytes of a frame.
const SIZE: u64 = 4096;
const READERS: [usize; 4] = [0, 1, 8, 64];
/// Frames of a round, after some to warm up.
const FRAMES: usize = 300;
const WARM_UP: usize = 50;

/// Medians of one round, in µs a frame.
struct Cost {
    acquire: f64,
    publish: f64,
}

/// Measures with all numbers of readers, or with one, and prints a table.
pub fn all(rounds: usize, readers: Option<usize>) -> Result<()> {
    let folder = env::temp_dir().join(format!("frameshare-readers-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let done = table(&folder, rounds, readers);
    std::fs::remove_dir_all(&folder)?;
    done
}

fn table(folder: &Path, rounds: usize, readers: Option<usize>) -> Result<()> {
    println!("\nReaders: time of one frame in µs, {FRAMES} frames a round, no reader asleep\n");
    println!("| readers | acquire | publish |\n| --- | --- | --- |");
    let cases = READERS.into_iter().filter(|one| readers.is_none_or(|readers| *one == readers));
    let mut figures: Vec<_> = cases.map(|readers| (readers, Vec::new(), Vec::new())).collect();
    for _ in 0..rounds {
        for (readers, acquire, publish) in &mut figures {
            let cost = round(folder, *readers)?;
            acquire.push(cost.acquire);
            publish.push(cost.publish);
        }
    }
    for (readers, acquire, publish) in &figures {
        println!("| {readers} | {} | {} |", spread(acquire), spread(publish));
    }
    Ok(())
}

/// Publishes and reads the frames of one round.
fn round(folder: &Path, readers: usize) -> Result<Cost> {
    let endpoint = Endpoint::at(folder.join("s.sock"))?;
    let exporter = Exporter::bind(&endpoint, Config::default(), |_| ())?;
    let interrupt = Interrupt::new()?;
    let connect = |_| Ok(Reader::connect(&endpoint, reader::Config::default(), &interrupt)?);
    let mut readers = (0..readers).map(connect).collect::<Result<Vec<_>>>()?;
    while exporter.reader_count() < readers.len() {
        thread::sleep(Duration::from_millis(1));
    }
    let (mut acquired, mut published) = (Vec::new(), Vec::new());
    for frame in 0..WARM_UP + FRAMES {
        let begin = Instant::now();
        let slot = exporter.acquire(SIZE, Purpose::Copy)?;
        let between = Instant::now();
        exporter.publish(Frame::new(&slot, SIZE, Written::Cpu), &interrupt)?;
        let end = Instant::now();
        readers.iter_mut().try_for_each(take)?;
        if frame >= WARM_UP {
            acquired.push(micros(between - begin));
            published.push(micros(end - between));
        }
    }
    Ok(Cost { acquire: median(acquired), publish: median(published) })
}

/// Takes and releases the frame that was just published.
fn take(reader: &mut Reader) -> Result<()> {
    while !matches!(reader.try_next()?.context("the frame has not arrived")?, Item::Frame(_)) {}
    Ok(())
}
