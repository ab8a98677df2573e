// SPDX-License-Identifier: MIT OR Apache-2.0

//! Exports 90 frames that a GPU writes, 30 a second: `gpu-export STREAM [GPU]`.
//!
//! GPU is a number or a UUID (`nvidia-smi -L`), 0 by default. Run `gpu-read STREAM` in other
//! terminals.
//!
//! # Safety
//! The GPU writes a slot that this program holds until the frame is published.
#![allow(unsafe_code)]

use frameshare::{
    Endpoint, Format, Interrupt,
    cuda::{Device, Stream},
    exporter::{Config, Exporter, Frame, Purpose},
    fence::Written,
    memory::Address,
    monotonic_ns,
    video::VideoFormat,
};
use std::{error::Error, thread, time::Duration};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let stream = arguments.next().ok_or("usage: gpu-export STREAM [GPU]")?;
    let config = Config::default().on_gpu(&Device::find(arguments.next().as_deref().unwrap_or("0"))?)?;
    let context = config.gpu.clone().ok_or("no GPU")?;
    let exporter = Exporter::bind(&Endpoint::of_text(&stream)?, config, |_notice| {})?;
    let (writes, interrupt) = (Stream::new(&context)?, Interrupt::new()?);

    let format = VideoFormat::new("NV12".parse()?, 640, 360).rate(30, 1);
    let (size, planes) = (format.size()?, format.default_planes()?);
    exporter.set_format(Format { caps: format.to_caps(), video: None });

    exporter.wait_for_reader(&interrupt)?;
    for number in 0..90 {
        let slot = exporter.acquire(size, Purpose::Copy)?;
        let Address::Device(start) = slot.address() else { return Err("the slot is in host memory".into()) };
        // SAFETY: the slot has `size` bytes, and is held until the fill is published.
        unsafe { writes.fill(start, number, size as usize) }?; // a kernel of yours
        // The exporter's fence follows the stream: the CPU waits for nothing.
        let frame = Frame::new(&slot, size, Written::On(&writes));
        exporter.publish(Frame { pts: Some(monotonic_ns()), planes: &planes, ..frame }, &interrupt)?;
        thread::sleep(Duration::from_millis(33));
    }
    exporter.end_of_stream();
    exporter.drain(Duration::from_secs(5), &interrupt)?;
    Ok(())
}
