//! Memory that someone else in this process allocated, exported by legacy handle, without a copy.
//!
//! Addresses are reused and say nothing about who is behind them. What names an allocation for as long as the process
//! lives is its buffer id: key by that whatever is remembered about foreign memory. Readers import with
//! [`legacy::Import`]; the owner frees only after they closed.
//!
//! # Safety
//! This file asks the driver about addresses, with out-parameters on its own stack.
#![allow(unsafe_code)]

use std::ffi::c_uint;

use crate::abi::flag;
use crate::context::Context;
use crate::memory::legacy;
use crate::{DevicePtr, Error, Result};

/// Someone else's allocation, and how readers get at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Foreign {
    /// Names the allocation within this process; never reused.
    pub buffer_id: u64,
    /// What importers need.
    pub handle: legacy::Handle,
    /// Where the shared block begins in this process.
    pub base: DevicePtr,
    /// The size of the shared block in bytes.
    pub size: usize,
    /// From `base` to the address that was asked about, in bytes.
    pub offset: usize,
}

/// The id of the allocation that `pointer` lies in: one cheap call.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for an address that is none of CUDA's.
///
/// # References
/// CUDA driver API, cuPointerGetAttribute with CU_POINTER_ATTRIBUTE_BUFFER_ID.
pub fn buffer_id(context: &Context, pointer: DevicePtr) -> Result<u64> {
    let mut id = 0_u64;
    // SAFETY: this attribute is 64 bits wide, as `id` is.
    unsafe { attribute(context, &raw mut id, flag::POINTER_BUFFER_ID, pointer) }?;
    Ok(id)
}

/// Exports the allocation that `pointer` lies in. The caller sees to it that it is not freed meanwhile, nor before all
/// readers closed it.
///
/// # Errors
/// [`Error::Refused`] for memory that legacy handles cannot share (that of pools, of virtual memory management, and
/// imported memory); CUDA_ERROR_INVALID_VALUE for an address that is none of CUDA's.
///
/// # References
/// CUDA driver API, cuPointerGetAttribute with CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, cuMemGetAddressRange,
/// cuIpcGetMemHandle.
pub fn export(context: &Context, pointer: DevicePtr) -> Result<Foreign> {
    let _current = context.push()?;
    let buffer_id = buffer_id(context, pointer)?;
    // The header calls this a boolean and does not say how wide; eight zeroed bytes take either.
    let mut capable = 0_u64;
    // SAFETY: the attribute is a boolean of at most 32 bits.
    unsafe { attribute(context, &raw mut capable, flag::POINTER_LEGACY_IPC_CAPABLE, pointer) }?;
    if capable == 0 {
        return Err(Error::Refused("this memory cannot be shared by a legacy handle"));
    }
    let (mut base, mut size) = (0, 0);
    // SAFETY: `base` and `size` take one pointer and one size.
    unsafe { context.driver().cuMemGetAddressRange_v2(&mut base, &mut size, pointer) }?;
    let handle = legacy::handle_of(context, base)?;
    let offset = usize::try_from(pointer - base).unwrap_or(usize::MAX);
    Ok(Foreign { buffer_id, handle, base, size, offset })
}

/// # Safety
/// `value` must be as wide as the attribute, or wider.
unsafe fn attribute(context: &Context, value: *mut u64, attribute: c_uint, pointer: DevicePtr) -> Result<()> {
    let _current = context.push()?;
    // SAFETY: the caller chose `value` wide enough.
    unsafe { context.driver().cuPointerGetAttribute(value.cast(), attribute, pointer) }
}
