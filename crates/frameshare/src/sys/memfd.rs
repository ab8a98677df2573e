//! Memory files: made, sealed, and checked when they come from someone else.

use rustix::{
    fs::{
        FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat,
        memfd_create,
    },
    io::Errno,
};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

/// What the seals of a memory file keep everyone from doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SealedAgainst {
    /// Changing its size, so that no mapping of it can fault.
    Resizing,
    /// Changing its size, and writing except through mappings made before the seal: by `write`, by new
    /// mappings, or by punching holes (`F_SEAL_FUTURE_WRITE`, Linux 5.1).
    ResizingAndWriting,
}

impl SealedAgainst {
    fn flags(self) -> SealFlags {
        let size = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        match self {
            Self::Resizing => size,
            Self::ResizingAndWriting => size | SealFlags::FUTURE_WRITE,
        }
    }
}

/// Makes a memory file of `size` zero bytes, all of them allocated, so that lack of memory is an error here and
/// no SIGBUS later. `seal` it once it is mapped.
pub fn memfd(name: &str, size: u64) -> io::Result<OwnedFd> {
    // memfds have no size limit of their own: the kernel would take page after page until it kills somebody.
    let memory = rustix::system::sysinfo();
    if size > memory.totalram.saturating_mul(memory.mem_unit.into()) {
        return Err(io::Error::new(io::ErrorKind::OutOfMemory, "that is more than the machine's memory"));
    }
    let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    loop {
        match fallocate(&fd, FallocateFlags::empty(), 0, size) {
            Err(Errno::INTR) => continue,
            done => break done?,
        }
    }
    Ok(fd)
}

impl SealedAgainst {
    /// Puts the seals on.
    pub fn seal(self, fd: impl AsFd) -> io::Result<()> {
        Ok(fcntl_add_seals(fd, self.flags())?)
    }
}

/// Checks that a descriptor from a peer is a memory file of at least `size` bytes that nobody can shrink.
pub fn check_memfd(fd: impl AsFd, size: u64) -> io::Result<()> {
    let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
    let seals = fcntl_get_seals(&fd).map_err(|_| invalid("the descriptor is no memory file".into()))?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err(invalid("the memory file is not sealed against shrinking".into()));
    }
    let found = u64::try_from(fstat(&fd)?.st_size).unwrap_or(0);
    if found < size {
        return Err(invalid(format!("the memory file has {found} bytes instead of {size}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_that_could_fault_are_refused() {
        let sealed = memfd("test", 4096).unwrap();
        assert!(check_memfd(&sealed, 4096).is_err(), "unsealed");
        SealedAgainst::Resizing.seal(&sealed).unwrap();
        assert!(check_memfd(&sealed, 4096).is_ok());
        assert!(check_memfd(&sealed, 4097).is_err(), "too short");
        let pipe = rustix::pipe::pipe().unwrap();
        assert!(check_memfd(&pipe.0, 1).is_err(), "a pipe");
        assert!(rustix::fs::ftruncate(&sealed, 0).is_err());
    }
}
