// SPDX-License-Identifier: MIT OR Apache-2.0

//! Downloads of frames to host memory, with a check of every byte.
//!
//! # Safety
//! This file maps memory that a stream writes, and reads it after the stream has finished writing.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use frameshare::reader::Frame;
use frameshare_cuda::DevicePtr;
use frameshare_cuda::event::Event;
use frameshare_cuda::host::{Access, Registration};
use frameshare_cuda::stream::Stream;
use rustix::mm::{MapFlags, ProtFlags};

use crate::gpu::{self, Gpu};

/// Anonymous memory, unmapped when dropped.
struct Pages {
    start: NonNull<u8>,
    size: usize,
}

// SAFETY: the mapping is accessed only through the capture that owns it.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    fn new(size: usize) -> Result<Pages> {
        let size = size.max(1);
        // SAFETY: the kernel chooses an unused address.
        let start = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), size, protection, MapFlags::PRIVATE)
        }?;
        Ok(Pages { start: NonNull::new(start.cast()).context("mmap returned null")?, size })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: this object owns the mapping, and it is not used after this.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.size) };
    }
}

/// Buffer for one downloaded frame.
struct Capture {
    start: NonNull<u8>,
    room: usize,
    done: Event,
    pending: Option<Pending>,
    // Unregistered and unmapped after the event that marks the last write. A driver that registers
    // no memory completes each download before it returns.
    _memory: Option<Registration>,
    _pages: Arc<Pages>,
}

/// A pending download.
struct Pending {
    sequence: u64,
    size: usize,
    /// Expected value of every byte.
    expected: u8,
}

impl Capture {
    fn new(gpu: &Gpu, room: usize) -> Result<Capture> {
        let pages = Arc::new(Pages::new(room)?);
        let (start, owner) = (pages.start, pages.clone());
        // SAFETY: `pages` owns the mapping and is dropped after the registration.
        let memory = unsafe { Registration::new(&gpu.context, start, room, Access::ReadWrite, owner) }.ok();
        let done = Event::new(&gpu.context)?;
        Ok(Capture { start, room, done, pending: None, _memory: memory, _pages: pages })
    }

    /// Checks a completed frame and returns a description of the error, if any.
    fn look(&self, Pending { sequence, size, expected }: Pending) -> Option<String> {
        // SAFETY: `size` ≤ `room` bytes are mapped, and the stream has finished writing them.
        let bytes = unsafe { std::slice::from_raw_parts(self.start.as_ptr(), size) };
        let (first, rest) = bytes.split_first()?;
        if *first == expected && rest == &bytes[..rest.len()] {
            return None;
        }
        let at = bytes.iter().position(|byte| *byte != expected)?;
        let count = bytes.iter().filter(|byte| **byte != expected).count();
        Some(format!(
            "frame {sequence}: {count} of {size} bytes are wrong; offset {at} is {}, not {expected}",
            bytes[at]
        ))
    }
}

/// Ring of downloads; each frame is checked when its download is complete.
pub struct Captures {
    ring: Vec<Capture>,
    next: usize,
    pub wrong: u64,
    pub first_wrong: Option<String>,
}

impl Captures {
    /// Allocates `count` buffers for frames of up to `room` bytes.
    pub fn new(gpu: &Gpu, count: usize, room: usize) -> Result<Captures> {
        let ring = (0..count).map(|_| Capture::new(gpu, room)).collect::<Result<_>>()?;
        Ok(Captures { ring, next: 0, wrong: 0, first_wrong: None })
    }

    /// Returns whether frames of this size fit.
    pub fn fit(&self, size: usize) -> bool {
        self.ring.iter().all(|capture| capture.room >= size)
    }

    /// Queues the download of a frame on a stream, after the oldest download was checked.
    /// `expected` is the value of every byte, `from` the frame's address.
    pub fn begin(
        &mut self,
        (frame, from): (&Frame, DevicePtr),
        expected: u8,
        stream: &Stream,
        patience: Duration,
    ) -> Result<()> {
        let at = self.next;
        ensure!(self.settle_one(at, Instant::now() + patience)?, "a download does not complete");
        self.next = (at + 1) % self.ring.len();
        let capture = &mut self.ring[at];
        ensure!(frame.len() <= capture.room, "a frame of {} bytes exceeds the buffer", frame.len());
        // SAFETY: the memory is read only after the event behind the download is complete, and
        // unmapped later.
        unsafe { gpu::download(frame, from, capture.start.as_ptr(), stream) }?;
        capture.done.record(stream)?;
        capture.pending =
            Some(Pending { sequence: frame.descriptor().sequence.0, size: frame.len(), expected });
        Ok(())
    }

    /// Checks completed downloads; returns how many are still pending at the deadline.
    pub fn settle(&mut self, patience: Duration) -> Result<usize> {
        let until = Instant::now() + patience;
        let mut stuck = 0;
        for index in 0..self.ring.len() {
            let at = (self.next + index) % self.ring.len();
            stuck += usize::from(!self.settle_one(at, until)?);
        }
        Ok(stuck)
    }

    fn settle_one(&mut self, at: usize, until: Instant) -> Result<bool> {
        if self.ring[at].pending.is_none() {
            return Ok(true);
        }
        let begin = Instant::now();
        while !self.ring[at].done.query()?.is_ready() {
            if Instant::now() > until {
                return Ok(false);
            }
            // Spin briefly before sleeping: most downloads complete soon.
            if begin.elapsed() > Duration::from_micros(100) {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        let pending = self.ring[at].pending.take();
        if let Some(wrong) = pending.and_then(|pending| self.ring[at].look(pending)) {
            self.wrong += 1;
            self.first_wrong.get_or_insert(wrong);
        }
        Ok(true)
    }

    /// Leaks downloads that will never complete: their memory stays mapped.
    pub fn abandon(self) {
        std::mem::forget(self);
    }
}
