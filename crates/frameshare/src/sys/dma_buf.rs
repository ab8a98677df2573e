// SPDX-License-Identifier: MIT OR Apache-2.0

//! dma-bufs: identity, size, fences of devices, and access by the CPU.
//!
//! Drivers order their work on a dma-buf by fences in the kernel (implicit synchronization). A
//! process learns of them by poll(2), or by a sync file, which names the fences of one moment.
//!
//! # Safety
//!
//! Two ioctls with parameters of the types that the kernel reads and writes (linux/dma-buf.h), on
//! descriptors that are dma-bufs ([`dma_buf_size`]).
#![allow(unsafe_code)]

use super::poll::{Timeout, is_ready, wait};
use rustix::{
    event::{PollFd, PollFlags},
    fs::{SeekFrom, fstat, seek},
    io::{Errno, retry_on_intr},
    ioctl::{Opcode, Setter, Updater, ioctl, opcode},
};
use std::{
    fs, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    thread,
    time::{Duration, Instant},
};

/// Identity of a dma-buf: equal for all descriptors of it, in every process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DmaBufId {
    device: u64,
    inode: u64,
}

impl DmaBufId {
    /// Returns the identity of a dma-buf, which is unique while a descriptor of it is open.
    ///
    /// # Errors
    /// The error of fstat(2).
    pub fn of(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let found = fstat(fd)?;
        #[allow(clippy::unnecessary_cast, reason = "the fields' types differ between architectures")]
        Ok(Self { device: found.st_dev as u64, inode: found.st_ino as u64 })
    }
}

/// Returns the size of a dma-buf in bytes. Nothing but the kernel is asked before the descriptor is
/// known to be a dma-buf: a file system of a peer could block every other call.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] for another descriptor; the error of a system call.
pub fn dma_buf_size(fd: BorrowedFd<'_>) -> io::Result<u64> {
    // Only dma-bufs have this line, which the kernel writes (dma_buf_show_fdinfo, Linux 5.3).
    let path = format!("/proc/self/fdinfo/{}", fd.as_raw_fd());
    let info = fs::read_to_string(&path).map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("cannot tell whether a descriptor is a dma-buf: {path}: {error}"),
        )
    })?;
    if !info.lines().any(|line| line.starts_with("exp_name:")) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the descriptor is no dma-buf"));
    }
    Ok(seek(fd, SeekFrom::End(0))?)
}

/// Fences of devices on a dma-buf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fences {
    /// Of devices that write it: to be waited for before it is read.
    Writers,
    /// Of all devices: to be waited for before it is written.
    All,
}

/// Fences that were not signaled at one moment.
#[derive(Debug)]
pub enum PendingFences {
    /// Those of that moment alone.
    Snapshot(OwnedFd),
    /// Those of every later moment, too: Linux before 6.0 has no sync files of dma-bufs.
    Present(Fences),
}

impl PendingFences {
    /// Returns the fences that are not signaled; `None` if all are, or there are none.
    ///
    /// # Errors
    /// The error of a system call.
    pub fn of(dma_buf: BorrowedFd<'_>, fences: Fences) -> io::Result<Option<Self>> {
        if fences.are_signaled(dma_buf)? {
            return Ok(None);
        }
        match fences.export(dma_buf) {
            Ok(file) => Ok(Some(Self::Snapshot(file))),
            Err(Errno::NOTTY) => Ok(Some(Self::Present(fences))),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns whether they are signaled.
    ///
    /// # Errors
    /// The error of poll(2).
    pub fn are_signaled(&self, dma_buf: BorrowedFd<'_>) -> io::Result<bool> {
        match self {
            Self::Snapshot(file) => has(file.as_fd(), PollFlags::IN),
            Self::Present(fences) => fences.are_signaled(dma_buf),
        }
    }
}

impl Fences {
    /// Returns whether all that are present now are signaled, or there are none.
    ///
    /// # Errors
    /// The error of poll(2).
    pub fn are_signaled(self, dma_buf: BorrowedFd<'_>) -> io::Result<bool> {
        has(dma_buf, if self == Self::Writers { PollFlags::IN } else { PollFlags::OUT })
    }

    /// Returns a sync file of the fences.
    fn export(self, dma_buf: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
        /// `struct dma_buf_export_sync_file`.
        #[repr(C)]
        struct Export {
            flags: u32,
            fd: i32,
        }
        const EXPORT_SYNC_FILE: Opcode = opcode::read_write::<Export>(b'b', 2);
        let mut export = Export { flags: if self == Self::Writers { READ } else { WRITE } as u32, fd: -1 };
        // SAFETY: the kernel reads and writes one `Export`, and keeps no pointer to it.
        unsafe { ioctl(dma_buf, Updater::<EXPORT_SYNC_FILE, Export>::new(&mut export)) }?;
        // SAFETY: the kernel has just opened this descriptor for this process.
        Ok(unsafe { OwnedFd::from_raw_fd(export.fd) })
    }
}

/// Returns whether poll(2) finds an event now.
fn has(fd: BorrowedFd<'_>, event: PollFlags) -> io::Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(fd, event)];
    wait(&mut fds, Timeout::after(Some(Duration::ZERO)))?;
    Ok(is_ready(&fds[0]))
}

/// `DMA_BUF_SYNC_READ`.
const READ: u64 = 1;
/// `DMA_BUF_SYNC_WRITE`.
const WRITE: u64 = 2;
/// `DMA_BUF_SYNC_END`.
const END: u64 = 4;

/// Begins a span in which the CPU reads a dma-buf: the driver makes it see what devices wrote.
///
/// # Errors
/// The error of the driver.
pub fn begin_cpu_read(dma_buf: BorrowedFd<'_>) -> io::Result<()> {
    sync(dma_buf, READ)
}

/// Ends the span.
///
/// # Errors
/// The error of the driver.
pub fn end_cpu_read(dma_buf: BorrowedFd<'_>) -> io::Result<()> {
    sync(dma_buf, READ | END)
}

fn sync(dma_buf: BorrowedFd<'_>, flags: u64) -> io::Result<()> {
    const SYNC: Opcode = opcode::write::<u64>(b'b', 0);
    // SAFETY: the kernel reads a `struct dma_buf_sync`, which is one word.
    let sync = || unsafe { ioctl(dma_buf, Setter::<SYNC, u64>::new(flags)) };
    retry(PATIENCE, || retry_on_intr(sync))
}

/// Maximum time for which a driver may ask to try again (EAGAIN, linux/dma-buf.h).
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest pause between two attempts; the first one is a thousandth of it.
const LONGEST: Duration = Duration::from_millis(10);

/// Calls a driver again after EAGAIN, with longer and longer pauses.
fn retry(patience: Duration, mut call: impl FnMut() -> rustix::io::Result<()>) -> io::Result<()> {
    let (end, mut pause) = (Instant::now() + patience, LONGEST / 1000);
    loop {
        match call() {
            Err(Errno::AGAIN) if Instant::now() < end => {
                thread::sleep(pause);
                pause = (2 * pause).min(LONGEST);
            }
            called => return Ok(called?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::memfd;

    /// An exporter's file that is no dma-buf must not pass for one, whatever its type.
    #[test]
    fn descriptors_that_are_no_dma_buf_are_refused() {
        let (pipe, _) = rustix::pipe::pipe().unwrap();
        let files = [memfd("exp_name:", 4096).unwrap(), pipe, fs::File::open("/dev/null").unwrap().into()];
        for file in files {
            let error = dma_buf_size(file.as_fd()).unwrap_err();
            assert_eq!(
                (error.kind(), error.to_string().contains("no dma-buf")),
                (io::ErrorKind::InvalidData, true)
            );
        }
    }

    #[test]
    fn busy_driver_is_called_again_for_a_bounded_time() {
        let calls = |patience, answers: &[Errno]| {
            let mut calls = 0;
            let called = retry(patience, || {
                calls += 1;
                answers.get(calls - 1).or(answers.last()).map_or(Ok(()), |errno| match *errno {
                    Errno::NOTTY if calls > 2 => Ok(()),
                    errno => Err(errno),
                })
            });
            (called.err().map(|error| error.raw_os_error().unwrap()), calls)
        };
        assert_eq!(calls(Duration::from_secs(60), &[]), (None, 1));
        assert_eq!(calls(Duration::from_secs(60), &[Errno::AGAIN, Errno::AGAIN, Errno::NOTTY]), (None, 3));
        assert_eq!(calls(Duration::from_secs(60), &[Errno::IO]), (Some(Errno::IO.raw_os_error()), 1));
        // Pauses of 10 ms bound the number of calls.
        let (error, count) = calls(Duration::from_millis(50), &[Errno::AGAIN]);
        assert_eq!(error, Some(Errno::AGAIN.raw_os_error()));
        assert!((2..100).contains(&count), "{count} calls");
    }

    #[test]
    fn requests_are_those_of_the_kernel() {
        // linux/dma-buf.h, on x86-64 and aarch64.
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        assert_eq!(
            (opcode::write::<u64>(b'b', 0), opcode::read_write::<[u32; 2]>(b'b', 2)),
            (0x4008_6200, 0xc008_6202)
        );
    }
}
