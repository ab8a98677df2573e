// SPDX-License-Identifier: MIT OR Apache-2.0

//! Interprocess CUDA events.
//!
//! - One process creates an event, another opens it from a 64-byte handle; then both can record it,
//!   wait for it and poll it. The creator must destroy it last: using an opened event after that is
//!   undefined.
//! - A wait or a query refers to the record made *before* it: notify the peer after
//!   [`Event::record`] has returned.
//! - If a process dies while its record is pending, the event stays pending forever. Streams that
//!   wait for it block, and recording it again blocks the recording stream, too: drop the event and
//!   those streams.
//! - A process can create about [`PER_PROCESS`] interprocess events.
//!
//! # Safety
//! This file calls the driver with out-parameters on its own stack and with live events.
#![allow(unsafe_code)]

use frameshare_process::PerProcess;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::Result;
use crate::abi::{CUipcEventHandle, flag};
use crate::context::Context;
use crate::event::Event;

/// The 64-byte handle from which another process opens an event (CUipcEventHandle).
pub type Handle = [u8; 64];

/// Number of interprocess events that a process can rely on. Driver 580 has 4,096 per process; on
/// some machines two of them were taken before this crate created its first, and other libraries in
/// the process, and other copies of this crate, share the limit.
pub const PER_PROCESS: usize = 4094;

/// Returns the number of live interprocess events created by this copy of the crate.
#[must_use]
pub fn alive() -> usize {
    ALIVE.load(Ordering::Relaxed)
}

static ALIVE: PerProcess<AtomicUsize> = PerProcess::new(AtomicUsize::default);

/// One of the events counted by [`alive`].
struct Counted(&'static AtomicUsize);

impl Counted {
    fn new() -> Counted {
        let alive = ALIVE.get();
        alive.fetch_add(1, Ordering::Relaxed);
        Counted(alive)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Event {
    /// Creates an event that other processes can open. The process that outlives the other must
    /// create it.
    ///
    /// # Errors
    /// Any error that the driver returns: CUDA_ERROR_OUT_OF_MEMORY beyond about [`PER_PROCESS`]
    /// events.
    ///
    /// # References
    /// CUDA driver API, cuEventCreate with CU_EVENT_INTERPROCESS and CU_EVENT_DISABLE_TIMING.
    pub fn new_shared(context: &Arc<Context>) -> Result<Event> {
        let flags = flag::EVENT_DISABLE_TIMING | flag::EVENT_INTERPROCESS;
        Event::with_flags(context, flags, Some(Box::new(Counted::new())))
    }

    /// Returns the handle from which another process opens this event, made with
    /// [`Event::new_shared`].
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE if the event was not created with [`Event::new_shared`].
    ///
    /// # References
    /// CUDA driver API, cuIpcGetEventHandle.
    pub fn export(&self) -> Result<Handle> {
        let _current = self.context().push()?;
        let mut handle = CUipcEventHandle { reserved: [0; 64] };
        // SAFETY: `handle` is an out-parameter for one handle; the event is alive.
        unsafe { self.context().driver().cuIpcGetEventHandle(&mut handle, self.raw()) }?;
        Ok(handle.reserved.map(|c| c.to_ne_bytes()[0]))
    }

    /// Opens an event of another process. Streams of `context` can record it, and any stream can
    /// wait for it.
    ///
    /// # Errors
    /// CUDA_ERROR_MAP_FAILED if the processes do not share /dev/shm
    /// ([`crate::Error::is_map_failed`]); CUDA_ERROR_INVALID_CONTEXT for an event of this process;
    /// CUDA_ERROR_INVALID_HANDLE.
    ///
    /// # References
    /// CUDA driver API, cuIpcOpenEventHandle.
    pub fn open(context: &Arc<Context>, handle: &Handle) -> Result<Event> {
        let _current = context.push()?;
        let handle =
            CUipcEventHandle { reserved: handle.map(|byte| std::ffi::c_char::from_ne_bytes([byte])) };
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is an out-parameter for one handle; an invalid IPC handle yields an error
        // code.
        unsafe { context.driver().cuIpcOpenEventHandle(&mut raw, handle) }?;
        Ok(Event::from_raw(context, raw))
    }
}
