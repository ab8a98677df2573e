// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reads a stream to its end and prints the mean brightness of each frame: `engine-read STREAM`.
//!
//! It waits up to 5 s for the exporter. Frames are read in place, in the exporter's memory.

use frameshare::{
    Endpoint, Interrupt, Policy,
    reader::{Config, Item, Reader},
};
use std::{error::Error, sync::atomic::Ordering::Relaxed, time::Duration};

fn main() -> Result<(), Box<dyn Error>> {
    let stream = std::env::args().nth(1).ok_or("usage: engine-read STREAM")?;
    let endpoint = Endpoint::of_stream(&stream.parse()?)?;
    let interrupt = Interrupt::new()?;
    let config = Config::default().policy(Policy::Lossless).connection_timeout(Some(Duration::from_secs(5)));
    let mut reader = Reader::connect(&endpoint, config, &interrupt)?;
    let mut frames = 0;
    while let Some(item) = reader.next(None, &interrupt)? {
        match item {
            Item::Format(format) => println!("format: {}", format.caps),
            Item::Frame(frame) => {
                frames += 1;
                let sum: u64 = frame.bytes().iter().map(|byte| u64::from(byte.load(Relaxed))).sum();
                let mean = sum / frame.len().max(1) as u64;
                println!("frame {}: mean brightness {mean}", frame.descriptor().sequence.0);
            } // the slot returns to the exporter here
            Item::EndOfStream => break,
            _ => {}
        }
    }
    println!("{frames} frames, {} lost", reader.stats().lost);
    Ok(())
}
