//! Whole allocations shared by CUDA's first interface for it: a handle of 64 bytes, no file descriptors.
//!
//! CUDA shares the block that an allocation lies in. Allocations of this kind are multiples of 2 MiB, so that no other
//! allocation lies in the block.
//!
//! - A process does not open its own handles (CUDA_ERROR_INVALID_CONTEXT).
//! - One context of a process opens the handles of one exporter's device; a second one is refused by the driver.
//! - Opening the same handle twice gives the same address; the driver counts.
//! - Every import is closed before the exporter frees; anything else CUDA leaves undefined.
//!
//! # Safety
//! This file calls the driver with out-parameters on its own stack and addresses that the driver gave.
#![allow(unsafe_code)]

use std::sync::Arc;

use crate::abi::{CUipcMemHandle, flag};
use crate::context::Context;
use crate::error::log_drop;
use crate::memory::round_up;
use crate::{DevicePtr, Error, Result};

/// What an importer needs to open an allocation (CUipcMemHandle). Whoever knows it may open it.
pub type Handle = [u8; 64];

/// Sizes are multiples of this: the blocks in which CUDA shares (CUDA C++ programming guide, interprocess communication).
pub const BLOCK: usize = 2 << 20;

/// Memory of this process that can be exported.
#[derive(Debug)]
pub struct Allocation {
    start: DevicePtr,
    size: usize,
    handle: Handle,
    context: Arc<Context>,
}

impl Allocation {
    /// Allocates at least `size` bytes on the context's device, rounded up to a multiple of [`BLOCK`].
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY; whatever cuIpcGetMemHandle says where memory cannot be shared so, for example
    /// CUDA_ERROR_INVALID_VALUE on boards with an integrated GPU.
    ///
    /// # References
    /// CUDA driver API, cuMemAlloc, cuIpcGetMemHandle.
    pub fn new(context: &Arc<Context>, size: usize) -> Result<Allocation> {
        let _current = context.push()?;
        let size = round_up(size.max(1), BLOCK)
            .ok_or(Error::Refused("the size of an allocation exceeds the address space"))?;
        let mut start = 0;
        // SAFETY: `start` takes one pointer.
        unsafe { context.driver().cuMemAlloc_v2(&mut start, size) }?;
        let mut allocation = Allocation { start, size, handle: [0; 64], context: context.clone() };
        allocation.handle = handle_of(context, start)?;
        Ok(allocation)
    }

    /// What importers need.
    #[must_use]
    pub fn export(&self) -> Handle {
        self.handle
    }

    /// Where the memory begins.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.start
    }

    /// The size in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }
}

impl Drop for Allocation {
    /// May wait for the GPU.
    fn drop(&mut self) {
        log_drop(self.context.push().and_then(|_current| {
            // SAFETY: the allocation is ours and not used after this.
            unsafe { self.context.driver().cuMemFree_v2(self.start) }
        }));
    }
}

/// The handle of the block that begins at `base`.
pub(crate) fn handle_of(context: &Context, base: DevicePtr) -> Result<Handle> {
    let mut handle = CUipcMemHandle { reserved: [0; 64] };
    // SAFETY: `handle` takes one handle; an address that cannot be shared is an error code.
    unsafe { context.driver().cuIpcGetMemHandle(&mut handle, base) }?;
    Ok(handle.reserved.map(|c| c.cast_unsigned()))
}

/// Memory of another process, mapped here, readable and writable. Foreign memory arrives this way, too.
///
/// Drop it once the GPU work that uses it is done; closing waits for the GPU.
#[derive(Debug)]
pub struct Import {
    start: DevicePtr,
    context: Arc<Context>,
}

impl Import {
    /// Maps the block behind `handle` for the context's device, with peer access if it lies on another.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_CONTEXT for a handle of this process; CUDA_ERROR_INVALID_HANDLE or CUDA_ERROR_MAP_FAILED for one
    /// whose memory is gone, and CUDA_ERROR_INVALID_HANDLE (measured on an H200, driver 580) or CUDA_ERROR_ALREADY_MAPPED
    /// when another context of this process opened handles of that device; CUDA_ERROR_PEER_ACCESS_UNSUPPORTED and CUDA_ERROR_TOO_MANY_PEERS between devices.
    ///
    /// # References
    /// CUDA driver API, cuIpcOpenMemHandle.
    pub fn new(context: &Arc<Context>, handle: &Handle) -> Result<Import> {
        let _current = context.push()?;
        let handle = CUipcMemHandle { reserved: handle.map(|byte| byte.cast_signed()) };
        let mut start = 0;
        // SAFETY: `start` takes one pointer; a handle that means nothing is an error code.
        unsafe { context.driver().cuIpcOpenMemHandle_v2(&mut start, handle, flag::IPC_LAZY_PEER_ACCESS) }?;
        Ok(Import { start, context: context.clone() })
    }

    /// Where the block begins in this process.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.start
    }
}

impl Drop for Import {
    fn drop(&mut self) {
        log_drop(self.context.push().and_then(|_current| {
            // SAFETY: the mapping is ours and not used after this.
            unsafe { self.context.driver().cuIpcCloseMemHandle(self.start) }
        }));
    }
}
