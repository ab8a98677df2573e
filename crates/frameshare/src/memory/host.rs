// SPDX-License-Identifier: MIT OR Apache-2.0

//! Host memory: memory files that are sealed against resizing and against readers' writes.

use super::{
    Address, Allocation, Allocator, Handle, Import, Importer, MemoryError, MemoryFault, Operation, length,
};
use crate::sys::{Label, Mapping, SealedAgainst, Words, check_memfd, memfd, store_bytes};
use frameshare_core::exporter::accounts::MemoryFile;
use frameshare_protocol::MemoryKind;
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// Allocates and imports host memory. The label names its memory files.
#[derive(Clone, Debug, Default)]
pub struct Host(pub Label);

/// A memory file that this process alone writes, through a mapping made before its seal. Other
/// processes map it for reading only.
#[derive(Debug)]
pub struct HostFile {
    fd: OwnedFd,
    words: Words,
    size: u64,
    /// Holders drop their references only when no reader reads the content any more.
    is_reusable: bool,
    is_given: AtomicBool,
}

impl HostFile {
    /// Makes a file of `size` bytes, all zero.
    ///
    /// # Errors
    /// The error of a system call, such as a lack of memory.
    pub(crate) fn new(name: &str, size: u64) -> io::Result<Self> {
        let fd = memfd(name, size)?;
        let length = usize::try_from(size).map_err(|_| io::ErrorKind::OutOfMemory)?;
        // The exporter's own mapping is made before the seal, so only that one stays writable. Its
        // last word may end behind the file, in the last page.
        let words = Mapping::writable(&fd, length.next_multiple_of(8))?.into();
        SealedAgainst::ResizingAndWriting.seal(&fd)?;
        Ok(Self { fd, words, size, is_reusable: false, is_given: AtomicBool::new(false) })
    }

    /// Makes a file whose holders drop their references only when no reader reads the content any
    /// more.
    ///
    /// # Errors
    /// As [`HostFile::new`].
    pub(crate) fn reusable(name: &str, size: u64) -> io::Result<Self> {
        Ok(Self { is_reusable: true, ..Self::new(name, size)? })
    }

    /// The file as words.
    pub(crate) fn words(&self) -> &Words {
        &self.words
    }

    /// Writes bytes from the start on.
    pub(crate) fn store(&self, bytes: &[u8]) {
        store_bytes(&self.words, 0, bytes);
    }
}

impl MemoryFile for HostFile {
    fn size(&self) -> u64 {
        self.size
    }

    fn is_reusable(&self) -> bool {
        self.is_reusable
    }

    fn is_given(&self) -> bool {
        self.is_given.load(Ordering::Relaxed)
    }

    fn note_given(&self) {
        self.is_given.store(true, Ordering::Relaxed);
    }
}

impl AsFd for HostFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The first `size` bytes of a file.
#[derive(Debug)]
pub(super) struct HostAllocation {
    pub file: Arc<HostFile>,
    pub size: u64,
}

#[derive(Debug)]
struct HostImport(Mapping);

impl Allocator for Host {
    fn allocate(&self, size: u64) -> Result<Arc<dyn Allocation>, MemoryError> {
        let file = HostFile::reusable(&self.0.file("slot"), size)
            .map_err(|error| MemoryError::new(Operation::Allocate, size, MemoryKind::Host, error))?;
        Ok(Arc::new(HostAllocation { file: Arc::new(file), size }))
    }
}

impl Importer for Host {
    fn import(
        &self,
        size: u64,
        _handle: &[u8],
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<Arc<dyn Import>, MemoryError> {
        let import = || {
            let fd = fd.ok_or(MemoryFault::NoDescriptor)?;
            check_memfd(fd, size, SealedAgainst::ResizingAndWriting)?;
            Ok(Mapping::read_only(fd, length(size)?)?)
        };
        let mapping = import().map_err(MemoryError::of(Operation::Import, size, MemoryKind::Host))?;
        Ok(Arc::new(HostImport(mapping)))
    }
}

impl Allocation for HostAllocation {
    fn address(&self) -> Address {
        Address::Host(self.file.words.start())
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn handle(&self) -> Handle<'_> {
        Handle { bytes: &[], fd: Some(self.file.as_fd()) }
    }

    fn file(&self) -> Option<&Arc<HostFile>> {
        Some(&self.file)
    }
}

impl Import for HostImport {
    fn address(&self) -> Address {
        Address::Host(self.0.as_ptr())
    }
}
