// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory files with any seals or none, and mappings of them.
//!
//! # Safety
//!
//! A [`Page`] owns its range from `mmap` to `munmap` and gives access as atomics only. If another
//! process shrinks an unsealed file, access raises SIGBUS, which some tests provoke.
#![allow(unsafe_code)]

use frameshare_cuda::order;
use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create},
    mm::{MapFlags, ProtFlags, mmap, munmap},
};
use std::{
    io,
    ops::Deref,
    os::fd::{AsFd, OwnedFd},
    ptr::NonNull,
    sync::atomic::{AtomicU32, AtomicU64},
};

/// Seals of a memory file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seals {
    /// No seals.
    None,
    /// Fixed size.
    Size,
    /// Fixed size, and no new writable mapping.
    SizeAndWrites,
}

/// Creates an unsealed memory file of `size` zero bytes, all of them allocated.
///
/// # Errors
///
/// Those of the system calls.
pub fn memfd(size: u64) -> io::Result<OwnedFd> {
    let fd = memfd_create("raw", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, size)?;
    if size > 0 {
        rustix::fs::fallocate(&fd, rustix::fs::FallocateFlags::empty(), 0, size)?;
        // An allocated page counts as a hole until it is written.
        for offset in (0..size).step_by(4096) {
            rustix::io::pwrite(&fd, &[0], offset)?;
        }
    }
    Ok(fd)
}

impl Seals {
    /// Adds the seals to a file.
    ///
    /// # Errors
    ///
    /// Those of the system calls.
    pub fn put_on(self, fd: impl AsFd) -> io::Result<()> {
        let size = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        match self {
            Self::None => Ok(()),
            Self::Size => Ok(fcntl_add_seals(fd, size)?),
            Self::SizeAndWrites => Ok(fcntl_add_seals(fd, size | SealFlags::FUTURE_WRITE)?),
        }
    }
}

/// Shared mapping, accessed as 64-bit words.
#[derive(Debug)]
pub struct Page {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is valid in all threads of the process, and access is atomic.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    /// Maps the first `len` bytes for reading and writing.
    ///
    /// # Errors
    ///
    /// Those of the system calls.
    pub fn writable(fd: impl AsFd, len: usize) -> io::Result<Self> {
        Self::new(fd, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Maps the first `len` bytes for reading.
    ///
    /// # Errors
    ///
    /// Those of the system calls.
    pub fn read_only(fd: impl AsFd, len: usize) -> io::Result<Self> {
        Self::new(fd, len, ProtFlags::READ)
    }

    fn new(fd: impl AsFd, len: usize, prot: ProtFlags) -> io::Result<Self> {
        // SAFETY: the kernel chooses the range.
        let start = unsafe { mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, fd, 0)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, len })
    }
}

impl Page {
    /// The futex of this number: 32-bit words of a page that is used in no other way.
    pub fn futex(&self, number: u32) -> &AtomicU32 {
        let at = number as usize;
        assert!(at < self.len / 4, "the page has no futex {number}");
        // SAFETY: the range stays mapped until `self` is dropped, and has this word.
        unsafe { self.start.cast::<AtomicU32>().add(at).as_ref() }
    }
}

impl Deref for Page {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the range stays mapped until `self` is dropped, is page-aligned, and only whole
        // words are counted.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.len / 8) }
    }
}

/// As the engine's pages, so that the simulated driver sees the order of a peer's accesses.
impl frameshare_queue::Page for Page {
    type Word = AtomicU64;

    fn words(&self) -> &[AtomicU64] {
        self
    }

    fn before_store(&self, word: &AtomicU64) {
        order::before_store(word);
    }

    fn after_load(&self, word: &AtomicU64) {
        order::after_load(word);
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: `self` owns the range, and every reference into it borrows from `self`.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}
