// SPDX-License-Identifier: MIT OR Apache-2.0

//! dma-bufs of upstream's memory.
//!
//! # Safety
//!
//! A memory of a dma-buf owns its descriptor, which is open while the memory is borrowed. A buffer
//! owns a reference to its pool.
#![allow(unsafe_code)]

use glib::translate::*;
use gst::prelude::*;
use gst_allocators::DmaBufMemory;
use std::os::fd::BorrowedFd;

/// Returns the dma-buf that a memory is in, and the offset of its first byte; none if it is other
/// memory.
pub(crate) fn of(memory: &gst::MemoryRef) -> Option<(BorrowedFd<'_>, u64)> {
    let fd = memory.downcast_memory_ref::<DmaBufMemory>()?.fd();
    if fd < 0 {
        return None;
    }
    // SAFETY: the memory, from which the result borrows, keeps the descriptor open.
    Some((unsafe { BorrowedFd::borrow_raw(fd) }, memory.offset() as u64))
}

/// Returns the greatest number of buffers of the pool that a buffer belongs to; none without a pool
/// or without a limit.
pub(crate) fn pool_size(buffer: &gst::BufferRef) -> Option<u32> {
    // SAFETY: a buffer holds a reference to its pool, which is taken once more here, or has none.
    let pool: Option<gst::BufferPool> = unsafe { from_glib_none((*buffer.as_ptr()).pool) };
    let (_, _, _, max) = pool?.config().params()?;
    Some(max).filter(|max| *max > 0)
}
