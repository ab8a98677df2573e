// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reader without GStreamer.
//!
//! # Safety
//! Frames are downloaded into memory that is read after the stream has completed the download.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use frameshare::memory::Address;
use frameshare::reader::{Config, Frame, Item, Reader};
use frameshare::{Endpoint, Interrupt, Policy};
use frameshare_cuda::{context::Context, device::Device, stream::Stream};
use frameshare_gpu_harness::GIVEN_UP;
use gst_video::{VideoFormat, VideoInfo};

use crate::job::{Connect, Read, WasRead};
use crate::picture::checksum;

/// Time limit for the next frame.
const PATIENCE: Duration = Duration::from_secs(30);

pub struct Reading {
    held: Vec<Frame>,
    reader: Reader,
    gpu: Option<(Arc<Context>, Stream)>,
    info: Option<VideoInfo>,
    bytes: Vec<u8>,
}

impl Reading {
    pub fn connect(connect: &Connect) -> Result<Reading> {
        let gpu = if connect.host {
            None
        } else {
            let context = Context::primary(&Device::get(0)?)?;
            let stream = Stream::new(&context)?;
            Some((context, stream))
        };
        let default = Config::default();
        let config = Config::default()
            .policy(if connect.lossless { Policy::Lossless } else { Policy::Latest })
            .max_held(connect.max_held.unwrap_or(default.max_held))
            .max_queued(frameshare::MAX_CREDIT)
            .gpu(gpu.as_ref().map(|(context, _)| context.clone()))
            .connection_timeout(Some(Duration::from_secs(20)))
            .fence_timeout(GIVEN_UP);
        let reader = Reader::connect(&Endpoint::at(&connect.path)?, config, &Interrupt::new()?)?;
        Ok(Reading { held: Vec::new(), reader, gpu, info: None, bytes: Vec::new() })
    }

    /// Releases all held frames, and waits until the exporter can see that.
    pub fn release_held(&mut self) -> Result<()> {
        self.held.clear();
        if let Some((context, _)) = &self.gpu {
            context.synchronize()?;
        }
        Ok(())
    }

    pub fn read(&mut self, job: &Read) -> Result<WasRead> {
        let interrupt = Interrupt::new()?;
        let mut was = WasRead::default();
        while job.frames.is_none_or(|frames| (was.frames.len() as u64) < frames) {
            match self.reader.next(Some(PATIENCE), &interrupt) {
                Ok(Some(Item::Frame(frame))) => self.take(frame, job, &mut was)?,
                Ok(Some(Item::Format(format))) => {
                    ensure!(
                        !format.caps.contains("memory:"),
                        "caps contain a memory feature: {}",
                        format.caps
                    );
                    let video = format.video.as_ref().context("the format is not video")?;
                    let pixels = VideoFormat::from_string(&video.format);
                    self.info = Some(VideoInfo::builder(pixels, video.width, video.height).build()?);
                }
                Ok(Some(Item::EndOfStream)) => break,
                Ok(Some(_)) => {}
                Ok(None) => {
                    was.error = "no frame arrived in time".into();
                    break;
                }
                Err(error) => {
                    was.error = error.to_string();
                    break;
                }
            }
        }
        Ok(was)
    }

    fn take(&mut self, frame: Frame, job: &Read, was: &mut WasRead) -> Result<()> {
        was.lost += frame.lost_before();
        let sequence = frame.descriptor().sequence.0;
        let planes: Vec<_> = frame.descriptor().used_planes().to_vec();
        match frame.address() {
            Address::Host(_) => {
                let bytes = frame.bytes().iter().map(|byte| byte.load(Ordering::Relaxed));
                self.bytes = bytes.collect();
            }
            Address::Device(address) => {
                let (_, stream) = self.gpu.as_ref().context("a reader without a GPU got GPU memory")?;
                was.on_gpu += 1;
                self.bytes.resize(frame.len(), 0);
                frame.wait_on(stream)?;
                if job.slow_us > 0 {
                    let pause = Duration::from_micros(job.slow_us);
                    stream.call(move || std::thread::sleep(pause))?;
                }
                // SAFETY: the frame is leased until its release fence covers the download; the
                // bytes are accessed only after the stream is done.
                unsafe { stream.download(self.bytes.as_mut_ptr(), address, frame.len())? };
            }
        }
        // Other frames are released with work on them still queued, which their release fences
        // cover.
        if self.held.len() < job.hold {
            self.held.push(frame);
        } else {
            drop(frame);
        }
        if let Some((_, stream)) = &self.gpu {
            stream.synchronize()?;
        }
        let info = self.info.as_ref().context("a frame arrived before its format")?;
        let planes: Vec<_> = planes
            .iter()
            .map(|plane| (plane.offset as usize, plane.stride.unsigned_abs() as usize))
            .collect();
        was.frames.push((sequence, checksum(&self.bytes, info, &planes)?));
        Ok(())
    }
}
