// SPDX-License-Identifier: MIT OR Apache-2.0

//! Frames held by a reader: leased ones, and kept units.
//!
//! # Safety
//!
//! A [`Frame`] keeps its import mapped and its lease open, or the file of its kept unit mapped. The
//! only unsafe access is the plain slice, which the caller has to justify.
#![allow(unsafe_code)]

use super::{channel::Channel, import::Imported, release::Reads};
use crate::{
    fence::{FenceError, FenceState, ReaderFence, failed},
    foreign::report,
    memory::{Address, dma_buf::DmaBuf},
    reader::{
        gpu_wait::{self, WAITS},
        origin::Origin,
    },
    sys::Words,
};
use frameshare_cuda::stream::Stream;
use frameshare_protocol::{Descriptor, EntryIndex, ReaderCopy, Sequence};
use std::{
    any::Any,
    mem,
    os::fd::{AsFd, BorrowedFd},
    ptr::NonNull,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, atomic::AtomicU8},
};

/// A lease; dropping it ends it.
#[derive(Debug)]
#[must_use = "dropping a lease releases the frame"]
pub(in crate::reader) struct Lease {
    channel: Arc<Channel>,
    entry: EntryIndex,
    sequence: Sequence,
    /// The frame is in GPU memory.
    is_fenced: bool,
    /// Streams on which the application reads the frame.
    reads: Mutex<Reads>,
    /// Whether the CPU may read the dma-buf that the frame is in; set at the first use of its
    /// address.
    cpu_read: OnceLock<bool>,
    /// The frame's memory; `None` before it is known, and after the lease has ended.
    import: Option<Arc<Imported>>,
    /// It has ended already.
    ended: bool,
}

impl Lease {
    pub fn new(channel: Arc<Channel>, entry: EntryIndex, sequence: Sequence, is_fenced: bool) -> Self {
        channel.add_lease();
        let (reads, cpu_read) = (Mutex::default(), OnceLock::new());
        Self { channel, entry, sequence, is_fenced, reads, cpu_read, import: None, ended: false }
    }

    /// The fence of a frame in GPU memory.
    fn fence(&self) -> Option<&Arc<dyn ReaderFence>> {
        self.channel.fence().filter(|_| self.is_fenced)
    }

    fn reads(&self) -> MutexGuard<'_, Reads> {
        self.reads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn dma_buf(&self) -> Option<&DmaBuf> {
        self.import.as_ref()?.dma_buf()
    }

    /// Returns whether the CPU may read the frame's memory. For a dma-buf, this begins its access.
    fn is_readable(&self) -> bool {
        let Some(dma_buf) = self.dma_buf() else { return true };
        *self.cpu_read.get_or_init(|| {
            let begun = dma_buf.begin_cpu_read();
            if let Err(error) = &begun {
                report!(warn, "the CPU cannot read a dma-buf: {error}");
            }
            begun.is_ok()
        })
    }

    /// Makes later work of a stream start after the frame is written.
    fn wait_on(&self, stream: &Stream) -> Result<(), FenceError> {
        let Some(fence) = self.fence() else { return Ok(()) };
        stream.check_uncaptured().map_err(failed(fence.kind()))?;
        fence.wait_ready(self.entry, self.sequence, stream)?;
        WAITS.add(fence, self.entry, self.sequence, gpu_wait::id(stream));
        Ok(())
    }

    /// Ends it, once.
    fn end(&mut self) -> Result<(), FenceError> {
        if mem::replace(&mut self.ended, true) {
            return Ok(());
        }
        if self.cpu_read.get() == Some(&true)
            && let Some(dma_buf) = self.dma_buf()
            && let Err(error) = dma_buf.end_cpu_read()
        {
            report!(warn, "cannot end the CPU's access to a dma-buf: {error}");
        }
        let reads = mem::take(self.reads.get_mut().unwrap_or_else(PoisonError::into_inner));
        let mapped = self.import.take().map(|import| import as Arc<dyn Any + Send + Sync>);
        self.channel.release(self.entry, self.sequence, self.is_fenced, reads, mapped)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // A failure is kept by the channel, and reported by the reader.
        let _ = self.end();
    }
}

/// A frame that may be read until it is dropped. Its slot then returns to the exporter.
#[derive(Debug)]
#[must_use = "dropping a frame releases it unread"]
pub struct Frame {
    descriptor: Descriptor,
    lost_before: u64,
    is_kept: bool,
    metadata: Vec<u8>,
    origin: Arc<Origin>,
    start: Address,
    memory: Memory,
}

/// The memory of a frame.
#[derive(Debug)]
enum Memory {
    // Fields are dropped in this order: the lease ends before the memory can be unmapped.
    Leased {
        lease: Lease,
        import: Arc<Imported>,
    },
    /// The file of a kept unit, and the session that it belongs to.
    Kept {
        _file: Words,
        session: u64,
        is_last: bool,
    },
}

// SAFETY: the address is of memory that the import or the file keeps mapped in this process, on
// every thread.
unsafe impl Send for Frame {}
// SAFETY: as above; nothing changes through a shared reference.
unsafe impl Sync for Frame {}

impl Frame {
    pub(in crate::reader) fn new(
        descriptor: Descriptor,
        lost_before: u64,
        is_kept: bool,
        metadata: Vec<u8>,
        import: Arc<Imported>,
        mut lease: Lease,
        origin: Arc<Origin>,
    ) -> Self {
        lease.import = Some(Arc::clone(&import));
        let start = match import.address() {
            // SAFETY: `check_frame` has found offset + size inside the slot, all of which is
            // mapped.
            Address::Host(start) => Address::Host(unsafe { start.add(descriptor.offset as usize) }),
            Address::Device(start) => Address::Device(start + descriptor.offset),
        };
        let memory = Memory::Leased { lease, import };
        Self { descriptor, lost_before, is_kept, metadata, origin, start, memory }
    }

    /// The kept unit whose bytes lie in `file` at the descriptor's offset, a whole number of words;
    /// `None` if they do not.
    pub(in crate::reader) fn kept(
        descriptor: Descriptor,
        metadata: Vec<u8>,
        file: Words,
        session: u64,
        is_last: bool,
        origin: Arc<Origin>,
    ) -> Option<Self> {
        let from = usize::try_from(descriptor.offset / 8).ok()?;
        let rest = file.get(from..)?;
        if !descriptor.offset.is_multiple_of(8) || (8 * rest.len() as u64) < descriptor.size {
            return None;
        }
        let start = Address::Host(NonNull::from(rest).cast());
        Some(Self {
            descriptor,
            lost_before: 0,
            is_kept: true,
            metadata,
            origin,
            start,
            memory: Memory::Kept { _file: file, session, is_last },
        })
    }

    /// The format and the exporter.
    pub(in crate::reader) fn origin(&self) -> &Origin {
        &self.origin
    }

    fn lease(&self) -> Option<&Lease> {
        match &self.memory {
            Memory::Leased { lease, .. } => Some(lease),
            Memory::Kept { .. } => None,
        }
    }

    /// The exporter's description: sequence number, times, flags, planes.
    pub fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// The exporter's session that it belongs to; sequence numbers are unique within one.
    pub fn session(&self) -> u64 {
        match &self.memory {
            Memory::Leased { lease, .. } => lease.channel.session(),
            Memory::Kept { session, .. } => *session,
        }
    }

    /// Number of frames lost between the previous frame and this one.
    pub fn lost_before(&self) -> u64 {
        self.lost_before
    }

    /// Returns whether the frame was published before the reader joined, and the exporter had kept
    /// it: the last frame, or the last units of an encoded stream. These units take no credit.
    pub fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// Returns whether the frame is the last of the kept units: live ones follow.
    pub fn is_last_kept(&self) -> bool {
        matches!(self.memory, Memory::Kept { is_last: true, .. })
    }

    /// Metadata of the publication, as a private copy.
    pub fn metadata(&self) -> &[u8] {
        &self.metadata
    }

    /// Takes the metadata out of the frame, which may be held long after it was read.
    #[must_use = "the frame has no metadata after this"]
    pub fn take_metadata(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.metadata)
    }

    /// Makes work queued on `stream` from now on start after the frame is written. Does not block.
    /// For code that passes the frame on with its plain address; otherwise use
    /// [`Frame::address_on`]. Not needed for host frames, nor if the reader delivers written frames
    /// only (see [`Config::fence`](crate::reader::Config#structfield.fence)).
    ///
    /// With event fences, a stream that waits when the exporter is killed never continues.
    ///
    /// # Errors
    /// [`FenceError`] if the driver fails, the exporter violates the rules of its fence, or the
    /// stream is being captured into a CUDA graph, of which the wait would become a part.
    pub fn wait_on(&self, stream: &Stream) -> Result<(), FenceError> {
        let Some(lease) = self.lease() else { return Ok(()) };
        lease.reads().anywhere();
        lease.wait_on(stream)
    }

    /// Returns whether the frame is written.
    ///
    /// # Errors
    /// As [`Frame::wait_on`].
    pub fn is_written(&self) -> Result<bool, FenceError> {
        let Some((lease, fence)) = self.lease().and_then(|lease| Some((lease, lease.fence()?))) else {
            return Ok(true);
        };
        Ok(fence.poll_ready(lease.entry, lease.sequence)? == FenceState::Ready)
    }

    /// Releases the frame after the work queued on `stream`, of any context, so far, and the work
    /// before each [`Frame::done_on`], which together must be all the work on the frame. Does not
    /// block. As dropping a frame whose address was asked for with [`Frame::address_on`], but
    /// reports failures.
    ///
    /// # Errors
    /// [`FenceError`] if the driver fails. If the stream is being captured into a CUDA graph, the
    /// frame is released when the capture has ended.
    pub fn release_on(mut self, stream: &Arc<Stream>) -> Result<(), FenceError> {
        let Memory::Leased { lease, .. } = &mut self.memory else { return Ok(()) };
        lease.reads().only_on(Arc::clone(stream));
        lease.end()
    }

    /// Counts a copy that the application made of the frame, because it could not use or hand on
    /// the frame itself. Observers read the numbers ([`ReaderState::copies`]). It takes no lock;
    /// for kept units it does nothing.
    ///
    /// [`ReaderState::copies`]: crate::observer::ReaderState::copies
    pub fn count_copy(&self, reason: ReaderCopy) {
        if let Memory::Leased { lease, .. } = &self.memory {
            lease.channel.consumer().count_copy(reason);
        }
    }

    /// Names a stream, of any context, on which the frame is read: the release also waits for its
    /// work up to the drop of the frame. A stream of other code must live until then, or until
    /// [`Frame::done_on`]. For frames in host memory it does nothing.
    pub fn used_on_stream(&self, stream: impl Into<Arc<Stream>>) {
        if let Some(lease) = self.lease() {
            lease.reads().on(stream.into());
        }
    }

    /// Ends the use of the frame on `stream`, of any context: the release waits for the work queued
    /// on it so far, and for none later. The stream may be destroyed after this, before the frame
    /// is dropped. Does not block. For frames in host memory it does nothing.
    ///
    /// # Errors
    /// Any error that the driver returns, also if the stream is being captured into a CUDA graph.
    /// A stream that was named before is waited for as before then.
    pub fn done_on(&self, stream: &Stream) -> frameshare_cuda::Result<()> {
        let Some(lease) = self.lease().filter(|_| self.is_on_gpu()) else { return Ok(()) };
        match lease.channel.context() {
            Some(context) => lease.reads().done_on(stream, context),
            None => Ok(()),
        }
    }

    /// The former name of [`Frame::used_on_stream`].
    #[doc(hidden)]
    pub fn used_on(&self, stream: impl Into<Arc<Stream>>) {
        self.used_on_stream(stream);
    }

    /// Returns per-slot user data, made by `make` on first use: many frames arrive in one slot, one
    /// after the other. It is dropped before the slot's memory is unmapped, when no frame is held
    /// in the slot and none will arrive. `None` if data of another type is present, and for a kept
    /// unit.
    pub fn keep_with_slot<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Option<&T> {
        match &self.memory {
            Memory::Leased { import, .. } => import.user_data(make),
            Memory::Kept { .. } => None,
        }
    }

    /// As [`Frame::used_on_stream`], for a stream of which only the handle is known; a null one is
    /// the NULL stream of the context that is current on this thread.
    ///
    /// # Safety
    ///
    /// `stream` must be a CUstream, or null, that is not destroyed before the frame is dropped or
    /// [`Frame::done_on`] was called with it, nor is its context.
    ///
    /// # Errors
    /// Any error that the driver returns.
    pub unsafe fn used_on_handle(&self, stream: *mut std::ffi::c_void) -> frameshare_cuda::Result<()> {
        let Some(gpu) = self.lease().and_then(|lease| lease.channel.context()) else { return Ok(()) };
        // SAFETY: the caller's guarantee; the lease, which keeps the stream, records on it for the
        // last time when it ends.
        self.used_on_stream(unsafe { Stream::found(stream, gpu) }?);
        Ok(())
    }

    /// Address of its first byte. An address in GPU memory says nothing about the streams that read
    /// it: the release waits for all work of the reader's context, and is deferred in a known
    /// capture of one of its streams (see [`crate::cuda::capture`]).
    /// Streams of other contexts need [`Frame::used_on_stream`].
    pub fn address(&self) -> Address {
        match (self.start, self.lease()) {
            (Address::Device(_), Some(lease)) => lease.reads().anywhere(),
            // Without access the address shows what the CPU has cached.
            (Address::Host(_), Some(lease)) => _ = lease.is_readable(),
            (_, None) => {}
        }
        self.start
    }

    /// Address of its first byte, for work queued on `stream`, of any context, from now on, which
    /// starts after the frame is written. Does not block. Dropping the frame releases it behind the
    /// work on the streams named here and with [`Frame::used_on_stream`], whatever other streams
    /// do.
    ///
    /// With event fences, a stream that waits when the exporter is killed never continues.
    ///
    /// # Errors
    /// As [`Frame::wait_on`].
    pub fn address_on(&self, stream: &Arc<Stream>) -> Result<Address, FenceError> {
        if let (Address::Device(_), Some(lease)) = (self.start, self.lease()) {
            lease.wait_on(stream)?;
            lease.reads().on(Arc::clone(stream));
            return Ok(self.start);
        }
        Ok(self.address())
    }

    /// Returns whether its memory is GPU memory.
    pub fn is_on_gpu(&self) -> bool {
        matches!(self.start, Address::Device(_))
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.descriptor.size as usize
    }

    /// Returns whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Pointer to its first byte, for the CPU to read; `None` for GPU memory, and for a dma-buf
    /// that its driver does not let the CPU read.
    pub fn as_ptr(&self) -> Option<NonNull<u8>> {
        match self.start {
            Address::Host(start) => self.lease().is_none_or(Lease::is_readable).then_some(start),
            Address::Device(_) => None,
        }
    }

    /// The file of its memory, sealed against writing, and the offset of its first byte in it; with
    /// [`Config::keep_files`](crate::reader::Config::keep_files), for host memory. A process
    /// that gets the descriptor can read all later frames of the slot, too.
    pub fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        match &self.memory {
            Memory::Leased { import, .. } => Some((import.file()?, self.descriptor.offset)),
            Memory::Kept { .. } => None,
        }
    }

    /// The dma-buf that it is in, and the offset of its first byte; `None` for other memory. No
    /// device writes the frame any more. Devices that read it may attach fences: the exporter waits
    /// for them after the release. Accesses by the CPU through a mapping of the caller's own need
    /// `DMA_BUF_IOCTL_SYNC`.
    pub fn dma_buf(&self) -> Option<(BorrowedFd<'_>, u64)> {
        match &self.memory {
            Memory::Leased { import, .. } => Some((import.dma_buf()?.as_fd(), self.descriptor.offset)),
            Memory::Kept { .. } => None,
        }
    }

    /// Its bytes, to be loaded one by one, which is sound whatever the exporter writes. Empty for
    /// GPU memory.
    pub fn bytes(&self) -> &[AtomicU8] {
        let Some(start) = self.as_ptr() else { return &[] };
        // SAFETY: the range lies inside the import or the file, mapped until `self` is dropped;
        // atomics may be written by another process at any time. They are only loaded: the mapping
        // is read-only.
        unsafe { std::slice::from_raw_parts(start.as_ptr().cast(), self.len()) }
    }

    /// Its bytes as a plain slice. Empty for GPU memory.
    ///
    /// # Safety
    ///
    /// No process may write the frame while the slice is used. An exporter that keeps the protocol
    /// does not while the lease is open, as this frame's is; the caller must trust it.
    pub unsafe fn as_slice(&self) -> &[u8] {
        let Some(start) = self.as_ptr() else { return &[] };
        // SAFETY: mapped as in `bytes`; the caller guarantees that nothing writes.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), self.len()) }
    }
}
