//! Frames, as a reader holds them.
//!
//! # Safety
//!
//! A [`Frame`] keeps its import mapped and its lease open. The one unsafe thing is to look at the bytes as a plain
//! slice, which only the caller can justify.
#![allow(unsafe_code)]

use super::{imports::Imported, session::Session};
use crate::{fence::FenceError, memory::Address};
use frameshare_cuda::stream::Stream;
use frameshare_protocol::Descriptor;
use std::{
    any::Any,
    ptr::NonNull,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
};

/// A lease; ends when it is dropped.
#[derive(Debug)]
pub(super) struct Lease {
    session: Arc<Session>,
    entry: usize,
    sequence: u64,
    /// The frame is in GPU memory.
    is_fenced: bool,
    /// Streams of other contexts that the app reads the frame on.
    used: Mutex<Vec<Stream>>,
    /// It has been ended already.
    ended: bool,
}

impl Lease {
    pub fn new(session: Arc<Session>, entry: usize, sequence: u64, is_fenced: bool) -> Self {
        session.held.fetch_add(1, Ordering::Relaxed);
        Self { session, entry, sequence, is_fenced, used: Mutex::default(), ended: false }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.ended {
            let used = std::mem::take(self.used.get_mut().unwrap_or_else(PoisonError::into_inner));
            self.session.release(self.entry, self.sequence, self.is_fenced, used);
        }
    }
}

/// A frame that may be read until it is dropped. Then its slot goes back to the exporter.
#[derive(Debug)]
pub struct Frame {
    descriptor: Descriptor,
    lost_before: u64,
    metadata: Vec<u8>,
    start: Address,
    // Fields are dropped in this order: the lease ends before the memory can be unmapped.
    lease: Lease,
    import: Arc<Imported>,
}

// SAFETY: the address is of memory that the import keeps mapped in this process, whichever thread uses it.
unsafe impl Send for Frame {}
// SAFETY: as above; nothing changes through a shared reference.
unsafe impl Sync for Frame {}

impl Frame {
    pub(super) fn new(
        descriptor: Descriptor,
        lost_before: u64,
        metadata: Vec<u8>,
        import: Arc<Imported>,
        lease: Lease,
    ) -> Self {
        let start = match import.address() {
            // SAFETY: `check_frame` has found offset + size inside the slot, all of which is mapped.
            Address::Host(start) => Address::Host(unsafe { start.add(descriptor.offset as usize) }),
            Address::Device(start) => Address::Device(start + descriptor.offset),
        };
        Self { descriptor, lost_before, metadata, start, lease, import }
    }

    /// What the exporter says of it: sequence number, times, flags, planes.
    pub fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// The run of the stream that it belongs to; sequence numbers are unique within one.
    pub fn session(&self) -> u64 {
        self.lease.session.id
    }

    /// How many frames were lost between the one before and this one.
    pub fn lost_before(&self) -> u64 {
        self.lost_before
    }

    /// What was published beside it. A private copy.
    pub fn metadata(&self) -> &[u8] {
        &self.metadata
    }

    /// Takes that copy out of the frame, which may be held long after it was looked at.
    pub fn take_metadata(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.metadata)
    }

    /// Work put on `stream` from now on starts when the frame is written. Does not block. Not needed for host frames,
    /// nor where the reader delivers only frames that are written (see [`Config::gpu_wait`](super::Config)).
    ///
    /// With event fences a stream that waits when the exporter is killed never goes on.
    pub fn wait_on(&self, stream: &Stream) -> Result<(), FenceError> {
        if !self.lease.is_fenced {
            return Ok(());
        }
        self.lease.session.waits().fence.wait_ready(self.lease.entry, self.lease.sequence, stream)
    }

    /// Whether the frame is written.
    pub fn is_written(&self) -> Result<bool, FenceError> {
        if !self.lease.is_fenced {
            return Ok(true);
        }
        self.lease.session.waits().is_pending(self.lease.entry, self.lease.sequence).map(|pending| !pending)
    }

    /// Gives the frame back once the work put on `stream`, of whichever context, so far is done, where that is all the work
    /// on the frame. Does not block. Cheaper than to drop the frame, which waits for all streams of the reader's context.
    pub fn release_on(mut self, stream: &Stream) -> Result<(), FenceError> {
        let lease = &mut self.lease;
        if !lease.is_fenced {
            return Ok(());
        }
        lease.session.release_on(lease.entry, lease.sequence, stream)?;
        lease.ended = true;
        Ok(())
    }

    /// Names a stream of another context than the reader's own that the frame is read on: its work on the frame, up to
    /// when the frame is dropped, is waited for as well. Work of the reader's own context always is.
    pub fn used_on(&self, stream: Stream) {
        self.lease.used.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
    }

    /// Something of the application's that goes with the frame's slot, made by `make` when it is first asked for: many
    /// frames come in one slot, one after the other. It is dropped before the slot's memory is unmapped, when no frame
    /// is out in the slot and none will come. `None` if something of another type is kept there.
    pub fn keep_with_slot<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Option<&T> {
        self.import.kept(make)
    }

    /// As [`Frame::used_on`], for a stream of which no more than its handle is known; a null one is the NULL stream of the
    /// context that is current on this thread.
    ///
    /// # Safety
    ///
    /// `stream` must be a CUstream, or null, that is not destroyed before the frame is dropped, nor is its context.
    pub unsafe fn used_on_handle(&self, stream: *mut std::ffi::c_void) -> frameshare_cuda::Result<()> {
        let Some(gpu) = self.lease.session.context() else { return Ok(()) };
        // SAFETY: the caller's promise; the lease, which keeps it, records on it for the last time when it ends.
        self.used_on(unsafe { Stream::found(stream, gpu) }?);
        Ok(())
    }

    /// Where its first byte lies.
    pub fn address(&self) -> Address {
        self.start
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.descriptor.size as usize
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where its first byte lies, for the CPU to read; `None` for memory of a GPU.
    pub fn as_ptr(&self) -> Option<NonNull<u8>> {
        match self.start {
            Address::Host(start) => Some(start),
            Address::Device(_) => None,
        }
    }

    /// Its bytes, to be loaded one by one: right whatever the exporter does. Empty for memory of a GPU.
    pub fn bytes(&self) -> &[AtomicU8] {
        let Some(start) = self.as_ptr() else { return &[] };
        // SAFETY: the range lies inside the import, which is mapped until `self` is dropped; atomics may be
        // written by another process at any time. They are only loaded: the mapping is read-only.
        unsafe { std::slice::from_raw_parts(start.as_ptr().cast(), self.len()) }
    }

    /// Its bytes as a plain slice. Empty for memory of a GPU.
    ///
    /// # Safety
    ///
    /// Nobody may write the frame while the slice is used. An exporter that keeps the protocol does not, for as
    /// long as the lease is open, which this frame is; the caller must trust it to.
    pub unsafe fn as_slice(&self) -> &[u8] {
        let Some(start) = self.as_ptr() else { return &[] };
        // SAFETY: mapped as in `bytes`; that nobody writes is the caller's promise.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), self.len()) }
    }
}
