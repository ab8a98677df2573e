// SPDX-License-Identifier: MIT OR Apache-2.0

//! Registered host memory: page-locked and accessible to the GPU.
//!
//! # Safety
//! This file passes host addresses to the driver. They stay mapped because a [`Registration`] holds
//! the owner of the mapping until it is unregistered; the caller of [`Registration::new`]
//! guarantees that the owner keeps the mapping.
#![allow(unsafe_code)]

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::abi::flag;
use crate::context::Context;
use crate::error::log_drop;
use crate::{DevicePtr, Error, Result};

/// GPU access rights to registered memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Access {
    /// Read only. Required for memory that the CPU maps read-only.
    Read,
    /// Read and write.
    ReadWrite,
}

/// Host memory that the GPU can access.
///
/// Registration takes some hundred µs, and unregistration waits for the GPU work that uses the
/// memory: do neither on a streaming thread.
#[must_use = "dropping the registration ends it"]
pub struct Registration {
    start: Start,
    access: Access,
    device: DevicePtr,
    context: Arc<Context>,
    /// Dropped after unregistration.
    owner: Option<Box<dyn Any + Send + Sync>>,
}

/// The registered address. Its memory is shared with the GPU and never accessed through this
/// pointer.
struct Start(NonNull<u8>);

// SAFETY: the address is passed only to the driver, which may be called from any thread.
unsafe impl Send for Start {}
// SAFETY: as above.
unsafe impl Sync for Start {}

impl Registration {
    /// Registers `size` bytes from `start`, preferably whole pages. `owner` keeps them mapped and
    /// is dropped last.
    ///
    /// # Errors
    /// CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED; CUDA_ERROR_NOT_SUPPORTED for [`Access::Read`]
    /// without [`crate::device::Attribute::READ_ONLY_HOST_REGISTER_SUPPORTED`].
    ///
    /// # Safety
    /// The range must be mapped, and for [`Access::ReadWrite`] writable, until `owner` is dropped.
    /// GPU accesses must not violate Rust's aliasing rules: use atomics, or an agreed order of
    /// accesses.
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
        // Registered for every context of the process: streams of any of them may wait for a value
        // in it.
        let flags = flag::HOST_REGISTER_PORTABLE
            | flag::HOST_REGISTER_DEVICE_MAP
            | match access {
                Access::Read => flag::HOST_REGISTER_READ_ONLY,
                Access::ReadWrite => 0,
            };
        // SAFETY: the caller guarantees the range.
        unsafe { driver.cuMemHostRegister_v2(start.as_ptr().cast(), size, flags) }?;
        let mut registration = Registration {
            start: Start(start),
            access,
            device: 0,
            context: context.clone(),
            owner: Some(Box::new(owner)),
        };
        // SAFETY: `device` is an out-parameter for one pointer; the address has just been
        // registered; 0 is the only valid flags value.
        unsafe { driver.cuMemHostGetDevicePointer_v2(&mut registration.device, start.as_ptr().cast(), 0) }?;
        Ok(registration)
    }

    /// Returns the GPU's address of the first byte.
    #[must_use]
    pub fn device_ptr(&self) -> DevicePtr {
        self.device
    }

    /// Returns the GPU's access rights.
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
    /// Waits for the GPU work that uses the memory. While the process exits nobody can: the GPU may
    /// still write to it, so it stays mapped until the end.
    fn drop(&mut self) {
        let unregistered = self.context.push().and_then(|_current| {
            // SAFETY: the address was registered by `new` and is still mapped, since `owner` is
            // alive.
            unsafe { self.context.driver().cuMemHostUnregister(self.start.0.as_ptr().cast()) }
        });
        if unregistered.as_ref().is_err_and(Error::is_deinitialized) {
            std::mem::forget(self.owner.take());
        }
        log_drop(unregistered);
    }
}
