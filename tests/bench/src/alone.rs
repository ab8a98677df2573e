// SPDX-License-Identifier: MIT OR Apache-2.0

//! An exporter and its readers in one thread, without sleeping: no wake-up and no other thread
//! takes part in the figures.

use anyhow::{Context, Result};
use frameshare::{
    Endpoint, Interrupt, Wait,
    exporter::{Config, Exporter, Frame, Purpose},
    fence::Written,
    reader::{self, Item, Reader},
};
use std::{env, path::Path, thread, time::Duration};

/// Bytes of a frame.
pub const SIZE: u64 = 4096;
/// Frames of a round, after some to warm up.
pub const FRAMES: usize = 300;
pub const WARM_UP: usize = 50;

/// An exporter and readers that have joined it.
pub struct Alone {
    pub exporter: Exporter,
    pub readers: Vec<Reader>,
}

impl Alone {
    /// Opens a stream in this folder.
    pub fn new(folder: &Path, readers: usize) -> Result<Self> {
        let endpoint = Endpoint::at(folder.join("s.sock"))?;
        let exporter = Exporter::bind(&endpoint, Config::default(), |_| ())?;
        let interrupt = Interrupt::new()?;
        let connect = |_| Ok(Reader::connect(&endpoint, reader::Config::default(), &interrupt)?);
        let readers = (0..readers).map(connect).collect::<Result<Vec<_>>>()?;
        while exporter.reader_count() < readers.len() {
            thread::sleep(Duration::from_millis(1));
        }
        Ok(Self { exporter, readers })
    }

    /// Takes and releases the frame that was just published, with all readers.
    pub fn take(&mut self) -> Result<()> {
        self.readers.iter_mut().try_for_each(|reader| {
            while !matches!(reader.try_next()?.context("the frame has not arrived")?, Item::Frame(_)) {}
            Ok(())
        })
    }
}

/// Publishes a frame.
pub fn publish(exporter: &Exporter) -> Result<()> {
    let slot = exporter.acquire(SIZE, Purpose::Copy, Wait::No)?;
    exporter.publish(Frame::new(&slot, SIZE, Written::Cpu), Wait::Forever)?;
    Ok(())
}

/// Runs a measurement with a folder of its own.
pub fn in_folder(name: &str, measure: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let folder = env::temp_dir().join(format!("frameshare-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let done = measure(&folder);
    std::fs::remove_dir_all(&folder)?;
    done
}

pub fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

pub fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}
