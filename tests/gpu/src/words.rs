// SPDX-License-Identifier: MIT OR Apache-2.0

//! Timeline values in a memfd, as mapped by a case and its peers.
//!
//! # Safety
//! This file maps memory and accesses it as atomics, which any process may change at any time.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use anyhow::{Context as _, Result};
use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

/// A mapping of timeline values.
pub struct Words {
    start: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: the memory consists of atomics, and stays mapped until this is dropped.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// Creates a memfd with `count` values, all zero.
    pub fn create(count: usize) -> Result<OwnedFd> {
        let fd = rustix::fs::memfd_create("words", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&fd, (count * size_of::<u64>()) as u64)?;
        Ok(fd)
    }

    /// Maps the values of a memfd. Storing to values that were mapped for reading ends the process.
    pub fn map(fd: impl AsFd, count: usize, write: bool) -> Result<Words> {
        let protection = if write { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: the kernel chooses an unused address.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                count * size_of::<u64>(),
                protection,
                MapFlags::SHARED,
                fd,
                0,
            )
        }?;
        Ok(Words { start: NonNull::new(start.cast()).context("mmap returned null")?, count })
    }
}

impl AsRef<[AtomicU64]> for Words {
    fn as_ref(&self) -> &[AtomicU64] {
        // SAFETY: `count` values are mapped from `start` as long as `self` lives.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: this object owns the mapping, and it is not used after this.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.count * size_of::<u64>()) };
    }
}
