// SPDX-License-Identifier: MIT OR Apache-2.0

//! Cost of metadata: one thread publishes a frame and reads it with each reader, without sleeping.
//!
//! No wake-up and no other thread takes part, so that the rows differ only in the metadata: those
//! without any are the control.

use crate::{
    alone::{Alone, FRAMES, SIZE, WARM_UP, in_folder, median, micros},
    slow::spread,
};
use anyhow::{Context, Result};
use frameshare::{
    Wait,
    exporter::{Frame, Purpose},
    fence::Written,
    reader::{Item, Reader},
};
use std::{path::Path, time::Instant};

/// Bytes of metadata: none, an area of 4 KiB, and what exceeds it.
const METADATA: [usize; 3] = [0, 4096, 60_000];
const READERS: [usize; 2] = [1, 8];

/// Medians of one round, in µs a frame.
struct Cost {
    publish: f64,
    /// Of one reader.
    read: f64,
}

/// Measures, and prints a table.
pub fn all(rounds: usize) -> Result<()> {
    in_folder("metadata", |folder| table(folder, rounds))
}

fn table(folder: &Path, rounds: usize) -> Result<()> {
    println!("\nMetadata: time of one frame in µs, {FRAMES} frames a round, no reader asleep\n");
    println!("| readers | metadata, bytes | publish | read, one reader |\n| --- | --- | --- | --- |");
    let cases = READERS.iter().flat_map(|readers| METADATA.map(|metadata| (*readers, metadata)));
    let mut figures: Vec<_> = cases.map(|case| (case, Vec::new(), Vec::new())).collect();
    for _ in 0..rounds {
        for ((readers, metadata), publish, read) in &mut figures {
            let cost = round(folder, *readers, *metadata)?;
            publish.push(cost.publish);
            read.push(cost.read);
        }
    }
    for ((readers, metadata), publish, read) in &figures {
        println!("| {readers} | {metadata} | {} | {} |", spread(publish), spread(read));
    }
    Ok(())
}

/// Publishes and reads the frames of one round.
fn round(folder: &Path, readers: usize, metadata: usize) -> Result<Cost> {
    let Alone { exporter, mut readers, .. } = Alone::new(folder, readers)?;
    let metadata: Vec<u8> = (0..metadata).map(|at| at as u8).collect();
    let (mut published, mut read) = (Vec::new(), Vec::new());
    for frame in 0..WARM_UP + FRAMES {
        let slot = exporter.acquire(SIZE, Purpose::Copy, Wait::No)?;
        let mut new = Frame::new(&slot, SIZE, Written::Cpu);
        new.metadata = &metadata;
        let times = (Instant::now(), exporter.publish(new, Wait::Forever)?, Instant::now());
        for reader in &mut readers {
            take(reader, &metadata)?;
        }
        if frame >= WARM_UP {
            published.push(micros(times.2 - times.0));
            read.push(micros(times.2.elapsed()) / readers.len() as f64);
        }
    }
    Ok(Cost { publish: median(&published), read: median(&read) })
}

/// Takes and releases the frame that was just published.
fn take(reader: &mut Reader, metadata: &[u8]) -> Result<()> {
    loop {
        match reader.try_next()?.context("the frame has not arrived")? {
            Item::Frame(frame) if frame.metadata() == metadata => return Ok(()),
            Item::Frame(_) => anyhow::bail!("the frame has other metadata"),
            _ => {}
        }
    }
}
