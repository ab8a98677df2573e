// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reads frames on a GPU stream and prints the first byte of each: `gpu-read STREAM [GPU]`.
//!
//! GPU is a number or a UUID (`nvidia-smi -L`), 0 by default. The primary context is used, as by
//! CUDA's runtime API.
//!
//! # Safety
//! The GPU reads a frame that this program holds, and writes a buffer that it waits for.
#![allow(unsafe_code)]

use frameshare::{
    Policy,
    cuda::{Device, Stream},
    reader::{Config, Frames},
};
use std::{error::Error, sync::Arc};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let stream = arguments.next().ok_or("usage: gpu-read STREAM [GPU]")?;
    let config = Config::default().on_gpu(&Device::find(arguments.next().as_deref().unwrap_or("0"))?)?;
    let context = config.gpu.clone().ok_or("no GPU")?;
    let mut frames = Frames::open(&stream, config.policy(Policy::Lossless))?;
    let reads = Arc::new(Stream::new(&context)?);

    let mut count = 0;
    for frame in &mut frames {
        let frame = frame?;
        // From here on, work on the stream starts when the frame is written. The frame returns to
        // the exporter after the work that was queued before its drop.
        let luma = frame.plane(0)?;
        let Some(pointer) = luma.device_pointer_on(&reads)? else { return Err("no GPU memory".into()) };
        let mut byte = [0];
        // SAFETY: the plane is mapped while the frame is held; the buffer is read after the copy.
        unsafe { reads.download(byte.as_mut_ptr(), pointer, 1) }?; // a kernel of yours
        reads.synchronize()?;
        println!(
            "frame {}: {}x{}, first byte {}",
            frame.descriptor().sequence,
            luma.width,
            luma.height,
            byte[0]
        );
        count += 1;
    }
    println!("{count} frames, {} lost", frames.reader().stats().lost);
    Ok(())
}
