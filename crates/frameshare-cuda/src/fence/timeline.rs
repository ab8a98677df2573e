//! Words of 64 bits in memory shared by two processes, which streams write and wait for.
//!
//! A word grows: a fence is a word and a value, reached when the word is at least the value (compared cyclically, as
//! CUDA does). A default write makes earlier writes of its stream visible to the whole system first.
//!
//! - A signaller that dies leaves the word below the value. The survivor's CPU stores the value; a dying process's
//!   queue runs on for some milliseconds and may write an *older* value over it: store again until the process is gone
//!   and the streams that wait are idle.
//! - What a peer writes into a shared word is its claim, not a fact.
//! - [`Page`]s are made and dropped off the streaming thread: registering takes some hundred µs, and undoing it waits
//!   for the GPU work that uses the page.
//!
//! # Safety
//! This file passes addresses of registered words to the driver. A stream can outlast the page only by the work that was
//! queued, and undoing a registration waits for that; afterwards the address means nothing to the GPU.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::abi::{self, CUstreamBatchMemOpParams, flag};
use crate::context::Context;
use crate::host::{Access, Registration};
use crate::stream::Stream;
use crate::{DevicePtr, Error, Result};

/// Operations in one batch stay below this (CUDA driver API, cuStreamBatchMemOp).
const BATCH: usize = 255;

/// Shared words that the GPU can reach.
#[derive(Debug)]
pub struct Page {
    registration: Registration,
    words: NonNull<AtomicU64>,
    length: usize,
}

// SAFETY: the words are atomics, in memory that the registration's owner keeps mapped.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    /// Registers words in shared memory, best whole pages of it. `memory` is held until the registration is undone.
    /// With [`Access::Read`], for memory that is mapped read-only, streams can wait but not write.
    ///
    /// # Errors
    /// [`Error::Refused`] for no words; CUDA_ERROR_NOT_SUPPORTED for [`Access::Read`] without
    /// [`crate::device::Attribute::READ_ONLY_HOST_REGISTER_SUPPORTED`]; CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED.
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
            return Err(Error::Refused("a page of timeline words without a word"));
        }
        // SAFETY: the words stay valid as long as `memory` is shared, since they were borrowed from it; atomics allow
        // the GPU to write them at any time.
        let registration =
            unsafe { Registration::new(context, words.cast(), size_of_val(slice), access, memory.clone()) }?;
        Ok(Page { registration, words, length })
    }

    /// The word at `index`.
    #[must_use]
    pub fn word(&self, index: usize) -> Option<Word<'_>> {
        (index < self.length).then_some(Word { page: self, index })
    }

    /// How many words there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Never: a page has at least one word.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }
}

/// One word of a [`Page`].
#[derive(Debug, Clone, Copy)]
pub struct Word<'a> {
    page: &'a Page,
    index: usize,
}

impl Word<'_> {
    fn atomic(&self) -> &AtomicU64 {
        // SAFETY: the index was checked when the word was made, and the page holds the memory.
        unsafe { self.page.words.add(self.index).as_ref() }
    }

    fn address(&self) -> DevicePtr {
        self.page.registration.device_ptr() + (self.index * size_of::<u64>()) as DevicePtr
    }

    /// What the word says now. What the GPU or the peer did before writing it is visible after this.
    #[must_use]
    pub fn load(&self) -> u64 {
        self.atomic().load(Ordering::Acquire)
    }

    /// Stores from the CPU: to begin with, and to free streams that wait for a peer that is gone.
    ///
    /// # Errors
    /// [`Error::Refused`] for a page that was registered for reading.
    pub fn store(&self, value: u64) -> Result<()> {
        self.writable()?;
        self.atomic().store(value, Ordering::Release);
        Ok(())
    }

    fn writable(&self) -> Result<()> {
        match self.page.registration.access() {
            Access::ReadWrite => Ok(()),
            Access::Read => Err(Error::Refused("a timeline word of a page that is registered for reading")),
        }
    }
}

impl Stream {
    /// Writes `value` once the work before it is done, and visible to the whole system. Does not block.
    ///
    /// # Errors
    /// [`Error::Refused`] for a page that was registered for reading; otherwise what the driver says.
    ///
    /// # References
    /// CUDA driver API, cuStreamWriteValue64 (the interface with `_v2`).
    pub fn write_word(&self, word: Word<'_>, value: u64) -> Result<()> {
        word.writable()?;
        let _current = self.context().push()?;
        // SAFETY: the address is that of a registered word.
        unsafe {
            self.context().driver().cuStreamWriteValue64_v2(
                self.raw(),
                word.address(),
                value,
                flag::WRITE_VALUE_DEFAULT,
            )
        }
    }

    /// As [`Stream::write_word`], for many words: one call for each 255 of them.
    ///
    /// # Errors
    /// As [`Stream::write_word`]; some of the words may then be written.
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
            // SAFETY: the addresses are those of registered words; the operations are read during the call.
            unsafe { self.context().driver().cuStreamBatchMemOp_v2(self.raw(), count, batch.as_mut_ptr(), 0) }
        })
    }

    /// Work put on the stream from now on starts once the word has reached `value`. Does not block; a word that never
    /// does stops the stream until a CPU stores it.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # References
    /// CUDA driver API, cuStreamWaitValue64 (the interface with `_v2`) with CU_STREAM_WAIT_VALUE_GEQ.
    pub fn wait_word(&self, word: Word<'_>, value: u64) -> Result<()> {
        let _current = self.context().push()?;
        // SAFETY: the address is that of a registered word.
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
