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
    Wait,
    cuda::{Device, Stream},
    exporter::{Config, VideoExporter},
    video::VideoFormat,
};
use std::{error::Error, thread, time::Duration};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let stream = arguments.next().ok_or("usage: gpu-export STREAM [GPU]")?;
    let device = Device::find(arguments.next().as_deref().unwrap_or("0"))?;
    let config = Config::default().on_gpu(&device)?;
    let writes = Stream::new(config.gpu.as_ref().ok_or("no GPU")?)?;
    let format = VideoFormat::new("NV12".parse()?, 640, 360).rate(30, 1);
    let video = VideoExporter::open(&stream, config, format)?;

    video.exporter().wait_for_reader(Wait::Forever)?;
    for number in 0..90 {
        let frame = video.acquire(Wait::Forever)?;
        let start = frame.device_pointer(0).ok_or("the frame is in host memory")?;
        // SAFETY: the frame has this size, and is held until the fill is published.
        unsafe { writes.fill(start, number, frame.size() as usize) }?; // a kernel of yours
        // The exporter's fence follows the stream: the CPU waits for nothing.
        video.publish_on(&frame, &writes, Wait::Forever)?;
        thread::sleep(Duration::from_millis(33));
    }
    video.exporter().end_of_stream();
    video.exporter().drain(Wait::For(Duration::from_secs(5)))?;
    Ok(())
}
