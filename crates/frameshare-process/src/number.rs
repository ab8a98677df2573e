// SPDX-License-Identifier: MIT OR Apache-2.0

//! A number of this process that a fork changes, without a system call.
//!
//! It is in a page of which the kernel gives each forked child a page of zeros (MADV_WIPEONFORK,
//! madvise(2)), unless parent and child share their memory; the child then takes the next number.
//! The ID of a process is no such number: a child in a new PID namespace can have its parent's. It
//! stands for the number only with a kernel without such pages.
//!
//! # Safety
//!
//! The page is mapped for the rest of the process, aligned, and accessed as one atomic word alone.
#![allow(unsafe_code)]

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::{
    process, ptr,
    sync::atomic::{AtomicPtr, AtomicU64, Ordering},
};

/// The kernel rounds it up to a page.
const SIZE: usize = size_of::<AtomicU64>();

/// The word of the page; null before the first use.
static WORD: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
/// In place of a word where the kernel has no such pages.
static NONE: AtomicU64 = AtomicU64::new(0);
/// The next number. A child goes on where its parent was, and so has a number that none of the
/// processes before it had when they forked.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Returns a number that tells this process from all processes that it descends from by fork(2),
/// and so whether an object was made before a fork. It is no process ID, and not unique: two
/// children of a process can have the same one.
///
/// It takes no lock, which a fork could leave locked, and costs two loads. For any thread.
pub fn process_number() -> u64 {
    let mut word = WORD.load(Ordering::Acquire);
    if word.is_null() {
        word = map();
    }
    // SAFETY: `NONE`, or the page, which is never unmapped.
    let word = unsafe { &*word };
    if ptr::eq(word, &raw const NONE) {
        return process::id().into();
    }
    match word.load(Ordering::Relaxed) {
        // None taken yet since the start or the fork. The first thread's counts.
        0 => {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            word.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed).err().unwrap_or(number)
        }
        number => number,
    }
}

/// Maps the page, unless another thread has. Returns the word, or `NONE`.
fn map() -> *mut AtomicU64 {
    let new = new_word().unwrap_or((&raw const NONE).cast_mut());
    let swap = WORD.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire);
    if swap.is_err() && !ptr::eq(new, &raw const NONE) {
        // SAFETY: nothing refers to this mapping.
        let _ = unsafe { munmap(new.cast(), SIZE) };
    }
    swap.err().unwrap_or(new)
}

/// Maps a page that is wiped in forked children.
fn new_word() -> Option<*mut AtomicU64> {
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let page = unsafe {
        mmap_anonymous(ptr::null_mut(), SIZE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    };
    let page = page.ok()?;
    // SAFETY: there is no such advice.
    let refuses_unknown = unsafe { libc::madvise(page, SIZE, -1) } != 0;
    // An emulator that ignores advice accepts all of it (qemu-user before 7.1).
    // SAFETY: the mapping is this function's, and holds zeros, which the advice may make of it.
    if refuses_unknown && unsafe { madvise(page, SIZE, Advice::LinuxWipeOnFork) }.is_ok() {
        return Some(page.cast());
    }
    // SAFETY: nothing refers to the mapping.
    let _ = unsafe { munmap(page, SIZE) };
    None
}
