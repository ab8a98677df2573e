// SPDX-License-Identifier: MIT OR Apache-2.0

//! Probe of `/dev/udmabuf`, which turns memory files into dma-bufs.
//!
//! Kernels without the fix (Linux 6.13, backported) check a memory file for `F_SEAL_WRITE` and not
//! for `F_SEAL_FUTURE_WRITE`: a process that may open the device writes through a read-only
//! descriptor.
//!
//! # Safety
//!
//! One ioctl with an in-parameter of the type that it reads, and a result that is a new descriptor.
#![allow(unsafe_code)]

use super::{Mapping, PerProcess, SealedAgainst, memfd};
use rustix::{
    fs::{Mode, OFlags, open},
    io::Errno,
    ioctl::opcode,
};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    path::Path,
};

const DEVICE: &str = "/dev/udmabuf";
/// Size in bytes of the probe's memory file: whole pages, with pages of 4 to 64 KiB.
const SIZE: u64 = 64 << 10;

/// Parameter of `UDMABUF_CREATE` (linux/udmabuf.h).
#[repr(C)]
struct Create {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

/// `UDMABUF_FLAGS_CLOEXEC`.
const CLOEXEC: u32 = 1;

/// Result of the probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Udmabuf {
    /// There is no such device.
    Missing,
    /// The device refuses memory that is sealed like a slot.
    Refuses,
    /// The device turns memory that is sealed like a slot into a dma-buf, which can be written.
    Writable,
    /// The probe could not run, for this reason.
    Untried(String),
}

/// Probes the device, once per process.
pub fn udmabuf() -> &'static Udmabuf {
    static FOUND: PerProcess<Udmabuf> = PerProcess::new(|| probe(Path::new(DEVICE), create));
    FOUND.get()
}

/// Creates a dma-buf of the first `SIZE` bytes of a memory file.
fn create(device: BorrowedFd<'_>, memory: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let request = Create { memfd: memory.as_raw_fd().cast_unsigned(), flags: CLOEXEC, offset: 0, size: SIZE };
    let number = opcode::write::<Create>(b'u', 0x42);
    // SAFETY: the driver reads a `Create`, and keeps no pointer to it.
    let fd = unsafe { libc::ioctl(device.as_raw_fd(), number as _, &raw const request) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the driver just opened this descriptor for this process.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Creation alone counts as writable, without a mapping: the devices that import a dma-buf write it
/// with no check of their own.
fn probe(
    device: &Path,
    create: impl FnOnce(BorrowedFd<'_>, BorrowedFd<'_>) -> io::Result<OwnedFd>,
) -> Udmabuf {
    let opened = match open(device, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Err(Errno::NOENT | Errno::NODEV | Errno::NXIO) => return Udmabuf::Missing,
        Err(error) => return Udmabuf::Untried(format!("cannot open {}: {error}", device.display())),
        Ok(opened) => opened,
    };
    let created = slot().and_then(|memory| create(opened.as_fd(), memory.as_fd()));
    match created {
        Ok(_) => Udmabuf::Writable,
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Udmabuf::Refuses,
        Err(error) => Udmabuf::Untried(format!("the probe of {} failed: {error}", device.display())),
    }
}

/// A memory file that is sealed like a slot of host memory.
fn slot() -> io::Result<OwnedFd> {
    let memory = memfd("frameshare-probe", SIZE)?;
    // The seal allows mappings that were made before it; a slot has one.
    let _mapping = Mapping::writable(&memory, SIZE as usize)?;
    SealedAgainst::ResizingAndWriting.seal(&memory)?;
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{SealFlags, fcntl_get_seals};

    /// A file that can be opened, in the device's place.
    const STAND_IN: &str = "/dev/null";

    fn failing(errno: Errno) -> Udmabuf {
        probe(Path::new(STAND_IN), |_, _| Err(errno.into()))
    }

    #[test]
    fn created_dma_buf_of_sealed_memory_is_writable() {
        let found = probe(Path::new(STAND_IN), |_, memory| {
            let ours = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
            assert_eq!(fcntl_get_seals(memory)?, ours);
            assert_eq!(rustix::fs::fstat(memory)?.st_size as u64, SIZE);
            memory.try_clone_to_owned()
        });
        assert_eq!(found, Udmabuf::Writable);
    }

    #[test]
    fn refusal_of_seals_differs_from_other_errors() {
        assert_eq!(failing(Errno::INVAL), Udmabuf::Refuses);
        for errno in [Errno::NOMEM, Errno::MFILE, Errno::PERM] {
            let found = failing(errno);
            assert!(matches!(&found, Udmabuf::Untried(why) if why.contains("failed")), "{found:?}");
        }
    }

    #[test]
    fn unopened_device_is_missing_or_untried() {
        let never = |_: BorrowedFd<'_>, _: BorrowedFd<'_>| -> io::Result<OwnedFd> { unreachable!() };
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(probe(&folder.path().join("udmabuf"), never), Udmabuf::Missing);
        // EISDIR stands for EACCES: the tests may run as root, who may open everything else.
        let found = probe(folder.path(), never);
        assert!(matches!(&found, Udmabuf::Untried(why) if why.contains("cannot open")), "{found:?}");
    }

    /// Another driver answers ENOTTY: the request is the real one, and no driver knows it by
    /// accident.
    #[test]
    fn driver_without_request_stays_untried() {
        let found = probe(Path::new(STAND_IN), create);
        assert!(matches!(&found, Udmabuf::Untried(_)), "{found:?}");
        assert_eq!(size_of::<Create>(), 24);
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        assert_eq!(opcode::write::<Create>(b'u', 0x42), 0x4018_7542);
    }
}
