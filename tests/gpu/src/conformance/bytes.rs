// SPDX-License-Identifier: MIT OR Apache-2.0

//! Access to memory by its address: by the CPU, or on a stream.
//!
//! # Safety
//! This file reads and writes memory of the implementation under test. The worker's tables hold the
//! allocation or the import during each access; a rule that frees memory under an import does so to
//! observe the result.
#![allow(unsafe_code)]

use std::os::fd::AsRawFd as _;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::{Context as _, Result};
use frameshare::memory::Address;
use frameshare_cuda::stream::Stream;

/// Access to memory of one process.
#[derive(Clone, Debug)]
pub struct Bytes(Option<Arc<Stream>>);

impl Bytes {
    /// Returns access by the CPU to host memory, and by the stream to GPU memory.
    pub fn new(stream: Option<Arc<Stream>>) -> Bytes {
        Bytes(stream)
    }

    fn stream(&self) -> Result<&Stream> {
        self.0.as_deref().context("GPU memory without a stream")
    }

    /// Reads memory, behind the work of the stream.
    pub fn read(&self, at: Address, size: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; size];
        match at {
            // SAFETY: see the header of the file.
            Address::Host(start) => unsafe { start.as_ptr().copy_to(bytes.as_mut_ptr(), size) },
            Address::Device(start) => {
                // SAFETY: as above; `bytes` lives until the stream is synchronized.
                unsafe { self.stream()?.download(bytes.as_mut_ptr(), start, size) }?;
                self.stream()?.synchronize()?;
            }
        }
        Ok(bytes)
    }

    /// Writes memory and waits until it is written.
    pub fn write(&self, at: Address, bytes: &[u8]) -> Result<()> {
        match at {
            // SAFETY: see the header of the file.
            Address::Host(start) => unsafe { start.as_ptr().copy_from(bytes.as_ptr(), bytes.len()) },
            Address::Device(start) => {
                // SAFETY: as above; `bytes` lives until the stream is synchronized.
                unsafe { self.stream()?.upload(start, bytes.as_ptr(), bytes.len()) }?;
                self.stream()?.synchronize()?;
            }
        }
        Ok(())
    }

    /// Fills memory, on the stream for GPU memory. Does not wait.
    pub fn fill(&self, at: Address, offset: usize, size: usize, value: u8) -> Result<()> {
        match at {
            // SAFETY: see the header of the file.
            Address::Host(start) => unsafe { start.as_ptr().add(offset).write_bytes(value, size) },
            Address::Device(start) => {
                // SAFETY: as above.
                unsafe { self.stream()?.fill(start + offset as u64, value, size) }?;
            }
        }
        Ok(())
    }

    /// Tries to fill memory that may be read-only. Returns whether that was possible.
    pub fn try_fill(&self, at: Address, size: usize, value: u8) -> Result<bool> {
        match at {
            Address::Host(start) => {
                let (source, sink) = rustix::pipe::pipe()?;
                let page = vec![value; size.min(4096)];
                rustix::io::write(&sink, &page)?;
                // The kernel refuses to write to a read-only mapping (EFAULT); an access by this
                // program would end it.
                // SAFETY: see the header of the file.
                let read = unsafe { libc::read(source.as_raw_fd(), start.as_ptr().cast(), page.len()) };
                Ok(read >= 0)
            }
            Address::Device(start) => {
                // SAFETY: see the header of the file.
                let filled = unsafe { self.stream()?.fill(start, value, size) };
                self.stream()?.synchronize()?;
                Ok(filled.is_ok())
            }
        }
    }

    /// Copies within GPU memory, or from host memory to the CPU address `to`. Does not wait.
    pub fn copy(&self, to: Address, offset: usize, from: Address, size: usize) -> Result<()> {
        match (to, from) {
            // SAFETY: see the header of the file.
            (Address::Host(to), Address::Host(from)) => unsafe {
                to.as_ptr().add(offset).copy_from(from.as_ptr(), size);
            },
            (Address::Device(to), Address::Device(from)) => {
                // SAFETY: as above.
                unsafe { self.stream()?.copy(to + offset as u64, from, size) }?;
            }
            _ => anyhow::bail!("copy between host and GPU memory"),
        }
        Ok(())
    }

    /// Delays the stream, or this thread without one.
    pub fn delay(&self, us: u64) -> Result<()> {
        let delay = Duration::from_micros(us);
        match &self.0 {
            _ if us == 0 => {}
            Some(stream) => stream.call(move || std::thread::sleep(delay))?,
            None => std::thread::sleep(delay),
        }
        Ok(())
    }

    /// Stalls the stream until the sender is dropped; `None` without a stream.
    pub fn stall(&self) -> Result<Option<mpsc::Sender<()>>> {
        let Some(stream) = &self.0 else { return Ok(None) };
        let (sender, receiver) = mpsc::channel();
        stream.call(move || _ = receiver.recv())?;
        Ok(Some(sender))
    }
}
