//! Physical memory apart from addresses: exported as a file descriptor, mapped where each side likes.
//!
//! The memory lives until every mapping and every descriptor of it, in all processes, is gone: a reader keeps its
//! frames when the exporter dies, and an exporter's memory is pinned by readers that do not unmap.
//!
//! **Descriptors.** The one that [`Allocation::export`] returns is the caller's to close, at any time after it was sent.
//! An import takes nothing over: "close the file descriptor once the memory was imported" is the importer's
//! (NVIDIA/cuda-samples, memMapIPCDrv; CUDA driver API, cuMemImportFromShareableHandle).
//!
//! Each allocation is whole: whoever holds its descriptor can map all of it, also writable. [`Access::Read`] guards
//! against mistakes, not against malice.
//!
//! # Safety
//! This file hands the driver out-parameters on its own stack, descriptors that it borrows for the length of the call,
//! and ranges that it reserved itself.
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

/// Memory of this process, mapped readable and writable, that can be exported.
#[derive(Debug)]
pub struct Allocation {
    // Unmapped before the memory is released, which the order of these two sees to.
    mapping: Mapping,
    memory: Memory,
}

impl Allocation {
    /// Allocates at least `size` bytes on the context's device, rounded up to the device's granularity (2 MiB on most).
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY; CUDA_ERROR_NOT_SUPPORTED and CUDA_ERROR_INVALID_VALUE where
    /// [`crate::memory::supports`] says no.
    ///
    /// # References
    /// CUDA driver API, cuMemGetAllocationGranularity, cuMemCreate.
    pub fn new(context: &Arc<Context>, size: usize) -> Result<Allocation> {
        let _current = context.push()?;
        let driver = context.driver();
        let properties = abi::exportable_memory(context.device().raw());
        let mut granularity = 0;
        // SAFETY: `granularity` takes one size; the properties are read during the call.
        unsafe {
            driver.cuMemGetAllocationGranularity(&mut granularity, &properties, flag::GRANULARITY_MINIMUM)
        }?;
        let size = round_up(size.max(1), granularity)
            .ok_or(Error::Refused("the size of an allocation exceeds the address space"))?;
        let mut handle = 0;
        // SAFETY: `handle` takes one handle; the properties are read during the call.
        unsafe { driver.cuMemCreate(&mut handle, size, &properties, 0) }?;
        let memory = Memory { handle, context: context.clone() };
        let mapping = Mapping::new(&memory, size, Access::ReadWrite)?;
        Ok(Allocation { mapping, memory })
    }

    /// A new descriptor of the memory, for one or many readers. It is the caller's to close, and counts as a user of
    /// the memory until then, wherever it was sent.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # References
    /// CUDA driver API, cuMemExportToShareableHandle.
    pub fn export(&self) -> Result<OwnedFd> {
        let _current = self.memory.context.push()?;
        let mut fd: c_int = -1;
        // SAFETY: for this type of handle the driver writes one int.
        unsafe {
            self.memory.context.driver().cuMemExportToShareableHandle(
                (&raw mut fd).cast(),
                self.memory.handle,
                flag::HANDLE_POSIX_FD,
                0,
            )
        }?;
        // SAFETY: the driver just opened this descriptor for us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Where the memory begins.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.mapping.start
    }

    /// The size in bytes, as importers must give it.
    #[must_use]
    pub fn size(&self) -> usize {
        self.mapping.size
    }
}

/// Memory of another process (or of this one), mapped here.
///
/// Drop it once the GPU work that uses it is done: an access under way when it is unmapped fails, and the context with
/// it. Unmapping may wait for the GPU.
#[derive(Debug)]
pub struct Import {
    mapping: Mapping,
}

impl Import {
    /// Maps `size` bytes, the whole of the allocation behind `fd`, for the context's device. The descriptor stays the
    /// caller's, and may be closed once this returned.
    ///
    /// # Errors
    /// CUDA_ERROR_UNKNOWN for a descriptor that is none of CUDA's, CUDA_ERROR_NOT_SUPPORTED for a size larger than the
    /// allocation's, CUDA_ERROR_INVALID_VALUE for one that is no multiple of the granularity (measured on an H200, driver
    /// 580); CUDA_ERROR_INVALID_DEVICE when the exporter's GPU is not visible here.
    ///
    /// # References
    /// CUDA driver API, cuMemImportFromShareableHandle, cuMemMap, cuMemSetAccess.
    pub fn new(context: &Arc<Context>, fd: BorrowedFd<'_>, size: usize, access: Access) -> Result<Import> {
        let _current = context.push()?;
        let mut handle = 0;
        // For this type of handle the driver takes the number of the descriptor in place of a pointer.
        let shareable = usize::try_from(fd.as_raw_fd()).unwrap_or(usize::MAX) as *mut c_void;
        // SAFETY: `handle` takes one handle; the descriptor is open during the call.
        unsafe {
            context.driver().cuMemImportFromShareableHandle(&mut handle, shareable, flag::HANDLE_POSIX_FD)
        }?;
        // Released on return: the mapping keeps the memory.
        let memory = Memory { handle, context: context.clone() };
        Ok(Import { mapping: Mapping::new(&memory, size, access)? })
    }

    /// Where the memory begins in this process.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.mapping.start
    }

    /// The size in bytes.
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
            // SAFETY: the reference is ours and not used after this.
            unsafe { self.context.driver().cuMemRelease(self.handle) }
        }));
    }
}

/// A range of addresses with memory behind it.
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
        // SAFETY: `start` takes one pointer; no address or alignment is asked for.
        unsafe { driver.cuMemAddressReserve(&mut start, size, 0, 0, 0) }?;
        let mut mapping = Mapping { start, size, mapped: false, context: context.clone() };
        // SAFETY: the range was just reserved and nothing is mapped there.
        unsafe { driver.cuMemMap(start, size, 0, memory.handle, 0) }?;
        mapping.mapped = true;
        let access = abi::access(context.device().raw(), access == Access::ReadWrite);
        // SAFETY: the whole range was just mapped; one description is passed.
        unsafe { driver.cuMemSetAccess(start, size, &access, 1) }?;
        Ok(mapping)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        log_drop(self.context.push().and_then(|_current| {
            let driver = self.context.driver();
            if self.mapped {
                // An address whose memory could not be unmapped must not be given out again.
                // SAFETY: the range is one whole mapping of ours; users of the pointer were told to be done.
                unsafe { driver.cuMemUnmap(self.start, self.size) }?;
            }
            // SAFETY: the range was reserved by us and nothing is mapped there any more.
            unsafe { driver.cuMemAddressFree(self.start, self.size) }
        }));
    }
}
