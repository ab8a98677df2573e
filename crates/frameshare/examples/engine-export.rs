// SPDX-License-Identifier: MIT OR Apache-2.0

//! Exports 90 frames of a moving gradient, 30 a second: `engine-export STREAM`.
//!
//! It waits for the first reader. Run `engine-read STREAM` in one or more other terminals.

#![allow(unsafe_code)]

use frameshare::{
    Endpoint, Interrupt,
    exporter::{Config, Exporter, Frame, Purpose},
    fence::Written,
};
use std::{error::Error, slice, thread, time::Duration};

const WIDTH: usize = 640;
const HEIGHT: usize = 360;
const SIZE: usize = WIDTH * HEIGHT;

fn main() -> Result<(), Box<dyn Error>> {
    let stream = std::env::args().nth(1).ok_or("usage: engine-export STREAM")?;
    let endpoint = Endpoint::of_stream(&stream.parse()?)?;
    let interrupt = Interrupt::new()?;
    let exporter = Exporter::bind(&endpoint, Config::default(), |notice| println!("{notice:?}"))?;
    let caps = format!("video/x-raw, format=GRAY8, width={WIDTH}, height={HEIGHT}, framerate=30/1");
    exporter.set_format(frameshare::Format { caps, video: None });

    exporter.wait_for_reader(&interrupt)?;
    for number in 0..90 {
        let slot = exporter.acquire(SIZE as u64, Purpose::Copy)?;
        let pixels = slot.as_ptr().ok_or("the slot is not in host memory")?;
        // SAFETY: the slot has SIZE bytes, and until it is published no other code accesses it.
        let pixels = unsafe { slice::from_raw_parts_mut(pixels.as_ptr(), SIZE) };
        for (index, pixel) in pixels.iter_mut().enumerate() {
            *pixel = (index % WIDTH + number) as u8;
        }
        exporter.publish(Frame::new(&slot, SIZE as u64, Written::Cpu), &interrupt)?;
        thread::sleep(Duration::from_millis(33));
    }
    exporter.end_of_stream();
    exporter.drain(Duration::from_secs(5), &interrupt)?;
    Ok(())
}
