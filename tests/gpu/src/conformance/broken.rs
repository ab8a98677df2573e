// SPDX-License-Identifier: MIT OR Apache-2.0

//! Implementations with one defect each, as negative controls of the rules.
//!
//! Each wraps an implementation of the engine and passes on every call that its defect does not
//! concern.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use frameshare::fence::{ExporterFence, FenceError, FenceState, ReaderFence, Signals, Unblocking};
use frameshare::memory::{Address, Allocation, Allocator, Handle, Import, Importer, MemoryError};
use frameshare::{EntryIndex, FenceKind, Sequence};
use frameshare_cuda::stream::Stream;

use super::bytes::Bytes;
use super::command::Defect;

/// Size of memory that a defect substitutes for another.
const SUBSTITUTE: u64 = 4 << 20;

/// Returns whether a process has exited.
fn is_dead(process: u32) -> bool {
    !std::path::Path::new(&format!("/proc/{process}")).exists()
}

/// An allocator with a defect.
#[derive(Debug)]
pub struct BrokenAllocator {
    pub inner: Arc<dyn Allocator>,
    pub bytes: Bytes,
    pub defect: Defect,
    pub first: Mutex<Option<Arc<dyn Allocation>>>,
}

#[derive(Debug)]
struct BrokenAllocation {
    inner: Arc<dyn Allocation>,
    /// The allocation that the handle names instead.
    named: Option<Arc<dyn Allocation>>,
    size: u64,
    /// Access for overwriting the allocation when it is dropped.
    scrub: Option<Bytes>,
}

impl Allocator for BrokenAllocator {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.fd()
    }

    fn allocate(&self, size: u64) -> Result<Arc<dyn Allocation>, MemoryError> {
        let inner = match self.inner.allocate(size) {
            Err(_) if self.defect == Defect::Overcommitted => self.inner.allocate(4096)?,
            allocated => allocated?,
        };
        let first =
            self.first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(inner.clone()).clone();
        let mut broken =
            BrokenAllocation { size: inner.size(), inner: inner.clone(), named: None, scrub: None };
        match self.defect {
            // A failed write leaves the defect out, which the control then reports.
            Defect::Dirty => _ = self.bytes.write(inner.address(), &vec![1; size as usize]),
            Defect::Short => broken.size = size - 1,
            Defect::Misdirected => broken.named = Some(self.inner.allocate(size)?),
            Defect::Duplicated => broken.inner = first,
            Defect::Scrubbed => broken.scrub = Some(self.bytes.clone()),
            _ => {}
        }
        Ok(Arc::new(broken))
    }
}

impl Allocation for BrokenAllocation {
    fn address(&self) -> Address {
        self.inner.address()
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn handle(&self) -> Handle<'_> {
        self.named.as_ref().unwrap_or(&self.inner).handle()
    }
}

impl Drop for BrokenAllocation {
    fn drop(&mut self) {
        if let Some(bytes) = &self.scrub {
            let _ = bytes.write(self.inner.address(), &vec![0; self.size as usize]);
        }
    }
}

/// An importer with a defect.
#[derive(Debug)]
pub struct BrokenImporter {
    pub inner: Arc<dyn Importer>,
    /// Allocates the memory that the defect substitutes for an import.
    pub own: Arc<dyn Allocator>,
    /// The process whose memory is imported.
    pub exporter: u32,
    pub defect: Defect,
    pub used: AtomicBool,
}

#[derive(Debug)]
struct BrokenImport {
    inner: Option<Arc<dyn Import>>,
    substitute: Arc<dyn Allocation>,
    exporter: u32,
    defect: Defect,
}

impl Importer for BrokenImporter {
    fn import(
        &self,
        size: u64,
        handle: &[u8],
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<Arc<dyn Import>, MemoryError> {
        if self.used.swap(true, Ordering::Relaxed) && self.defect == Defect::SingleUse {
            // Without its handle, memory of no kind can be imported.
            return self.inner.import(size, &[], None);
        }
        let inner = match self.inner.import(size, handle, fd) {
            Err(_) if self.defect == Defect::Credulous => None,
            imported => Some(imported?),
        };
        let substitute = self.own.allocate(SUBSTITUTE)?;
        Ok(Arc::new(BrokenImport { inner, substitute, exporter: self.exporter, defect: self.defect }))
    }
}

impl Import for BrokenImport {
    fn address(&self) -> Address {
        let is_substituted = match self.defect {
            Defect::Private => true,
            Defect::Orphaned => is_dead(self.exporter),
            _ => false,
        };
        match &self.inner {
            Some(inner) if !is_substituted => inner.address(),
            _ => self.substitute.address(),
        }
    }
}

/// The exporter's side of a fence, with a defect.
#[derive(Debug)]
pub struct BrokenExporterFence {
    pub inner: Box<dyn ExporterFence>,
    pub defect: Defect,
}

impl ExporterFence for BrokenExporterFence {
    fn kind(&self) -> FenceKind {
        self.inner.kind()
    }

    fn signal_ready(
        &mut self,
        entry: EntryIndex,
        sequence: Sequence,
        signals: &mut Signals,
    ) -> Result<(), FenceError> {
        self.inner.signal_ready(entry, sequence, signals)
    }

    fn poll_released(&mut self, entry: EntryIndex, sequence: Sequence) -> Result<FenceState, FenceError> {
        match self.defect {
            Defect::ReleasedEarly => Ok(FenceState::Ready),
            Defect::NeverReleased => Ok(FenceState::Pending),
            Defect::EntriesSwapped => {
                self.inner.poll_released(EntryIndex(entry.0 ^ 1), Sequence(sequence.0 ^ 1))
            }
            Defect::ErrorsHidden => {
                Ok(self.inner.poll_released(entry, sequence).unwrap_or(FenceState::Ready))
            }
            _ => self.inner.poll_released(entry, sequence),
        }
    }
}

/// The reader's side of a fence, with a defect.
#[derive(Debug)]
pub struct BrokenReaderFence {
    pub inner: Box<dyn ReaderFence>,
    /// The process that signals the ready fence.
    pub exporter: u32,
    pub defect: Defect,
    /// The last frame that was ready.
    pub ready: AtomicU64,
}

impl ReaderFence for BrokenReaderFence {
    fn kind(&self) -> FenceKind {
        self.inner.kind()
    }

    fn poll_ready(&self, entry: EntryIndex, sequence: Sequence) -> Result<FenceState, FenceError> {
        match self.defect {
            Defect::ReadyEarly => return Ok(FenceState::Ready),
            Defect::NeverReady => return Ok(FenceState::Pending),
            Defect::NotReadyAfterDeath if is_dead(self.exporter) => return Ok(FenceState::Pending),
            Defect::ReadyOnce if self.ready.load(Ordering::Relaxed) > 0 => return Ok(FenceState::Ready),
            _ => {}
        }
        let state = self.inner.poll_ready(entry, sequence)?;
        if state == FenceState::Ready {
            self.ready.store(sequence.0, Ordering::Relaxed);
        }
        Ok(state)
    }

    fn is_held_back(&self, entry: EntryIndex, sequence: Sequence) -> bool {
        self.inner.is_held_back(entry, sequence)
    }

    fn wait_ready(&self, entry: EntryIndex, sequence: Sequence, stream: &Stream) -> Result<(), FenceError> {
        match self.defect {
            Defect::NoWait => Ok(()),
            _ => self.inner.wait_ready(entry, sequence, stream),
        }
    }

    fn signal_released(
        &self,
        entry: EntryIndex,
        sequence: Sequence,
        stream: &Stream,
    ) -> Result<(), FenceError> {
        match (self.inner.signal_released(entry, sequence, stream), self.defect) {
            (Err(_), Defect::ErrorsHidden) => Ok(()),
            (signaled, _) => signaled,
        }
    }

    fn check(&self) -> Result<(), FenceError> {
        self.inner.check()
    }

    fn unblock(&self) -> Unblocking {
        self.inner.unblock()
    }
}
