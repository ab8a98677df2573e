// SPDX-License-Identifier: MIT OR Apache-2.0

//! Legacy CUDA IPC memory: whole allocations shared by a 64-byte handle, without file descriptors.
//!
//! CUDA shares the entire block that contains an allocation. Allocations here are multiples of 2
//! MiB, so that no other allocation is in the block.
//!
//! - A process cannot open its own handles (CUDA_ERROR_INVALID_CONTEXT).
//! - Only one context per process can open handles of a given exporter device; the driver rejects a
//!   second one.
//! - Opening a handle again returns the same address; the driver counts the opens.
//! - Every import must be closed before the exporter frees the memory; otherwise CUDA leaves the
//!   behavior undefined.
//!
//! # Safety
//! This file calls the driver with out-parameters on its own stack and with addresses returned by
//! the driver.
#![allow(unsafe_code)]

use std::sync::Arc;

use crate::abi::{CUipcMemHandle, flag};
use crate::context::Context;
use crate::error::log_drop;
use crate::memory::{private, round_up};
use crate::{DevicePtr, Error, Result};

/// The handle from which an importer opens an allocation (CUipcMemHandle). Any process that has it
/// can open it.
pub type Handle = [u8; 64];

/// Block size of legacy sharing; allocation sizes are multiples of it (CUDA C++ programming guide,
/// interprocess communication).
pub const BLOCK: usize = 2 << 20;

/// An exportable allocation of this process.
#[derive(Debug)]
pub struct Allocation {
    memory: private::Allocation,
    size: usize,
    handle: Handle,
}

impl Allocation {
    /// Allocates at least `size` bytes on the context's device, rounded up to a multiple of
    /// [`BLOCK`].
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY; any error of cuIpcGetMemHandle if the memory cannot be shared, for
    /// example CUDA_ERROR_INVALID_VALUE on boards with an integrated GPU.
    ///
    /// # References
    /// CUDA driver API, cuMemAlloc, cuIpcGetMemHandle.
    pub fn new(context: &Arc<Context>, size: usize) -> Result<Allocation> {
        let size = round_up(size.max(1), BLOCK)
            .ok_or(Error::Refused("allocation size exceeds the address space"))?;
        let memory = private::Allocation::new(context, size)?;
        let _current = context.push()?;
        let handle = handle_of(context, memory.ptr())?;
        Ok(Allocation { memory, size, handle })
    }

    /// Returns the handle from which importers open the memory.
    #[must_use]
    pub fn export(&self) -> Handle {
        self.handle
    }

    /// Returns the start of the memory.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.memory.ptr()
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }
}

/// Returns the handle of the block that begins at `base`.
pub(crate) fn handle_of(context: &Context, base: DevicePtr) -> Result<Handle> {
    let mut handle = CUipcMemHandle { reserved: [0; 64] };
    // SAFETY: `handle` is an out-parameter for one handle; an address that cannot be shared yields
    // an error code.
    unsafe { context.driver().cuIpcGetMemHandle(&mut handle, base) }?;
    Ok(handle.reserved.map(|c| c.to_ne_bytes()[0]))
}

/// Imported memory of another process, mapped readable and writable. Exported external memory
/// ([`super::adopted`]) is imported the same way.
///
/// Drop it once the GPU work that uses it is complete; closing waits for the GPU.
#[derive(Debug)]
pub struct Import {
    start: DevicePtr,
    context: Arc<Context>,
}

impl Import {
    /// Maps the block behind `handle` for the context's device, with peer access if it is on
    /// another device.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_CONTEXT for a handle of this process; CUDA_ERROR_INVALID_HANDLE or
    /// CUDA_ERROR_MAP_FAILED if the memory no longer exists; CUDA_ERROR_INVALID_HANDLE (measured on
    /// an H200, driver 580) or CUDA_ERROR_ALREADY_MAPPED if another context of this process has
    /// opened handles of that device; CUDA_ERROR_PEER_ACCESS_UNSUPPORTED and
    /// CUDA_ERROR_TOO_MANY_PEERS between devices.
    ///
    /// # References
    /// CUDA driver API, cuIpcOpenMemHandle.
    pub fn new(context: &Arc<Context>, handle: &Handle) -> Result<Import> {
        let _current = context.push()?;
        let handle = CUipcMemHandle { reserved: handle.map(|byte| std::ffi::c_char::from_ne_bytes([byte])) };
        let mut start = 0;
        // SAFETY: `start` is an out-parameter for one pointer; an invalid handle yields an error
        // code.
        unsafe { context.driver().cuIpcOpenMemHandle_v2(&mut start, handle, flag::IPC_LAZY_PEER_ACCESS) }?;
        Ok(Import { start, context: context.clone() })
    }

    /// Returns the start of the block in this process.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.start
    }
}

impl Drop for Import {
    fn drop(&mut self) {
        log_drop(self.context.push().and_then(|_current| {
            // SAFETY: `self` owns the mapping, which is not used after this.
            unsafe { self.context.driver().cuIpcCloseMemHandle(self.start) }
        }));
    }
}
