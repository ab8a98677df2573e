// SPDX-License-Identifier: MIT OR Apache-2.0

//! Cost of readers: one thread acquires, publishes and reads each frame with all readers, without
//! sleeping.
//!
//! No wake-up and no other thread takes part: the figures are those of the exporter's own work for
//! each reader. Under callgrind they are instructions, which no load of the machine changes.

use crate::{
    alone::{Alone, FRAMES, SIZE, WARM_UP, in_folder, median, micros},
    slow::spread,
};
use anyhow::Result;
use frameshare::{
    Wait,
    exporter::{Frame, Purpose},
    fence::Written,
};
use std::{path::Path, time::Instant};

const READERS: [usize; 4] = [0, 1, 8, 64];

/// Medians of one round, in µs a frame.
struct Cost {
    acquire: f64,
    publish: f64,
}

/// Measures with all numbers of readers, or with one, and prints a table.
pub fn all(rounds: usize, readers: Option<usize>) -> Result<()> {
    in_folder("readers", |folder| table(folder, rounds, readers))
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
    let mut alone = Alone::new(folder, readers)?;
    let (mut acquired, mut published) = (Vec::new(), Vec::new());
    for frame in 0..WARM_UP + FRAMES {
        let begin = Instant::now();
        let slot = alone.exporter.acquire(SIZE, Purpose::Copy, Wait::No)?;
        let between = Instant::now();
        alone.exporter.publish(Frame::new(&slot, SIZE, Written::Cpu), Wait::Forever)?;
        let end = Instant::now();
        alone.take()?;
        if frame >= WARM_UP {
            acquired.push(micros(between - begin));
            published.push(micros(end - between));
        }
    }
    Ok(Cost { acquire: median(&acquired), publish: median(&published) })
}
