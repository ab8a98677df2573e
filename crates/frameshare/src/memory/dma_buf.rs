// SPDX-License-Identifier: MIT OR Apache-2.0

//! dma-bufs: memory of a device's driver, such as a camera's or a GPU's, that another component
//! allocated and owns. It is shared in place by its file descriptor.
//!
//! Both sides map it for reading by the CPU, whose accesses they announce to the driver. Devices
//! order their work by fences of the kernel, which both sides poll.
//!
//! Every process that has the descriptor can have a device write the memory, also if the descriptor
//! itself is open for reading only: drivers that import a dma-buf do not check its mode.

use super::{Address, Allocation, Handle, Import, Importer, MemoryError, MemoryFault, Operation, length};
use crate::sys::{DmaBufId, Fences, Mapping, PendingFences, begin_cpu_read, dma_buf_size, end_cpu_read};
use frameshare_protocol::{MemoryKind, limits::MAX_SLOT_SIZE};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

/// A dma-buf, mapped for reading.
#[derive(Debug)]
pub struct DmaBuf {
    fd: OwnedFd,
    mapping: Mapping,
    size: u64,
}

/// Imports dma-bufs.
#[derive(Clone, Copy, Debug, Default)]
pub struct DmaBufImporter;

/// Returns the identity of a dma-buf of this process.
pub(crate) fn identity(fd: BorrowedFd<'_>) -> Result<DmaBufId, MemoryError> {
    DmaBufId::of(fd).map_err(|error| MemoryError::new(Operation::Share, None, MemoryKind::DmaBuf, error))
}

impl DmaBuf {
    /// Maps a dma-buf of this process, to be shared. Duplicates its descriptor.
    pub(crate) fn share(fd: BorrowedFd<'_>) -> Result<Self, MemoryError> {
        let share = || {
            let size = dma_buf_size(fd)?;
            if size > MAX_SLOT_SIZE {
                return Err(MemoryFault::TooLarge);
            }
            Self::map(fd, size)
        };
        share().map_err(MemoryError::of(Operation::Share, None, MemoryKind::DmaBuf))
    }

    fn map(fd: BorrowedFd<'_>, size: u64) -> Result<Self, MemoryFault> {
        let mapping = Mapping::read_only(fd, length(size)?)?;
        Ok(Self { fd: fd.try_clone_to_owned()?, mapping, size })
    }

    /// Returns the fences that are not signaled; `None` if all are, or there are none.
    ///
    /// # Errors
    /// The error of a system call.
    pub(crate) fn pending(&self, fences: Fences) -> io::Result<Option<PendingFences>> {
        PendingFences::of(self.fd.as_fd(), fences)
    }

    /// Returns whether no fence is pending.
    ///
    /// # Errors
    /// The error of poll(2).
    pub(crate) fn is_settled(&self, fences: Fences) -> io::Result<bool> {
        fences.are_signaled(self.fd.as_fd())
    }

    /// Begins a span in which the CPU reads it.
    ///
    /// # Errors
    /// The error of the driver.
    pub(crate) fn begin_cpu_read(&self) -> io::Result<()> {
        begin_cpu_read(self.fd.as_fd())
    }

    /// Ends the span.
    ///
    /// # Errors
    /// The error of the driver.
    pub(crate) fn end_cpu_read(&self) -> io::Result<()> {
        end_cpu_read(self.fd.as_fd())
    }
}

impl AsFd for DmaBuf {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Allocation for DmaBuf {
    fn address(&self) -> Address {
        Address::Host(self.mapping.as_ptr())
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn handle(&self) -> Handle<'_> {
        Handle { bytes: &[], fd: Some(self.fd.as_fd()) }
    }

    fn dma_buf(&self) -> Option<&DmaBuf> {
        Some(self)
    }
}

impl Importer for DmaBufImporter {
    fn import(
        &self,
        size: u64,
        _handle: &[u8],
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<Arc<dyn Import>, MemoryError> {
        let import = || {
            let fd = fd.ok_or(MemoryFault::NoDescriptor)?;
            let found = dma_buf_size(fd)?;
            if found != size {
                let text = format!("the dma-buf has {found} bytes instead of {size}");
                return Err(io::Error::new(io::ErrorKind::InvalidData, text).into());
            }
            DmaBuf::map(fd, size)
        };
        Ok(Arc::new(import().map_err(MemoryError::of(Operation::Import, size, MemoryKind::DmaBuf))?))
    }
}

impl Import for DmaBuf {
    fn address(&self) -> Address {
        Address::Host(self.mapping.as_ptr())
    }

    fn dma_buf(&self) -> Option<&DmaBuf> {
        Some(self)
    }
}
