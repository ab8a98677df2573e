//! Host memory made visible to the GPU, by locking its pages.
//!
//! # Safety
//! This file gives host addresses to the driver. They stay mapped because the owner of the mapping is held until the
//! registration is undone; that the owner does so is what the caller of [`Registration::new`] vouches for.
#![allow(unsafe_code)]

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::abi::flag;
use crate::context::Context;
use crate::error::log_drop;
use crate::{DevicePtr, Result};

/// What the GPU may do with registered memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reading only. The one choice for memory that the CPU maps read-only.
    Read,
    /// Reading and writing.
    ReadWrite,
}

/// Host memory that the GPU can reach.
///
/// Registering takes some hundred µs and undoing it waits for the GPU work that uses the memory: neither belongs on a
/// streaming thread.
pub struct Registration {
    start: Handle,
    access: Access,
    device: DevicePtr,
    context: Arc<Context>,
    /// Dropped after the registration was undone.
    _owner: Box<dyn Any + Send + Sync>,
}

/// The registered address; what it points to is shared with the GPU and is not touched through it.
struct Handle(NonNull<u8>);

// SAFETY: only the driver gets the address, and the driver may be called from any thread.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Registration {
    /// Registers `size` bytes from `start`, best whole pages. `owner` keeps them mapped and is dropped last.
    ///
    /// # Errors
    /// CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED; CUDA_ERROR_NOT_SUPPORTED for [`Access::Read`] without
    /// [`crate::device::Attribute::READ_ONLY_HOST_REGISTER_SUPPORTED`].
    ///
    /// # Safety
    /// The range must be mapped, and writable for [`Access::ReadWrite`], until `owner` is dropped; what the GPU does
    /// there must not break what Rust believes about it (atomics, or a plan who touches it when).
    ///
    /// # References
    /// CUDA driver API, cuMemHostRegister, cuMemHostGetDevicePointer.
    pub unsafe fn new(
        context: &Arc<Context>,
        start: NonNull<u8>,
        size: usize,
        access: Access,
        owner: impl Any + Send + Sync,
    ) -> Result<Registration> {
        let _current = context.push()?;
        let driver = context.driver();
        // For every context of the process: streams of any may wait for a word.
        let flags = flag::HOST_REGISTER_PORTABLE
            | flag::HOST_REGISTER_DEVICE_MAP
            | match access {
                Access::Read => flag::HOST_REGISTER_READ_ONLY,
                Access::ReadWrite => 0,
            };
        // SAFETY: the caller vouches for the range.
        unsafe { driver.cuMemHostRegister_v2(start.as_ptr().cast(), size, flags) }?;
        let mut registration = Registration {
            start: Handle(start),
            access,
            device: 0,
            context: context.clone(),
            _owner: Box::new(owner),
        };
        // SAFETY: `device` takes one pointer; the address was just registered; 0 is the only value for the flags.
        unsafe { driver.cuMemHostGetDevicePointer_v2(&mut registration.device, start.as_ptr().cast(), 0) }?;
        Ok(registration)
    }

    /// Where the GPU sees the first byte.
    #[must_use]
    pub fn device_ptr(&self) -> DevicePtr {
        self.device
    }

    /// What the GPU may do.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registration({:p}, {:?})", self.start.0, self.access)
    }
}

impl Drop for Registration {
    /// Waits for the GPU work that uses the memory.
    fn drop(&mut self) {
        log_drop(self.context.push().and_then(|_current| {
            // SAFETY: the address was registered by `new` and is still mapped, since `_owner` is alive.
            unsafe { self.context.driver().cuMemHostUnregister(self.start.0.as_ptr().cast()) }
        }));
    }
}
