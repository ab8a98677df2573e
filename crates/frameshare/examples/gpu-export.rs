// SPDX-License-Identifier: MIT OR Apache-2.0

//! Exports 90 frames that a GPU writes, 30 a second: `gpu-export STREAM [GPU]`.
//!
//! GPU is a number or a UUID (`nvidia-smi -L`), 0 by default. Run `gpu-read STREAM` in other
//! terminals.
//!
//! # Safety
//! The GPU writes a frame that this program holds until it is published.
#![allow(unsafe_code)]

use frameshare::{
    cuda::{Context, Device, Stream},
    exporter::VideoExporter,
    video::VideoFormat,
};
use std::{error::Error, thread, time::Duration};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let stream = arguments.next().ok_or("usage: gpu-export STREAM [GPU]")?;
    let device = Device::find(arguments.next().as_deref().unwrap_or("0"))?;
    let context = Context::primary(&device)?;
    let format = VideoFormat::new("NV12".parse()?, 640, 360).rate(30, 1);
    let video = VideoExporter::on_gpu(&stream, format, &context)?;
    let (writes, interrupt) = (Stream::new(&context)?, video.interrupt());

    video.exporter().wait_for_reader(&interrupt)?;
    for number in 0..90 {
        let frame = video.frame()?;
        let start = frame.device_pointer(0).ok_or("the frame is in host memory")?;
        // SAFETY: the frame has this size, and is held until the fill is published.
        unsafe { writes.fill(start, number, frame.size() as usize) }?; // a kernel of yours
        // The exporter's fence follows the stream: the CPU waits for nothing.
        video.publish_on(frame, &writes)?;
        thread::sleep(Duration::from_millis(33));
    }
    video.exporter().end_of_stream();
    video.exporter().drain(Duration::from_secs(5), &interrupt)?;
    Ok(())
}
