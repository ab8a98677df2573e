// SPDX-License-Identifier: MIT OR Apache-2.0

//! Host memory of our own, which the driver copies to the GPU without the CPU's help.
//!
//! # Safety
//!
//! The allocation is owned, accessed through its owner only, and freed after its registration.
#![allow(unsafe_code)]

use std::alloc::{self, Layout};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::context::Context;
use crate::host::{Access, Registration};
use crate::{Error, Result};

/// The largest page size of machines with a GPU. Two buffers on one page of the kernel could not
/// both be registered.
const PAGE: usize = 64 << 10;

/// Whole pages of host memory, zeroed, and registered with the GPU if the driver can.
///
/// Dropping it waits for the GPU work that uses it: not on a streaming thread.
#[derive(Debug)]
pub struct HostBuffer {
    // Dropped first.
    registration: Option<Registration>,
    pages: Arc<Pages>,
}

#[derive(Debug)]
struct Pages {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: an allocation that is owned, and accessed only through its `HostBuffer`.
unsafe impl Send for Pages {}
// SAFETY: as above; a shared reference gives only its address.
unsafe impl Sync for Pages {}

impl Pages {
    fn new(size: usize) -> Result<Pages> {
        let refused = Error::Refused("there is no host memory for a frame on its way to the GPU");
        let size = size.max(1).checked_next_multiple_of(PAGE).ok_or_else(|| refused.clone())?;
        let layout = Layout::from_size_align(size, PAGE).map_err(|_| refused.clone())?;
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { alloc::alloc_zeroed(layout) }).ok_or(refused)?;
        Ok(Pages { start, layout })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and unused.
        unsafe { alloc::dealloc(self.start.as_ptr(), self.layout) }
    }
}

impl HostBuffer {
    /// Allocates at least `size` bytes. Registration takes some hundred µs; without it copies are
    /// slower.
    ///
    /// # Errors
    /// [`Error::Refused`] if there is no memory.
    pub fn new(context: &Arc<Context>, size: usize) -> Result<HostBuffer> {
        let pages = Arc::new(Pages::new(size)?);
        let (start, size) = (pages.start, pages.layout.size());
        // SAFETY: the pages live as long as the registration, which holds them. The GPU accesses
        // them only in copies, whose callers keep the order of accesses.
        let registration =
            unsafe { Registration::new(context, start, size, Access::ReadWrite, pages.clone()) };
        Ok(HostBuffer { registration: registration.ok(), pages })
    }

    /// Returns whether the driver could register it.
    #[must_use]
    pub fn is_registered(&self) -> bool {
        self.registration.is_some()
    }
}

impl Deref for HostBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the pages are initialized, have this size, and are borrowed.
        unsafe { std::slice::from_raw_parts(self.pages.start.as_ptr(), self.pages.layout.size()) }
    }
}

impl DerefMut for HostBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.pages.start.as_ptr(), self.pages.layout.size()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages of the largest kind, of ARM machines.
    const LARGEST: usize = 64 << 10;

    #[test]
    fn buffers_share_no_page_of_any_page_size() {
        for size in [1, 4096, LARGEST - 1, LARGEST, LARGEST + 1] {
            let pages = Pages::new(size).unwrap();
            assert!(pages.start.as_ptr().addr().is_multiple_of(LARGEST));
            assert!(pages.layout.size() >= size && pages.layout.size().is_multiple_of(LARGEST));
        }
    }
}
