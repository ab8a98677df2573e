// SPDX-License-Identifier: MIT OR Apache-2.0

//! Timeline fences: 64-bit values in memory shared by two processes, written and waited for by CUDA
//! streams.
//!
//! Timeline values only increase. A fence is a timeline value and a target: it is signaled once the
//! value is at least the target (compared cyclically, as CUDA does). A default write first makes
//! earlier writes of its stream visible to the whole system.
//!
//! - If the signaler dies, the value stays below the target. The surviving process then stores the
//!   target from the CPU. The queue of a dying process runs on for some milliseconds and may
//!   overwrite the value with an *older* one: repeat the store until the process has exited and the
//!   waiting streams are idle.
//! - A value written by a peer is untrusted.
//! - Create and drop [`Page`]s outside the streaming thread: registration takes some hundred µs,
//!   and unregistration waits for the GPU work that uses the page.
//!
//! # Safety
//! This file passes addresses of registered values to the driver. Queued stream work is all that
//! can still use a page after its drop, and unregistration waits for that work; afterwards the GPU
//! no longer uses the address.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::abi::{self, CUstreamBatchMemOpParams, flag};
use crate::context::Context;
use crate::host::{Access, Registration};
use crate::stream::Stream;
use crate::{DevicePtr, Error, Result, order};

/// Operations in one batch stay below this (CUDA driver API, cuStreamBatchMemOp).
const BATCH: usize = 255;

/// A timeline page: values in shared memory that the GPU can access.
#[derive(Debug)]
pub struct Page {
    registration: Registration,
    words: NonNull<AtomicU64>,
    length: usize,
}

// SAFETY: the values are atomics, in memory that the registration's owner keeps mapped.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    /// Registers timeline values in shared memory, preferably whole pages. `memory` is held until
    /// it is unregistered. With [`Access::Read`], for memory that is mapped read-only, streams can
    /// wait for values but not write them.
    ///
    /// # Errors
    /// [`Error::Refused`] if `memory` is empty; CUDA_ERROR_NOT_SUPPORTED for [`Access::Read`]
    /// without [`crate::device::Attribute::READ_ONLY_HOST_REGISTER_SUPPORTED`];
    /// CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED.
    ///
    /// # References
    /// CUDA driver API, cuMemHostRegister.
    pub fn new<M>(context: &Arc<Context>, memory: Arc<M>, access: Access) -> Result<Page>
    where
        M: AsRef<[AtomicU64]> + Send + Sync + 'static,
    {
        let slice = (*memory).as_ref();
        let (words, length) = (NonNull::from(slice).cast::<AtomicU64>(), slice.len());
        if length == 0 {
            return Err(Error::Refused("cannot register an empty timeline page"));
        }
        // SAFETY: the values are borrowed from `memory` and stay valid as long as it is shared;
        // atomics allow the GPU to write them at any time.
        let registration =
            unsafe { Registration::new(context, words.cast(), size_of_val(slice), access, memory.clone()) }?;
        Ok(Page { registration, words, length })
    }

    /// Returns the value at `index`.
    #[must_use]
    pub fn word(&self, index: usize) -> Option<Word<'_>> {
        (index < self.length).then_some(Word { page: self, index })
    }

    /// Returns the number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Always false: pages are not empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }
}

/// One timeline value of a [`Page`].
#[derive(Debug, Clone, Copy)]
pub struct Word<'a> {
    page: &'a Page,
    index: usize,
}

impl Word<'_> {
    fn atomic(&self) -> &AtomicU64 {
        // SAFETY: the index was checked when the `Word` was created, and the page keeps the memory
        // mapped.
        unsafe { self.page.words.add(self.index).as_ref() }
    }

    fn address(&self) -> DevicePtr {
        self.page.registration.device_ptr() + (self.index * size_of::<u64>()) as DevicePtr
    }

    /// Returns the current value. Writes that the GPU or the peer made before storing it are
    /// visible to the caller.
    #[must_use]
    pub fn load(&self) -> u64 {
        let value = self.atomic().load(Ordering::Acquire);
        order::after_load(self.atomic());
        value
    }

    /// Stores the value from the CPU: to initialize it, or to release streams that wait for a peer
    /// that died.
    ///
    /// # Errors
    /// [`Error::Refused`] if the page was registered with [`Access::Read`].
    pub fn store(&self, value: u64) -> Result<()> {
        self.writable()?;
        order::before_store(self.atomic());
        self.atomic().store(value, Ordering::Release);
        Ok(())
    }

    fn writable(&self) -> Result<()> {
        match self.page.registration.access() {
            Access::ReadWrite => Ok(()),
            Access::Read => Err(Error::Refused("the page of the timeline value is registered read-only")),
        }
    }
}

impl Stream {
    /// Writes `value` once all earlier work of the stream is complete and visible to the whole
    /// system. Does not block.
    ///
    /// # Errors
    /// [`Error::Refused`] if the page was registered with [`Access::Read`]; otherwise any error
    /// that the driver returns.
    ///
    /// # References
    /// CUDA driver API, cuStreamWriteValue64 (the interface with `_v2`).
    pub fn write_word(&self, word: Word<'_>, value: u64) -> Result<()> {
        word.writable()?;
        let _current = self.context().push()?;
        // SAFETY: the address belongs to a registered value.
        unsafe {
            self.context().driver().cuStreamWriteValue64_v2(
                self.raw(),
                word.address(),
                value,
                flag::WRITE_VALUE_DEFAULT,
            )
        }
    }

    /// Like [`Stream::write_word`], for many values: one driver call per 255 values.
    ///
    /// # Errors
    /// As for [`Stream::write_word`]; some of the values may have been written already.
    ///
    /// # References
    /// CUDA driver API, cuStreamBatchMemOp (the interface with `_v2`).
    pub fn write_words(&self, writes: &[(Word<'_>, u64)]) -> Result<()> {
        writes.iter().try_for_each(|(word, _)| word.writable())?;
        let _current = self.context().push()?;
        let mut operations: Vec<CUstreamBatchMemOpParams> =
            writes.iter().map(|(word, value)| abi::write_word(word.address(), *value)).collect();
        operations.chunks_mut(BATCH).try_for_each(|batch| {
            let count = u32::try_from(batch.len()).unwrap_or(u32::MAX);
            // SAFETY: the addresses belong to registered values; the operations are read during the
            // call.
            unsafe { self.context().driver().cuStreamBatchMemOp_v2(self.raw(), count, batch.as_mut_ptr(), 0) }
        })
    }

    /// Makes later work of the stream wait until the timeline value has reached `value`. Does not
    /// block. If the value is never reached, the stream stays blocked until a CPU stores it.
    ///
    /// # Errors
    /// Any error that the driver returns.
    ///
    /// # References
    /// CUDA driver API, cuStreamWaitValue64 (the interface with `_v2`) with
    /// CU_STREAM_WAIT_VALUE_GEQ.
    pub fn wait_word(&self, word: Word<'_>, value: u64) -> Result<()> {
        let _current = self.context().push()?;
        // SAFETY: the address belongs to a registered value.
        unsafe {
            self.context().driver().cuStreamWaitValue64_v2(
                self.raw(),
                word.address(),
                value,
                flag::WAIT_VALUE_GEQ,
            )
        }
    }
}
