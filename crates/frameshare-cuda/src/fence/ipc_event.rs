//! Events that two processes share.
//!
//! - Created by one process, opened by another from 64 bytes, then recorded, waited for and looked at by either. The
//!   creator destroys last; what an opened event does after that is undefined.
//! - A wait or a look means the record made *before* it: tell the other side after [`Event::record`] returned.
//! - A process that dies with its record pending leaves the event pending for ever. Streams that wait for it are stuck,
//!   and recording it again sticks the recording stream, too: drop the event and those streams.
//! - A process can create about [`PER_PROCESS`] of them.
//!
//! # Safety
//! This file calls the driver with out-parameters on its own stack and events that are alive.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::Result;
use crate::abi::{CUipcEventHandle, flag};
use crate::context::Context;
use crate::event::Event;

/// What another process needs to open an event (CUipcEventHandle).
pub type Handle = [u8; 64];

/// How many interprocess events one process can count on. Driver 580 has 4,096 for a process; on some machines two of
/// them were taken before the first was created here, and other libraries in the process draw on the same number.
pub const PER_PROCESS: usize = 4094;

/// How many events that this crate created to be shared are alive.
#[must_use]
pub fn alive() -> usize {
    ALIVE.load(Ordering::Relaxed)
}

static ALIVE: AtomicUsize = AtomicUsize::new(0);

/// One of the events counted by [`alive`].
pub(crate) struct Slot(());

impl Slot {
    fn take() -> Slot {
        ALIVE.fetch_add(1, Ordering::Relaxed);
        Slot(())
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        ALIVE.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Event {
    /// An event that other processes can open. Creating it belongs to the side that outlives the other.
    ///
    /// # Errors
    /// What the driver says; beyond about [`PER_PROCESS`] of them it has no more (CUDA_ERROR_OUT_OF_MEMORY).
    ///
    /// # References
    /// CUDA driver API, cuEventCreate with CU_EVENT_INTERPROCESS and CU_EVENT_DISABLE_TIMING.
    pub fn new_shared(context: &Arc<Context>) -> Result<Event> {
        let flags = flag::EVENT_DISABLE_TIMING | flag::EVENT_INTERPROCESS;
        Event::with_flags(context, flags, Some(Slot::take()))
    }

    /// What another process needs to open this event, made with [`Event::new_shared`].
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE for an event that was not made to be shared.
    ///
    /// # References
    /// CUDA driver API, cuIpcGetEventHandle.
    pub fn export(&self) -> Result<Handle> {
        let _current = self.context().push()?;
        let mut handle = CUipcEventHandle { reserved: [0; 64] };
        // SAFETY: `handle` takes one handle; the event is alive.
        unsafe { self.context().driver().cuIpcGetEventHandle(&mut handle, self.raw()) }?;
        Ok(handle.reserved.map(|c| c.cast_unsigned()))
    }

    /// Opens an event of another process, to be recorded on streams of `context` and waited for by any.
    ///
    /// # Errors
    /// CUDA_ERROR_MAP_FAILED when the two processes have not the same /dev/shm ([`crate::Error::is_map_failed`]);
    /// CUDA_ERROR_INVALID_CONTEXT for an event of this process; CUDA_ERROR_INVALID_HANDLE.
    ///
    /// # References
    /// CUDA driver API, cuIpcOpenEventHandle.
    pub fn open(context: &Arc<Context>, handle: &Handle) -> Result<Event> {
        let _current = context.push()?;
        let handle = CUipcEventHandle { reserved: handle.map(|byte| byte.cast_signed()) };
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` takes one handle; a handle that means nothing is an error code.
        unsafe { context.driver().cuIpcOpenEventHandle(&mut raw, handle) }?;
        Ok(Event::from_raw(context, raw))
    }
}
