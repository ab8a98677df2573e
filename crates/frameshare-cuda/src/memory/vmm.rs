// SPDX-License-Identifier: MIT OR Apache-2.0

//! CUDA virtual memory management: physical memory exported as a file descriptor and mapped at any
//! address on each side.
//!
//! The memory exists until all its mappings and descriptors, in all processes, are released: a
//! reader keeps its frames if the exporter dies, and readers that do not unmap pin an exporter's
//! memory.
//!
//! **Descriptors.** The caller owns the descriptor returned by [`Allocation::export`] and may close
//! it at any time after sending it. Importing does not take ownership of a descriptor: the importer
//! closes its own after the import (NVIDIA/cuda-samples, memMapIPCDrv; CUDA driver API,
//! cuMemImportFromShareableHandle).
//!
//! An allocation is shared as a whole: any process that has its descriptor can map all of it, also
//! writable. [`Access::Read`] guards against mistakes, not against malice.
//!
//! # Safety
//! This file calls the driver with out-parameters on its own stack, with descriptors borrowed for
//! the duration of the call, and with ranges that it reserved itself.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use crate::abi::{self, CUmemGenericAllocationHandle, flag};
use crate::context::Context;
use crate::error::log_drop;
use crate::host::Access;
use crate::memory::round_up;
use crate::{DevicePtr, Error, Result};

/// An exportable allocation of this process, mapped readable and writable.
#[derive(Debug)]
pub struct Allocation {
    // Drop order: unmap the range, then release the memory.
    mapping: Mapping,
    memory: Memory,
}

impl Allocation {
    /// Allocates at least `size` bytes on the context's device, rounded up to the device's
    /// granularity (2 MiB on most).
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY; CUDA_ERROR_NOT_SUPPORTED and CUDA_ERROR_INVALID_VALUE if
    /// [`crate::memory::supports`] fails.
    ///
    /// # References
    /// CUDA driver API, cuMemGetAllocationGranularity, cuMemCreate.
    pub fn new(context: &Arc<Context>, size: usize) -> Result<Allocation> {
        let _current = context.push()?;
        let driver = context.driver();
        let properties = abi::exportable_memory(context.device().raw());
        let mut granularity = 0;
        // SAFETY: `granularity` is an out-parameter for one size; the properties are read during
        // the call.
        unsafe {
            driver.cuMemGetAllocationGranularity(&mut granularity, &properties, flag::GRANULARITY_MINIMUM)
        }?;
        let size = round_up(size.max(1), granularity)
            .ok_or(Error::Refused("allocation size exceeds the address space"))?;
        let mut handle = 0;
        // SAFETY: `handle` is an out-parameter for one handle; the properties are read during the
        // call.
        unsafe { driver.cuMemCreate(&mut handle, size, &properties, 0) }?;
        let memory = Memory { handle, context: context.clone() };
        let mapping = Mapping::new(&memory, size, Access::ReadWrite)?;
        Ok(Allocation { mapping, memory })
    }

    /// Returns a new descriptor of the memory, for any number of readers. The caller owns it. Until
    /// it is closed, it keeps the memory allocated, also in a process that it was sent to.
    ///
    /// # Errors
    /// Any error that the driver returns.
    ///
    /// # References
    /// CUDA driver API, cuMemExportToShareableHandle.
    pub fn export(&self) -> Result<OwnedFd> {
        let _current = self.memory.context.push()?;
        let mut fd: c_int = -1;
        // SAFETY: for this handle type the driver writes one int.
        unsafe {
            self.memory.context.driver().cuMemExportToShareableHandle(
                (&raw mut fd).cast(),
                self.memory.handle,
                flag::HANDLE_POSIX_FD,
                0,
            )
        }?;
        // SAFETY: the driver has just opened this descriptor for the caller.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Returns the start of the memory.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.mapping.start
    }

    /// Returns the size in bytes, which importers must pass.
    #[must_use]
    pub fn size(&self) -> usize {
        self.mapping.size
    }
}

/// Memory imported from another process (or from this one) and mapped.
///
/// Drop it once the GPU work that uses it is complete: an access in progress when the memory is
/// unmapped fails and invalidates the context. Unmapping may wait for the GPU.
#[derive(Debug)]
pub struct Import {
    mapping: Mapping,
}

impl Import {
    /// Maps `size` bytes, the whole allocation behind `fd`, for the context's device. The caller
    /// keeps the descriptor and may close it afterwards.
    ///
    /// # Errors
    /// CUDA_ERROR_UNKNOWN if the descriptor is not CUDA's, CUDA_ERROR_NOT_SUPPORTED if `size` is
    /// larger than the allocation, CUDA_ERROR_INVALID_VALUE if it is not a multiple of the
    /// granularity (measured on an H200, driver 580); CUDA_ERROR_INVALID_DEVICE if the exporter's
    /// GPU is not visible to this process.
    ///
    /// # References
    /// CUDA driver API, cuMemImportFromShareableHandle, cuMemMap, cuMemSetAccess.
    pub fn new(context: &Arc<Context>, fd: BorrowedFd<'_>, size: usize, access: Access) -> Result<Import> {
        let _current = context.push()?;
        let mut handle = 0;
        // For this handle type the driver takes the descriptor number in place of a pointer.
        let shareable = usize::try_from(fd.as_raw_fd()).unwrap_or(usize::MAX) as *mut c_void;
        // SAFETY: `handle` is an out-parameter for one handle; the descriptor is open during the
        // call.
        unsafe {
            context.driver().cuMemImportFromShareableHandle(&mut handle, shareable, flag::HANDLE_POSIX_FD)
        }?;
        // Released on return: the mapping keeps the memory.
        let memory = Memory { handle, context: context.clone() };
        Ok(Import { mapping: Mapping::new(&memory, size, access)? })
    }

    /// Returns the start of the memory in this process.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.mapping.start
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.mapping.size
    }
}

/// One reference to physical memory.
#[derive(Debug)]
struct Memory {
    handle: CUmemGenericAllocationHandle,
    context: Arc<Context>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        log_drop(self.context.push().and_then(|_current| {
            // SAFETY: `self` owns the reference, which is not used after this.
            unsafe { self.context.driver().cuMemRelease(self.handle) }
        }));
    }
}

/// A reserved address range with memory mapped to it.
#[derive(Debug)]
struct Mapping {
    start: DevicePtr,
    size: usize,
    mapped: bool,
    context: Arc<Context>,
}

impl Mapping {
    fn new(memory: &Memory, size: usize, access: Access) -> Result<Mapping> {
        let context = &memory.context;
        let _current = context.push()?;
        let driver = context.driver();
        let mut start = 0;
        // SAFETY: `start` is an out-parameter for one pointer; no address or alignment is
        // requested.
        unsafe { driver.cuMemAddressReserve(&mut start, size, 0, 0, 0) }?;
        let mut mapping = Mapping { start, size, mapped: false, context: context.clone() };
        // SAFETY: the range has just been reserved, and nothing is mapped there.
        unsafe { driver.cuMemMap(start, size, 0, memory.handle, 0) }?;
        mapping.mapped = true;
        let access = abi::access(context.device().raw(), access == Access::ReadWrite);
        // SAFETY: the whole range has just been mapped; one access descriptor is passed.
        unsafe { driver.cuMemSetAccess(start, size, &access, 1) }?;
        Ok(mapping)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        log_drop(self.context.push().and_then(|_current| {
            let driver = self.context.driver();
            if self.mapped {
                // If the memory cannot be unmapped, `?` keeps the range reserved: its addresses
                // must not be reused.
                // SAFETY: the range is one whole mapping owned by `self`; its users must be done
                // before the drop.
                unsafe { driver.cuMemUnmap(self.start, self.size) }?;
            }
            // SAFETY: the range was reserved by `new`, and nothing is mapped there any more.
            unsafe { driver.cuMemAddressFree(self.start, self.size) }
        }));
    }
}
