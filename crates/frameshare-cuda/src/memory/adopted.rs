// SPDX-License-Identifier: MIT OR Apache-2.0

//! Adopted memory: allocated by other code in this process, exported by legacy handle without a
//! copy.
//!
//! Addresses are reused and do not identify an allocation. Its buffer ID does, for the lifetime of
//! the process: use it as the key for cached state. Readers import with [`legacy::Import`]; the
//! owner must not free the memory before they have closed their imports.
//!
//! # Safety
//! This file queries the driver about addresses, with out-parameters on its own stack.
#![allow(unsafe_code)]

use std::ffi::c_uint;

use crate::abi::flag;
use crate::context::Context;
use crate::memory::legacy;
use crate::{DevicePtr, Error, Result};

/// The exported block that contains an adopted allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Block {
    /// Identifies the allocation within this process; never reused.
    pub buffer_id: u64,
    /// The handle from which importers open the block.
    pub handle: legacy::Handle,
    /// Start of the shared block in this process.
    pub base: DevicePtr,
    /// Size of the shared block in bytes.
    pub size: usize,
    /// Offset of the queried address from `base`, in bytes.
    pub offset: usize,
}

/// Returns the ID of the allocation that contains `pointer`: one cheap call.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE if CUDA does not know the address.
///
/// # References
/// CUDA driver API, cuPointerGetAttribute with CU_POINTER_ATTRIBUTE_BUFFER_ID.
pub fn buffer_id(context: &Context, pointer: DevicePtr) -> Result<u64> {
    let mut id = 0_u64;
    // SAFETY: this attribute and `id` are 64 bits wide.
    unsafe { attribute(context, &raw mut id, flag::POINTER_BUFFER_ID, pointer) }?;
    Ok(id)
}

/// Exports the allocation that contains `pointer`. The caller must keep it allocated during the
/// call, and until all readers have closed their imports.
///
/// # Errors
/// [`Error::Refused`] for memory that legacy handles cannot share (from pools, from virtual memory
/// management, or imported); CUDA_ERROR_INVALID_VALUE if CUDA does not know the address.
///
/// # References
/// CUDA driver API, cuPointerGetAttribute with CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
/// cuMemGetAddressRange, cuIpcGetMemHandle.
pub fn export(context: &Context, pointer: DevicePtr) -> Result<Block> {
    let _current = context.push()?;
    let buffer_id = buffer_id(context, pointer)?;
    // cuda.h calls the attribute a boolean without giving its width; eight zeroed bytes fit any.
    let mut capable = 0_u64;
    // SAFETY: the attribute is a boolean of at most 32 bits.
    unsafe { attribute(context, &raw mut capable, flag::POINTER_LEGACY_IPC_CAPABLE, pointer) }?;
    if capable == 0 {
        return Err(Error::Refused("memory from a pool, VMM or an import cannot be shared by legacy handle"));
    }
    let (mut base, mut size) = (0, 0);
    // SAFETY: `base` and `size` are out-parameters for one pointer and one size.
    unsafe { context.driver().cuMemGetAddressRange_v2(&mut base, &mut size, pointer) }?;
    let handle = legacy::handle_of(context, base)?;
    let offset = usize::try_from(pointer - base).unwrap_or(usize::MAX);
    Ok(Block { buffer_id, handle, base, size, offset })
}

/// # Safety
/// `value` must be at least as wide as the attribute.
unsafe fn attribute(context: &Context, value: *mut u64, attribute: c_uint, pointer: DevicePtr) -> Result<()> {
    let _current = context.push()?;
    // SAFETY: the caller guarantees that `value` is wide enough.
    unsafe { context.driver().cuPointerGetAttribute(value.cast(), attribute, pointer) }
}
