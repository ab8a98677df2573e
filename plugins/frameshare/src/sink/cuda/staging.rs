// SPDX-License-Identifier: MIT OR Apache-2.0

//! Pinned host memory for uploads, which the driver copies without the CPU's help.
//!
//! # Safety
//!
//! Blocks are plain allocations that are owned, lent to one holder at a time, and freed after their
//! registration.
#![allow(unsafe_code)]

use frameshare::DropWhenIdle;
use frameshare_cuda::{
    context::Context,
    host::{Access, Registration},
};
use std::{
    alloc::{self, Layout},
    ptr::NonNull,
    sync::{Arc, Mutex, PoisonError},
};

const PAGE: usize = 4096;

/// Unused blocks.
pub(super) struct Staging {
    context: Arc<Context>,
    idle: Arc<Mutex<Vec<Pages>>>,
}

/// Memory of one holder; dropping it makes it available again.
pub(super) struct Block {
    pages: Option<Pages>,
    size: usize,
    slots: Arc<Mutex<Vec<Pages>>>,
}

/// Pages, registered if the driver could.
struct Pages {
    /// Keeps the memory.
    _registration: Option<DropWhenIdle<Registration>>,
    memory: Arc<Memory>,
}

struct Memory {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: an allocation that is owned, and accessed only by the holder of its block.
unsafe impl Send for Memory {}
// SAFETY: as above; a shared reference gives only its address.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(size: usize) -> frameshare_cuda::Result<Arc<Self>> {
        let refused =
            frameshare_cuda::Error::Refused("there is no host memory for a frame on its way to the GPU");
        let size = size.max(1).checked_next_multiple_of(PAGE).ok_or_else(|| refused.clone())?;
        let layout = Layout::from_size_align(size, PAGE).map_err(|_| refused.clone())?;
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { alloc::alloc_zeroed(layout) }).ok_or(refused)?;
        Ok(Arc::new(Self { start, layout }))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and unused.
        unsafe { alloc::dealloc(self.start.as_ptr(), self.layout) }
    }
}

impl Staging {
    pub(super) fn new(context: &Arc<Context>) -> Self {
        Self { context: context.clone(), idle: Arc::default() }
    }

    /// Returns a block of `size` bytes. Registering a new one takes some hundred µs, which ends
    /// once there are enough.
    pub(super) fn take(&self, size: usize) -> frameshare_cuda::Result<Block> {
        let block = |pages| Block { pages: Some(pages), size, slots: self.idle.clone() };
        let mut small = Vec::new();
        {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(index) = idle.iter().position(|pages| pages.memory.layout.size() >= size) {
                return Ok(block(idle.swap_remove(index)));
            }
            // Frames have grown: smaller blocks are not needed again.
            small.append(&mut idle);
        }
        drop(small);
        let memory = Memory::new(size)?;
        // SAFETY: the memory lives as long as the registration, which holds it; the GPU reads it
        // while its holder does not write it.
        let registration = unsafe {
            Registration::new(
                &self.context,
                memory.start,
                memory.layout.size(),
                Access::ReadWrite,
                memory.clone(),
            )
        };
        let registration =
            registration.ok().map(|registration| DropWhenIdle::new(&self.context, registration));
        Ok(block(Pages { _registration: registration, memory }))
    }
}

impl Block {
    pub(super) fn as_ptr(&self) -> *const u8 {
        self.pages.as_ref().map_or(std::ptr::null(), |pages| pages.memory.start.as_ptr())
    }
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        match &self.pages {
            // SAFETY: the block belongs to its holder, is initialized, and has at least this size.
            Some(pages) => unsafe { std::slice::from_raw_parts(pages.memory.start.as_ptr(), self.size) },
            None => &[],
        }
    }
}

impl AsMut<[u8]> for Block {
    fn as_mut(&mut self) -> &mut [u8] {
        match &mut self.pages {
            // SAFETY: as above, and borrowed mutably.
            Some(pages) => unsafe { std::slice::from_raw_parts_mut(pages.memory.start.as_ptr(), self.size) },
            None => &mut [],
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).extend(self.pages.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use frameshare_cuda::{device::Device, stream::Stream};
    use std::{io::Write as _, sync::mpsc, thread, time::Duration};

    #[test]
    fn blocks_are_given_up_without_waiting_for_a_stream_that_is_stuck() {
        let Ok(device) = Device::get(0) else {
            std::io::stdout().write_all(b"SKIP framesharesink/staging: there is no CUDA driver\n").unwrap();
            return;
        };
        let context = Context::create(&device).unwrap();
        let staging = Staging::new(&context);
        let block = staging.take(PAGE).unwrap();
        assert!(block.pages.as_ref().is_some_and(|pages| pages._registration.is_some()));
        drop(block);
        let stream = Stream::new(&context).unwrap();
        let (done, stuck) = mpsc::channel::<()>();
        stream.call(move || _ = stuck.recv_timeout(Duration::from_secs(60))).unwrap();
        let (tell, told) = mpsc::channel();
        let gives_up = thread::spawn(move || {
            drop(staging.take(2 * PAGE).unwrap());
            drop(staging);
            tell.send(()).unwrap();
        });
        let told = told.recv_timeout(Duration::from_secs(10));
        drop(done);
        gives_up.join().unwrap();
        assert!(told.is_ok(), "it waited for the stream");
    }
}
