// SPDX-License-Identifier: MIT OR Apache-2.0

//! Exporter of the Python tests: bottom-up GRAY8 frames of 4x3, `bottom-up-export STREAM`.
//!
//! The bytes 0 to 11 are the rows, the last one first.

use frameshare::{
    Endpoint, Format, Plane, Wait,
    exporter::{Config, Exporter, Frame},
    fence::Written,
    video::VideoFormat,
};
use std::{error::Error, thread, time::Duration};

fn main() -> Result<(), Box<dyn Error>> {
    let stream = std::env::args().nth(1).ok_or("usage: bottom-up-export STREAM")?;
    let exporter = Exporter::bind(&Endpoint::of_text(&stream)?, Config::default(), |_| {})?;
    let video = VideoFormat::new("GRAY8".parse()?, 4, 3);
    exporter.set_format(Format { caps: video.to_caps(), video: None });
    loop {
        let slot = exporter.filled(12, Wait::Forever, |bytes| {
            bytes.iter_mut().zip(0..).for_each(|(byte, number)| *byte = number);
        })?;
        let planes = [Plane { offset: 8, stride: -4 }];
        exporter.publish(Frame { planes: &planes, ..Frame::new(&slot, 12, Written::Cpu) }, Wait::Forever)?;
        thread::sleep(Duration::from_millis(20));
    }
}
