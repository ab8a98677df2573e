// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reads a stream to its end and prints the mean brightness of each frame: `engine-read STREAM`.
//!
//! It waits up to 5 s for the exporter. Frames are read in place, in the exporter's memory.

use frameshare::{
    Policy,
    reader::{Config, Frames},
};
use std::{error::Error, sync::atomic::Ordering::Relaxed};

fn main() -> Result<(), Box<dyn Error>> {
    let stream = std::env::args().nth(1).ok_or("usage: engine-read STREAM")?;
    let mut frames = Frames::open(&stream, Config::default().policy(Policy::Lossless))?;
    let mut count = 0;
    for frame in &mut frames {
        let frame = frame?;
        let luma = frame.plane(0)?;
        if count == 0 {
            println!("format: {}", frame.format()?.to_caps());
        }
        count += 1;
        let rows = (0..luma.height as usize).map(|row| luma.row(row));
        let sum: u64 = rows.flatten().map(|pixel| u64::from(pixel.load(Relaxed))).sum();
        let mean = sum / (u64::from(luma.width) * u64::from(luma.height));
        println!("frame {}: mean brightness {mean}", frame.descriptor().sequence);
    } // each frame's slot returns to the exporter at the end of its round
    println!("{count} frames, {} lost", frames.reader().stats().lost);
    Ok(())
}
