//! Timeline words in a memfd, as a case and its peers map them.
//!
//! # Safety
//! This file maps memory and looks at it as atomics, which any process may change at any time.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use anyhow::{Context as _, Result};
use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

/// A mapping of words.
pub struct Words {
    start: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: what is mapped are atomics, and the mapping stays until this is dropped.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// A new memfd with `count` words, all zero.
    pub fn create(count: usize) -> Result<OwnedFd> {
        let fd = rustix::fs::memfd_create("words", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&fd, (count * size_of::<u64>()) as u64)?;
        Ok(fd)
    }

    /// Maps the words of a memfd. Storing into words that were mapped for reading only ends the process.
    pub fn map(fd: impl AsFd, count: usize, write: bool) -> Result<Words> {
        let protection = if write { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: the kernel chooses an address where nothing else is.
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
        Ok(Words { start: NonNull::new(start.cast()).context("mmap gave null")?, count })
    }
}

impl AsRef<[AtomicU64]> for Words {
    fn as_ref(&self) -> &[AtomicU64] {
        // SAFETY: `count` words are mapped from `start` as long as `self` lives.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and not used after this.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.count * size_of::<u64>()) };
    }
}
