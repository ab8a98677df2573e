// SPDX-License-Identifier: MIT OR Apache-2.0

//! The program of `make frame-cost`: frames in host memory with default settings, to readers that
//! sleep until each comes or to readers that are awake (`frame_cost READERS asleep|awake`).
//!
//! `tests/bench/frame-cost.py` runs it under callgrind, and counts in calls of the exporter and of
//! the reader. It measures no time.

use frameshare::{
    Endpoint, Interrupt, Wait,
    exporter::{Config, Exporter, Frame, Purpose},
    fence::Written,
    reader::{self, Item, Reader},
};
use std::{
    env,
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

/// Bytes of a frame.
const SIZE: u64 = 4096;
/// Frames to warm up, and frames that count.
const FRAMES: usize = 50 + 300;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let Some(readers) = arguments.next().and_then(|readers| readers.parse().ok()) else {
        // `cargo test --all-targets` and `cargo bench` run it, too.
        println!("frame_cost READERS asleep|awake: see tests/bench/frame-cost.py");
        return Ok(());
    };
    let folder = tempfile::tempdir()?;
    let endpoint = Endpoint::at(folder.path().join("s.sock"))?;
    let exporter = Exporter::bind(&endpoint, Config::default(), |_| ())?;
    let interrupt = Interrupt::new()?;
    let connect = |_| Reader::connect(&endpoint, reader::Config::default(), &interrupt);
    let readers = (0..readers).map(connect).collect::<Result<Vec<_>, _>>()?;
    while exporter.reader_count() < readers.len() {
        thread::sleep(Duration::from_millis(1));
    }
    match arguments.next().as_deref() {
        Some("asleep") => publish_to_sleepers(exporter, readers),
        _ => publish_and_take(&exporter, readers),
    }
}

fn publish(exporter: &Exporter) -> Result<(), Box<dyn Error>> {
    let slot = exporter.acquire(SIZE, Purpose::Copy, Wait::No)?;
    exporter.publish(Frame::new(&slot, SIZE, Written::Cpu), Wait::Forever)?;
    Ok(())
}

/// One thread publishes and reads: no wake-up is sent.
fn publish_and_take(exporter: &Exporter, mut readers: Vec<Reader>) -> Result<(), Box<dyn Error>> {
    for _ in 0..FRAMES {
        publish(exporter)?;
        for reader in &mut readers {
            while !matches!(reader.try_next()?, Some(Item::Frame(_))) {}
        }
    }
    Ok(())
}

/// Each reader sleeps in a thread of its own whenever a frame is published.
fn publish_to_sleepers(exporter: Exporter, readers: Vec<Reader>) -> Result<(), Box<dyn Error>> {
    let (count, released) = (readers.len(), Arc::new(AtomicUsize::new(0)));
    let start = |reader| sleep_and_take(reader, released.clone());
    let threads: Vec<_> = readers.into_iter().map(start).collect();
    for frame in 1..=FRAMES {
        publish(&exporter)?;
        while released.load(Ordering::Relaxed) < frame * count {
            thread::sleep(Duration::from_micros(100));
        }
        // Until they sleep again.
        thread::sleep(Duration::from_millis(1));
    }
    drop(exporter);
    threads.into_iter().for_each(|thread| _ = thread.join());
    Ok(())
}

/// Takes and releases frames until the exporter ends, and counts them.
fn sleep_and_take(mut reader: Reader, released: Arc<AtomicUsize>) -> JoinHandle<()> {
    thread::spawn(move || {
        let Ok(interrupt) = Interrupt::new() else { return };
        while let Ok(Some(item)) = reader.next(None, &interrupt) {
            let is_frame = matches!(item, Item::Frame(_));
            drop(item);
            released.fetch_add(usize::from(is_frame), Ordering::Relaxed);
        }
    })
}
