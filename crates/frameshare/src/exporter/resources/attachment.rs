// SPDX-License-Identifier: MIT OR Apache-2.0

//! Descriptors that belong to messages, by their owners.

use crate::{
    memory::{Accounts, Allocation, Allocator, host::HostFile},
    sys::UntrustedFd,
};
use frameshare_core::exporter::{shortage::Unsendable, system as core};
use rustix::io::Errno;
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

/// A descriptor that belongs to a message, by its owner.
#[derive(Clone, Debug)]
pub enum Attachment {
    File(Arc<OwnedFd>),
    /// The queue page of one reader.
    Queue(Arc<HostFile>),
    Payload(Arc<HostFile>),
    /// The reader's end of its wake-up socket.
    Lent(Arc<UntrustedFd>),
    Slot(Arc<dyn Allocation>),
    Pool(Arc<dyn Allocator>),
}

impl core::Attachment for Attachment {
    type File = HostFile;

    fn frees_memory(&self) -> bool {
        match self {
            // Closing them frees their descriptors at once, which an exporter may lack.
            Self::File(_) | Self::Queue(_) | Self::Payload(_) | Self::Lent(_) => false,
            Self::Slot(memory) => Arc::strong_count(memory) == 1,
            Self::Pool(allocator) => Arc::strong_count(allocator) == 1,
        }
    }

    fn payload(&self) -> Option<&Arc<HostFile>> {
        if let Self::Payload(file) = self { Some(file) } else { None }
    }
}

impl Attachment {
    /// The descriptor, if there is one.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::File(file) => Some(file.as_fd()),
            Self::Queue(file) | Self::Payload(file) => Some(file.as_fd()),
            Self::Lent(socket) => Some(socket.as_fd()),
            Self::Slot(memory) => memory.handle().fd,
            Self::Pool(allocator) => allocator.fd(),
        }
    }
}

/// Writes a payload to a sealed memory file: one that is used again if there are accounts.
pub fn payload_file(bytes: &[u8], accounts: Option<&Accounts>) -> io::Result<Arc<HostFile>> {
    let (name, size) = ("frameshare-payload", bytes.len() as u64);
    let file = match accounts {
        Some(accounts) => accounts.file(name, size)?,
        None => Arc::new(HostFile::new(name, size)?),
    };
    file.store(bytes);
    Ok(file)
}

/// Returns whether sendmsg(2) failed because of a temporary shortage: too many descriptors in
/// flight (ETOOMANYREFS), or memory (ENOBUFS, ENOMEM).
pub fn is_shortage(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM))
}

/// Returns whether this process lacks files or memory, possibly because of unreceived messages.
pub fn is_exhausted(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOSPC))
}

/// Says why a message cannot be made, by the system's error.
pub fn unsendable(error: &io::Error) -> Unsendable {
    Unsendable { why: error.to_string(), is_exhausted: is_exhausted(error) }
}
