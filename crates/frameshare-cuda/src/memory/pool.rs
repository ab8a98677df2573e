// SPDX-License-Identifier: MIT OR Apache-2.0

//! Stream-ordered pool allocations: one file descriptor per pool, 64 bytes per allocation.
//!
//! **Freeing order**, which CUDA does not enforce: the reader calls [`Import::free`] on a stream
//! and then signals a fence on it; once the exporter has seen the fence signaled, it calls
//! [`Allocation::free`].
//!
//! **One import per allocation.** If a process imports an allocation twice, it gets two addresses,
//! and freeing either unmaps both. A table therefore rejects a second import until the first has
//! been freed *and* its stream has executed the free. Concurrent pool calls corrupt the driver's
//! heap, so all of them take one lock. Table and lock are those of one copy of this crate: the
//! engine's exporters give the memory of a pool to one copy of a process.
//!
//! **Descriptors.** A pool keeps its descriptor; send a duplicate. Importing does not take
//! ownership of a descriptor: the importer closes its own after importing the pool
//! (NVIDIA/cuda-samples, streamOrderedAllocationIPC; CUDA driver API,
//! cuMemPoolImportFromShareableHandle).
//!
//! A pool keeps its memory until it is destroyed: use a new pool for a new layout. An imported pool
//! cannot be exported again, and its memory cannot be mapped read-only.
//!
//! # Safety
//! This file calls the driver with out-parameters on its own stack, and with handles and addresses
//! returned by the driver.
#![allow(unsafe_code)]

use frameshare_process::PerProcess;
use std::collections::HashSet;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::abi::{self, CUmemPoolPtrExportData, flag};
use crate::context::Context;
use crate::driver::Handle;
use crate::error::log_drop;
use crate::stream::Stream;
use crate::{DevicePtr, Error, Result};

/// The token from which an importer of the pool imports one allocation (CUmemPoolPtrExportData).
pub type Token = [u8; 64];

/// Held during every call that creates or destroys an object of a shared pool.
static POOLS: PerProcess<Mutex<()>> = PerProcess::new(Mutex::default);

/// Tokens of the allocations that this copy of the crate has imported. Separate from [`POOLS`]: a
/// host function removes tokens, on a thread that a driver call under `POOLS` may be waiting for.
static IMPORTED: PerProcess<Mutex<HashSet<Token>>> = PerProcess::new(Mutex::default);

fn serialise() -> MutexGuard<'static, ()> {
    POOLS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn imported() -> MutexGuard<'static, HashSet<Token>> {
    IMPORTED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An exportable pool of this process.
#[derive(Debug)]
pub struct Pool {
    raw: RawPool,
    fd: OwnedFd,
}

impl Pool {
    /// Creates a pool on the context's device, and exports its descriptor at once: exporting
    /// allocations of a pool that has not been exported fails.
    ///
    /// # Errors
    /// CUDA_ERROR_NOT_SUPPORTED and CUDA_ERROR_INVALID_VALUE if [`crate::memory::supports`] fails.
    ///
    /// # References
    /// CUDA driver API, cuMemPoolCreate, cuMemPoolExportToShareableHandle.
    pub fn new(context: &Arc<Context>) -> Result<Arc<Pool>> {
        let _current = context.push()?;
        let driver = context.driver();
        let properties = abi::exportable_pool(context.device().raw());
        let (mut raw, mut fd): (_, c_int) = (std::ptr::null_mut(), -1);
        let lock = serialise();
        // SAFETY: `raw` is an out-parameter for one handle; the properties are read during the
        // call.
        unsafe { driver.cuMemPoolCreate(&mut raw, &properties) }?;
        // SAFETY: for this handle type the driver writes one int.
        let exported = unsafe {
            driver.cuMemPoolExportToShareableHandle((&raw mut fd).cast(), raw, flag::HANDLE_POSIX_FD, 0)
        };
        drop(lock);
        let raw = RawPool { raw: Handle(raw), context: context.clone() };
        exported?;
        // SAFETY: the driver has just opened this descriptor for the caller.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Arc::new(Pool { raw, fd }))
    }

    /// Allocates `size` bytes in stream order: other streams must wait for the allocation before
    /// they use the memory.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY.
    ///
    /// # References
    /// CUDA driver API, cuMemAllocFromPoolAsync.
    pub fn allocate(self: &Arc<Pool>, size: usize, stream: &Stream) -> Result<Allocation> {
        let context = &self.raw.context;
        let _current = context.push()?;
        let mut start = 0;
        let lock = serialise();
        // SAFETY: `start` is an out-parameter for one pointer; pool and stream are alive.
        unsafe { context.driver().cuMemAllocFromPoolAsync(&mut start, size, self.raw.raw.0, stream.raw()) }?;
        drop(lock);
        Ok(Allocation { start, size, freed: false, pool: self.clone() })
    }
}

impl AsFd for Pool {
    /// Returns the descriptor from which importers import the pool. The pool keeps ownership.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// An allocation from a pool of this process.
///
/// Dropping it without [`Allocation::free`] also frees it, and waits for the GPU.
#[derive(Debug)]
pub struct Allocation {
    start: DevicePtr,
    size: usize,
    freed: bool,
    pool: Arc<Pool>,
}

impl Allocation {
    /// Returns the token from which importers of the pool import this allocation.
    ///
    /// # Errors
    /// Any error that the driver returns.
    ///
    /// # References
    /// CUDA driver API, cuMemPoolExportPointer.
    pub fn export(&self) -> Result<Token> {
        let context = &self.pool.raw.context;
        let _current = context.push()?;
        let mut token = CUmemPoolPtrExportData { reserved: [0; 64] };
        let _lock = serialise();
        // SAFETY: `token` is an out-parameter for one token; the allocation is alive.
        unsafe { context.driver().cuMemPoolExportPointer(&mut token, self.start) }?;
        Ok(token.reserved)
    }

    /// Returns the start of the memory.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.start
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Frees the memory in the order of `stream`. Call only after every import was freed and the
    /// fences behind those frees were seen signaled.
    ///
    /// # Errors
    /// Any error that the driver returns; the memory is then freed as on drop.
    ///
    /// # References
    /// CUDA driver API, cuMemFreeAsync.
    pub fn free(mut self, stream: &Stream) -> Result<()> {
        let context = &self.pool.raw.context;
        let _current = context.push()?;
        let lock = serialise();
        // SAFETY: `self` owns the allocation, which is not used after this.
        let freed = unsafe { context.driver().cuMemFreeAsync(self.start, stream.raw()) };
        // If the call failed, dropping `self` frees the memory and takes the lock again.
        drop(lock);
        self.freed = freed.is_ok();
        freed
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if !self.freed {
            let context = &self.pool.raw.context;
            log_drop(context.push().and_then(|_current| {
                let _lock = serialise();
                // SAFETY: `self` owns the allocation, which is not used after this.
                unsafe { context.driver().cuMemFree_v2(self.start) }
            }));
        }
    }
}

/// A pool imported from another process.
#[derive(Debug)]
pub struct ImportedPool {
    raw: RawPool,
}

impl ImportedPool {
    /// Imports the pool behind `fd` and gives the context's device read and write access. The
    /// caller keeps the descriptor and may close it afterwards.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if the descriptor is not of a pool.
    ///
    /// # References
    /// CUDA driver API, cuMemPoolImportFromShareableHandle, cuMemPoolSetAccess.
    pub fn new(context: &Arc<Context>, fd: BorrowedFd<'_>) -> Result<Arc<ImportedPool>> {
        let _current = context.push()?;
        let driver = context.driver();
        // For this handle type the driver takes the descriptor number in place of a pointer.
        let shareable = usize::try_from(fd.as_raw_fd()).unwrap_or(usize::MAX) as *mut c_void;
        let mut raw = std::ptr::null_mut();
        let lock = serialise();
        // SAFETY: `raw` is an out-parameter for one handle; the descriptor is open during the call.
        unsafe { driver.cuMemPoolImportFromShareableHandle(&mut raw, shareable, flag::HANDLE_POSIX_FD, 0) }?;
        let access = abi::access(context.device().raw(), true);
        // SAFETY: the pool has just been imported; one access descriptor is passed.
        let allowed = unsafe { driver.cuMemPoolSetAccess(raw, &access, 1) };
        drop(lock);
        let raw = RawPool { raw: Handle(raw), context: context.clone() };
        allowed?;
        Ok(Arc::new(ImportedPool { raw }))
    }

    /// Imports one allocation of the pool. Only work that waits for the exporter's allocation may
    /// use it.
    ///
    /// # Errors
    /// [`Error::Refused`] while this process already has it imported, or is still freeing it.
    ///
    /// # References
    /// CUDA driver API, cuMemPoolImportPointer.
    pub fn import(self: &Arc<ImportedPool>, token: &Token) -> Result<Import> {
        let context = &self.raw.context;
        let _current = context.push()?;
        if !imported().insert(*token) {
            return Err(Error::Refused("pool allocation is already imported in this process"));
        }
        let mut data = CUmemPoolPtrExportData { reserved: *token };
        let mut start = 0;
        let lock = serialise();
        // SAFETY: `start` is an out-parameter for one pointer; an invalid token yields an error
        // code.
        let done = unsafe { context.driver().cuMemPoolImportPointer(&mut start, self.raw.raw.0, &mut data) };
        drop(lock);
        if let Err(error) = done {
            imported().remove(token);
            return Err(error);
        }
        Ok(Import { start, token: *token, freed: false, pool: self.clone() })
    }
}

/// An imported allocation of another process's pool, mapped readable and writable.
///
/// Dropping it without [`Import::free`] also unmaps it, and waits for the GPU.
#[derive(Debug)]
pub struct Import {
    start: DevicePtr,
    token: Token,
    freed: bool,
    pool: Arc<ImportedPool>,
}

impl Import {
    /// Returns the start of the memory in this process.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.start
    }

    /// Unmaps the memory in the order of `stream`. A fence signaled on `stream` afterwards tells
    /// the exporter that it may free the allocation.
    ///
    /// # Errors
    /// Any error that the driver returns; the memory is then unmapped as on drop.
    ///
    /// # References
    /// CUDA driver API, cuMemFreeAsync.
    pub fn free(mut self, stream: &Stream) -> Result<()> {
        let context = &self.pool.raw.context;
        let _current = context.push()?;
        let lock = serialise();
        // SAFETY: `self` owns the mapping, which is not used after this.
        let freed = unsafe { context.driver().cuMemFreeAsync(self.start, stream.raw()) };
        // If the call failed, dropping `self` unmaps the memory and takes the lock again.
        drop(lock);
        self.freed = freed.is_ok();
        freed?;
        // Until the stream has executed the free, a new import of this allocation would be unmapped
        // by it.
        let token = self.token;
        stream.call(move || {
            imported().remove(&token);
        })
    }
}

impl Drop for Import {
    fn drop(&mut self) {
        if self.freed {
            return;
        }
        let context = &self.pool.raw.context;
        log_drop(context.push().and_then(|_current| {
            let _lock = serialise();
            // SAFETY: `self` owns the mapping, which is not used after this.
            unsafe { context.driver().cuMemFree_v2(self.start) }
        }));
        imported().remove(&self.token);
    }
}

/// A pool handle, destroyed on drop; the driver keeps memory that is still in use.
#[derive(Debug)]
struct RawPool {
    raw: Handle<cudarc::driver::sys::CUmemPoolHandle_st>,
    context: Arc<Context>,
}

impl Drop for RawPool {
    fn drop(&mut self) {
        log_drop(self.context.push().and_then(|_current| {
            let _lock = serialise();
            // SAFETY: `self` owns the handle, which is not used after this.
            unsafe { self.context.driver().cuMemPoolDestroy(self.raw.0) }
        }));
    }
}
