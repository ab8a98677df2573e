//! Memory files with any seals or none, and mappings of them.
//!
//! # Safety
//!
//! A [`Page`] owns its range from `mmap` to `munmap`. It is only handed out as atomics. Who maps a file that somebody
//! can shrink takes the SIGBUS that these tests are about.
#![allow(unsafe_code)]

use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create},
    mm::{MapFlags, ProtFlags, mmap, munmap},
};
use std::{
    io,
    ops::Deref,
    os::fd::{AsFd, OwnedFd},
    ptr::NonNull,
    sync::atomic::AtomicU64,
};

/// What keeps others from changing a memory file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seals {
    /// Nothing does.
    None,
    /// Its size stays.
    Size,
    /// Its size stays, and nobody maps it writable from now on.
    SizeAndWrites,
}

/// A memory file of `size` bytes, all of them there and zero, not yet sealed.
///
/// # Errors
///
/// The system's.
pub fn memfd(size: u64) -> io::Result<OwnedFd> {
    let fd = memfd_create("raw", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, size)?;
    if size > 0 {
        rustix::fs::fallocate(&fd, rustix::fs::FallocateFlags::empty(), 0, size)?;
        // An allocated page counts as a hole until it was written.
        for offset in (0..size).step_by(4096) {
            rustix::io::pwrite(&fd, &[0], offset)?;
        }
    }
    Ok(fd)
}

impl Seals {
    /// Puts the seals on.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn put_on(self, fd: impl AsFd) -> io::Result<()> {
        let size = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        match self {
            Self::None => Ok(()),
            Self::Size => Ok(fcntl_add_seals(fd, size)?),
            Self::SizeAndWrites => Ok(fcntl_add_seals(fd, size | SealFlags::FUTURE_WRITE)?),
        }
    }
}

/// A shared mapping as 64-bit words.
#[derive(Debug)]
pub struct Page {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping belongs to the process; access to it is by atomics.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    /// Maps the first `len` bytes to be read and written.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn writable(fd: impl AsFd, len: usize) -> io::Result<Self> {
        Self::new(fd, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Maps the first `len` bytes to be read.
    ///
    /// # Errors
    ///
    /// The system's.
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

impl Deref for Page {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: mapped until it is dropped, page-aligned, and whole words alone are counted.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.len / 8) }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the range is ours, and whoever could reach it borrowed from `self`.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}
