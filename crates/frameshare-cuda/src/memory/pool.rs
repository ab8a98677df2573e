//! Allocations from a stream-ordered pool: one file descriptor for the pool, 64 bytes for each allocation.
//!
//! **Order of freeing**, which CUDA leaves to us: the reader calls [`Import::free`] on a stream and signals a fence
//! behind it; the exporter sees that fence signalled; then it calls [`Allocation::free`].
//!
//! **One import an allocation.** Importing an allocation twice into a process gives two addresses of which the first to
//! be freed unmaps both. A process-wide table refuses the second import until the first was freed *and* its stream got
//! there. The same calls corrupt the driver's heap when they run at once, so all of them take one process-wide lock.
//!
//! **Descriptors.** A pool's own stays with it; send a duplicate. An import takes nothing over: the importer closes its
//! descriptor once the pool was imported (NVIDIA/cuda-samples, streamOrderedAllocationIPC; CUDA driver API,
//! cuMemPoolImportFromShareableHandle).
//!
//! Memory that a pool has taken stays its own until it is destroyed: a new layout takes a new pool. An imported pool
//! cannot be exported again, and its memory cannot be mapped read-only.
//!
//! # Safety
//! This file hands the driver out-parameters on its own stack, and handles and addresses that the driver gave.
#![allow(unsafe_code)]

use std::collections::HashSet;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use crate::abi::{self, CUmemPoolPtrExportData, flag};
use crate::context::Context;
use crate::driver::Handle;
use crate::error::log_drop;
use crate::stream::Stream;
use crate::{DevicePtr, Error, Result};

/// What an importer of the pool needs to import one allocation (CUmemPoolPtrExportData).
pub type Token = [u8; 64];

/// Held around every call that makes or ends something shared by pools.
static POOLS: Mutex<()> = Mutex::new(());

/// The tokens of what this process has imported. Apart from [`POOLS`] because a host function, on a thread that the
/// driver may be waiting for, takes tokens out.
static IMPORTED: LazyLock<Mutex<HashSet<Token>>> = LazyLock::new(Mutex::default);

fn serialise() -> MutexGuard<'static, ()> {
    POOLS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn imported() -> MutexGuard<'static, HashSet<Token>> {
    IMPORTED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A pool of this process that can be exported.
#[derive(Debug)]
pub struct Pool {
    raw: RawPool,
    fd: OwnedFd,
}

impl Pool {
    /// A pool on the context's device. Its descriptor is made with it: exporting allocations of a pool that was not
    /// exported before fails.
    ///
    /// # Errors
    /// CUDA_ERROR_NOT_SUPPORTED and CUDA_ERROR_INVALID_VALUE where [`crate::memory::supports`] says no.
    ///
    /// # References
    /// CUDA driver API, cuMemPoolCreate, cuMemPoolExportToShareableHandle.
    pub fn new(context: &Arc<Context>) -> Result<Arc<Pool>> {
        let _current = context.push()?;
        let driver = context.driver();
        let properties = abi::exportable_pool(context.device().raw());
        let (mut raw, mut fd): (_, c_int) = (std::ptr::null_mut(), -1);
        let lock = serialise();
        // SAFETY: `raw` takes one handle; the properties are read during the call.
        unsafe { driver.cuMemPoolCreate(&mut raw, &properties) }?;
        // SAFETY: for this type of handle the driver writes one int.
        let exported = unsafe {
            driver.cuMemPoolExportToShareableHandle((&raw mut fd).cast(), raw, flag::HANDLE_POSIX_FD, 0)
        };
        drop(lock);
        let raw = RawPool { raw: Handle(raw), context: context.clone() };
        exported?;
        // SAFETY: the driver just opened this descriptor for us.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Arc::new(Pool { raw, fd }))
    }

    /// Allocates `size` bytes in the order of `stream`: other streams wait for it before they use the memory.
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
        // SAFETY: `start` takes one pointer; pool and stream are alive.
        unsafe { context.driver().cuMemAllocFromPoolAsync(&mut start, size, self.raw.raw.0, stream.raw()) }?;
        Ok(Allocation { start, size, freed: false, pool: self.clone() })
    }
}

impl AsFd for Pool {
    /// The descriptor that importers need. It stays the pool's.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Memory from a pool of this process.
///
/// Dropping it without [`Allocation::free`] frees it too, and waits for the GPU.
#[derive(Debug)]
pub struct Allocation {
    start: DevicePtr,
    size: usize,
    freed: bool,
    pool: Arc<Pool>,
}

impl Allocation {
    /// What importers need, beside the pool.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # References
    /// CUDA driver API, cuMemPoolExportPointer.
    pub fn export(&self) -> Result<Token> {
        let context = &self.pool.raw.context;
        let _current = context.push()?;
        let mut token = CUmemPoolPtrExportData { reserved: [0; 64] };
        let _lock = serialise();
        // SAFETY: `token` takes one token; the allocation is alive.
        unsafe { context.driver().cuMemPoolExportPointer(&mut token, self.start) }?;
        Ok(token.reserved)
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

    /// Frees the memory in the order of `stream`. Only after every import was freed and the fences behind those frees
    /// were seen signalled.
    ///
    /// # Errors
    /// What the driver says; the memory is then freed as by dropping it.
    ///
    /// # References
    /// CUDA driver API, cuMemFreeAsync.
    pub fn free(mut self, stream: &Stream) -> Result<()> {
        let context = &self.pool.raw.context;
        let _current = context.push()?;
        let lock = serialise();
        // SAFETY: the allocation is ours and not used after this.
        let freed = unsafe { context.driver().cuMemFreeAsync(self.start, stream.raw()) };
        // Dropping `self` takes the lock again if there is something left to free.
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
                // SAFETY: the allocation is ours and not used after this.
                unsafe { context.driver().cuMemFree_v2(self.start) }
            }));
        }
    }
}

/// A pool of another process.
#[derive(Debug)]
pub struct ImportedPool {
    raw: RawPool,
}

impl ImportedPool {
    /// Imports the pool behind `fd` and lets the context's device read and write its memory. The descriptor stays the
    /// caller's, and may be closed once this returned.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for a descriptor that is none of a pool.
    ///
    /// # References
    /// CUDA driver API, cuMemPoolImportFromShareableHandle, cuMemPoolSetAccess.
    pub fn new(context: &Arc<Context>, fd: BorrowedFd<'_>) -> Result<Arc<ImportedPool>> {
        let _current = context.push()?;
        let driver = context.driver();
        // For this type of handle the driver takes the number of the descriptor in place of a pointer.
        let shareable = usize::try_from(fd.as_raw_fd()).unwrap_or(usize::MAX) as *mut c_void;
        let mut raw = std::ptr::null_mut();
        let lock = serialise();
        // SAFETY: `raw` takes one handle; the descriptor is open during the call.
        unsafe { driver.cuMemPoolImportFromShareableHandle(&mut raw, shareable, flag::HANDLE_POSIX_FD, 0) }?;
        let access = abi::access(context.device().raw(), true);
        // SAFETY: the pool was just imported; one description is passed.
        let allowed = unsafe { driver.cuMemPoolSetAccess(raw, &access, 1) };
        drop(lock);
        let raw = RawPool { raw: Handle(raw), context: context.clone() };
        allowed?;
        Ok(Arc::new(ImportedPool { raw }))
    }

    /// Imports one allocation of the pool. It may be used by work that waits for the exporter's allocation of it.
    ///
    /// # Errors
    /// [`Error::Refused`] while this process has it imported already, or is still freeing it.
    ///
    /// # References
    /// CUDA driver API, cuMemPoolImportPointer.
    pub fn import(self: &Arc<ImportedPool>, token: &Token) -> Result<Import> {
        let context = &self.raw.context;
        let _current = context.push()?;
        if !imported().insert(*token) {
            return Err(Error::Refused("this allocation of a pool is imported in this process already"));
        }
        let mut data = CUmemPoolPtrExportData { reserved: *token };
        let mut start = 0;
        let lock = serialise();
        // SAFETY: `start` takes one pointer; a token that means nothing is an error code.
        let done = unsafe { context.driver().cuMemPoolImportPointer(&mut start, self.raw.raw.0, &mut data) };
        drop(lock);
        if let Err(error) = done {
            imported().remove(token);
            return Err(error);
        }
        Ok(Import { start, token: *token, freed: false, pool: self.clone() })
    }
}

/// An allocation of another process's pool, mapped here, readable and writable.
///
/// Dropping it without [`Import::free`] frees it too, and waits for the GPU.
#[derive(Debug)]
pub struct Import {
    start: DevicePtr,
    token: Token,
    freed: bool,
    pool: Arc<ImportedPool>,
}

impl Import {
    /// Where the memory begins in this process.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.start
    }

    /// Unmaps the memory in the order of `stream`. A fence signalled on `stream` after this tells the exporter that it
    /// may free.
    ///
    /// # Errors
    /// What the driver says; the memory is then unmapped as by dropping it.
    ///
    /// # References
    /// CUDA driver API, cuMemFreeAsync.
    pub fn free(mut self, stream: &Stream) -> Result<()> {
        let context = &self.pool.raw.context;
        let _current = context.push()?;
        let lock = serialise();
        // SAFETY: the mapping is ours and not used after this.
        let freed = unsafe { context.driver().cuMemFreeAsync(self.start, stream.raw()) };
        // Dropping `self` takes the lock again if there is something left to unmap.
        drop(lock);
        self.freed = freed.is_ok();
        freed?;
        // Until the stream gets here, a new import of the same allocation would be unmapped with this one.
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
            // SAFETY: the mapping is ours and not used after this.
            unsafe { context.driver().cuMemFree_v2(self.start) }
        }));
        imported().remove(&self.token);
    }
}

/// A pool's handle, destroyed when dropped; the driver keeps what is still in use.
#[derive(Debug)]
struct RawPool {
    raw: Handle<cudarc::driver::sys::CUmemPoolHandle_st>,
    context: Arc<Context>,
}

impl Drop for RawPool {
    fn drop(&mut self) {
        log_drop(self.context.push().and_then(|_current| {
            let _lock = serialise();
            // SAFETY: the handle is ours and not used after this.
            unsafe { self.context.driver().cuMemPoolDestroy(self.raw.0) }
        }));
    }
}
