// SPDX-License-Identifier: MIT OR Apache-2.0

//! The number of the present process, without a system call.
//!
//! Objects compare it at each use, several times a frame. It is in a page of which the kernel gives
//! each forked child a page of zeros, however the child is forked; the child then asks the kernel
//! once. A kernel that cannot do so is asked each time.
//!
//! # Safety
//!
//! The page is mapped for the rest of the process, aligned, and accessed as one atomic word alone.
#![allow(unsafe_code)]

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::{
    process, ptr,
    sync::atomic::{AtomicPtr, AtomicU32, Ordering},
};

/// The kernel rounds it up to a page.
const SIZE: usize = size_of::<AtomicU32>();

/// The word; null before [`start`], and where the kernel has no such pages.
static WORD: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// Maps the page, at the import of the module. No lock is taken, which a fork could leave locked.
pub fn start() {
    if !WORD.load(Ordering::Acquire).is_null() {
        return;
    }
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let page = unsafe {
        mmap_anonymous(ptr::null_mut(), SIZE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    };
    let Ok(page) = page else { return };
    // SAFETY: the mapping is this function's, and holds zeros, which the advice may make of it.
    let is_wiped = unsafe { madvise(page, SIZE, Advice::LinuxWipeOnFork) }.is_ok();
    let word = page.cast::<AtomicU32>();
    let swap = || WORD.compare_exchange(ptr::null_mut(), word, Ordering::AcqRel, Ordering::Acquire);
    if !is_wiped || swap().is_err() {
        // SAFETY: nothing refers to the mapping.
        let _ = unsafe { munmap(page, SIZE) };
    }
}

/// Returns the number of the present process.
pub fn id() -> u32 {
    // SAFETY: null, or the page of `start`, which is never unmapped.
    let Some(word) = (unsafe { WORD.load(Ordering::Acquire).as_ref() }) else { return process::id() };
    match word.load(Ordering::Relaxed) {
        // Not asked yet since the start or the fork. All threads store the same number.
        0 => {
            let id = process::id();
            word.store(id, Ordering::Relaxed);
            id
        }
        id => id,
    }
}
