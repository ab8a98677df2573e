// SPDX-License-Identifier: MIT OR Apache-2.0

//! Mappings of memory files.
//!
//! # Safety
//!
//! Host memory is mapped in this file only. A [`Mapping`] owns its address range from `mmap` to
//! `munmap`; the file behind it is sealed against shrinking (own files) or checked to be
//! ([`check_memfd`](super::check_memfd)), so that no access inside the range can fault; a dma-buf
//! has a fixed size, and its driver is trusted. Other processes may write the memory at any time,
//! so it is only handed out as atomics or as a raw pointer.
#![allow(unsafe_code)]

use frameshare_cuda::order;
use frameshare_queue::Page;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::{
    io,
    ops::Deref,
    os::fd::AsFd,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU32, AtomicU64},
    },
};

/// A shared mapping of the start of a memory file.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread; access to it is by atomics or raw
// pointers.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method needs exclusive access.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes for reading and writing.
    ///
    /// # Errors
    /// The error of mmap(2).
    pub fn writable(fd: impl AsFd, len: usize) -> io::Result<Self> {
        Self::new(fd, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Maps the first `len` bytes for reading only; a write to them raises SIGSEGV.
    ///
    /// # Errors
    /// The error of mmap(2).
    pub fn read_only(fd: impl AsFd, len: usize) -> io::Result<Self> {
        Self::new(fd, len, ProtFlags::READ)
    }

    fn new(fd: impl AsFd, len: usize, prot: ProtFlags) -> io::Result<Self> {
        // SAFETY: the kernel chooses the range, so it overlaps no memory of Rust.
        let start = unsafe { mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, fd, 0)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, len })
    }

    /// Start of the mapping: page-aligned, and valid until it is dropped.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is owned, and all references to it borrowed from `self`.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

/// A mapping as 64-bit atomic words, shared by reference count.
#[derive(Clone, Debug)]
pub struct Words(Arc<Mapping>);

impl From<Mapping> for Words {
    fn from(mapping: Mapping) -> Self {
        Self(Arc::new(mapping))
    }
}

impl Words {
    /// Start of the mapping: page-aligned, and valid until the last clone is dropped.
    pub fn start(&self) -> NonNull<u8> {
        self.0.as_ptr()
    }

    /// Frees the pages of the memory file, which must not be sealed against writing. Other
    /// processes that still have it mapped get fresh pages, which they are charged for.
    ///
    /// # Errors
    /// The error of madvise(2).
    pub fn free_pages(&self) -> io::Result<()> {
        let (start, len) = (self.0.start.as_ptr().cast(), self.0.len);
        // SAFETY: the range is mapped as long as `self` lives, and its words are accessed as
        // atomics only, which read zero from now on.
        Ok(unsafe { madvise(start, len, Advice::LinuxRemove) }?)
    }
}

impl Deref for Words {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: mapped as long as `self` lives, and other processes' writes meet atomics only;
        // the start is page-aligned, and only whole words are counted.
        unsafe { std::slice::from_raw_parts(self.0.start.as_ptr().cast(), self.0.len / 8) }
    }
}

/// The words of a queue. The simulated driver learns which of them order accesses of several
/// processes.
impl Page for Words {
    type Word = AtomicU64;

    #[inline]
    fn words(&self) -> &[AtomicU64] {
        self
    }

    #[inline]
    fn before_store(&self, word: &AtomicU64) {
        order::before_store(word);
    }

    #[inline]
    fn after_load(&self, word: &AtomicU64) {
        order::after_load(word);
    }
}

impl AsRef<[AtomicU64]> for Words {
    fn as_ref(&self) -> &[AtomicU64] {
        self
    }
}

/// A mapping as 32-bit atomic words: futexes.
#[derive(Debug)]
pub struct FutexWords(Mapping);

impl From<Mapping> for FutexWords {
    fn from(mapping: Mapping) -> Self {
        Self(mapping)
    }
}

impl Deref for FutexWords {
    type Target = [AtomicU32];

    fn deref(&self) -> &[AtomicU32] {
        // SAFETY: as for `Words`; these words are never accessed in another size.
        unsafe { std::slice::from_raw_parts(self.0.start.as_ptr().cast(), self.0.len / 4) }
    }
}

/// Copies bytes into shared words, eight at a time, from word `at` on.
pub fn store_bytes(words: &[AtomicU64], at: usize, bytes: &[u8]) {
    use std::sync::atomic::Ordering::Relaxed;
    let (whole, rest) = bytes.as_chunks::<8>();
    for (word, chunk) in words[at..].iter().zip(whole) {
        word.store(u64::from_le_bytes(*chunk), Relaxed);
    }
    if !rest.is_empty() {
        let mut value = [0; 8];
        value[..rest.len()].copy_from_slice(rest);
        words[at + whole.len()].store(u64::from_le_bytes(value), Relaxed);
    }
}

/// Copies `len` bytes out of shared words, from word `at` on; fewer where the words end before.
pub fn load_bytes(words: &[AtomicU64], at: usize, len: usize) -> Vec<u8> {
    use std::sync::atomic::Ordering::Relaxed;
    let words = words.get(at..).unwrap_or_default();
    let len = len.min(8 * words.len());
    let mut bytes = vec![0; len];
    let (whole, rest) = bytes.as_chunks_mut::<8>();
    for (to, word) in whole.iter_mut().zip(words) {
        *to = word.load(Relaxed).to_le_bytes();
    }
    if let Some(word) = words.get(whole.len()).filter(|_| !rest.is_empty()) {
        rest.copy_from_slice(&word.load(Relaxed).to_le_bytes()[..rest.len()]);
    }
    bytes
}

/// Copies shared bytes to `to`, which has as many, word by word: loading each alone takes eight
/// times as long.
pub fn load_into(from: &[AtomicU8], to: &mut [u8]) {
    use std::sync::atomic::Ordering::Relaxed;
    // SAFETY: eight bytes that other processes may write at any time are also a word of that kind,
    // and loads do not write to a read-only mapping.
    let (head, words, tail) = unsafe { from.align_to::<AtomicU64>() };
    let (to_head, to) = to.split_at_mut(head.len());
    let (to_words, to_tail) = to.split_at_mut(8 * words.len());
    let load = |from: &[AtomicU8], to: &mut [u8]| {
        from.iter().zip(to).for_each(|(from, to)| *to = from.load(Relaxed));
    };
    load(head, to_head);
    for (word, to) in words.iter().zip(to_words.as_chunks_mut::<8>().0) {
        *to = word.load(Relaxed).to_ne_bytes();
    }
    load(tail, to_tail);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_bytes_are_loaded_whole() {
        for len in [0, 1, 7, 8, 9, 63, 64] {
            let words: Vec<AtomicU64> = (0..10).map(|_| AtomicU64::new(u64::MAX)).collect();
            let bytes: Vec<u8> = (1..=len).collect();
            store_bytes(&words, 1, &bytes);
            assert_eq!(load_bytes(&words, 1, bytes.len()), bytes);
            let after = load_bytes(&words, 1 + bytes.len().div_ceil(8), 8);
            assert!(after.iter().all(|byte| *byte == 255), "a word behind {len} bytes was written");
        }
    }

    #[test]
    fn load_past_the_end_is_cut_short() {
        let words = [AtomicU64::new(u64::MAX), AtomicU64::new(u64::MAX)];
        assert_eq!(load_bytes(&words, 1, 100).len(), 8);
        assert!(load_bytes(&words, 5, 100).is_empty());
    }

    #[test]
    fn unaligned_bytes_are_loaded_whole() {
        let bytes: Vec<AtomicU8> = (0..100).map(AtomicU8::new).collect();
        for (start, end) in [(0, 0), (0, 100), (1, 3), (3, 64), (7, 99), (8, 16)] {
            let mut to = vec![255; end - start];
            load_into(&bytes[start..end], &mut to);
            assert_eq!(to, (start as u8..end as u8).collect::<Vec<_>>());
        }
    }
}
