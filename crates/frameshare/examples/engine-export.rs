// SPDX-License-Identifier: MIT OR Apache-2.0

//! Exports 90 frames of a moving gradient, 30 a second: `engine-export STREAM`.
//!
//! It waits for the first reader. Run `engine-read STREAM` in one or more other terminals.

use frameshare::{Wait, exporter::VideoExporter, video::VideoFormat};
use std::{error::Error, thread, time::Duration};

const WIDTH: u32 = 640;
const HEIGHT: u32 = 360;

fn main() -> Result<(), Box<dyn Error>> {
    let stream = std::env::args().nth(1).ok_or("usage: engine-export STREAM")?;
    let format = VideoFormat::new("GRAY8".parse()?, WIDTH, HEIGHT).rate(30, 1);
    let video = VideoExporter::new(&stream, format)?;

    video.exporter().wait_for_reader(Wait::Forever)?;
    for number in 0..90 {
        let mut frame = video.acquire(Wait::Forever)?;
        for row in 0..HEIGHT as usize {
            for (column, pixel) in frame.row_mut(0, row).iter_mut().enumerate() {
                *pixel = (column + number) as u8;
            }
        }
        video.publish(&frame, Wait::Forever)?;
        thread::sleep(Duration::from_millis(33));
    }
    video.exporter().end_of_stream();
    video.exporter().drain(Wait::For(Duration::from_secs(5)))?;
    Ok(())
}
