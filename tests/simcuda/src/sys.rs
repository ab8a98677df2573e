// SPDX-License-Identifier: MIT OR Apache-2.0

//! Mappings, memory files and file locks of the operating system.
//!
//! # Safety
//!
//! A [`Mapping`] owns its address range. Code that uses addresses in the range holds the mapping or
//! the table that contains it.

use crate::api::{Code, MAP_FAILED, OUT_OF_MEMORY};
use crate::config;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard};

/// Size of a page of host memory.
pub const PAGE: usize = 4096;

/// Granularity of device memory: allocations are multiples of this size.
pub const GRANULE: usize = 2 << 20;

/// Rounds up to a multiple of `to`, a power of two.
pub fn round_up(n: usize, to: usize) -> usize {
    n.saturating_add(to - 1) & !(to - 1)
}

/// Creates a memory file.
pub fn memory_file(name: &str, size: usize) -> Result<OwnedFd, Code> {
    let name = CString::new(name).map_err(|_| OUT_OF_MEMORY)?;
    // SAFETY: the name is a C string; the result is checked before it is owned.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(OUT_OF_MEMORY);
    }
    // SAFETY: just created, with no other owner.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let file = File::from(fd);
    file.set_len(size as u64).map_err(|_| OUT_OF_MEMORY)?;
    Ok(file.into())
}

/// Returns the name of a memory file, or `None` for another file.
pub fn memory_file_name(fd: RawFd) -> Option<String> {
    let target = std::fs::read_link(format!("/proc/self/fd/{fd}")).ok()?;
    let target = target.to_str()?.strip_prefix("/memfd:")?;
    Some(target.strip_suffix(" (deleted)").unwrap_or(target).to_owned())
}

/// Duplicates a descriptor; both refer to the same open file description.
pub fn duplicate(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: fcntl with a number; a bad descriptor is an error.
    let fd = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just created, with no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Opens a second open file description for the same memory. Locks taken through it are distinct
/// from the exporter's. Works with any /proc that contains this process.
pub fn reopen(fd: RawFd) -> io::Result<File> {
    File::options().read(true).write(true).open(format!("/proc/self/fd/{fd}"))
}

/// Control data with room for one descriptor, CMSG_SPACE(4).
#[repr(C, align(8))]
struct OneFd([u8; 24]);

/// Calls `run` with a message of one byte and room for one descriptor.
fn with_message<T>(run: impl FnOnce(&mut libc::msghdr) -> T) -> T {
    let mut control = OneFd([0; 24]);
    let mut byte = [0u8; 1];
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // SAFETY: zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len() as _;
    run(&mut message)
}

/// Sends a copy of a descriptor.
pub fn send_fd(to: impl AsFd, fd: impl AsFd) -> io::Result<()> {
    // SAFETY: the message lives until the call returns, and has room for one header and one int.
    let sent = with_message(|message| unsafe {
        let header = libc::CMSG_FIRSTHDR(message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(4) as _;
        libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(fd.as_fd().as_raw_fd());
        libc::sendmsg(to.as_fd().as_raw_fd(), message, libc::MSG_NOSIGNAL)
    });
    if sent == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Blocks until a descriptor from [`send_fd`] arrives. A hang-up is an error.
pub fn receive_fd(from: impl AsFd) -> io::Result<OwnedFd> {
    // SAFETY: the message lives until the call returns. A header exists only if the kernel wrote
    // it, and its descriptor has no other owner.
    with_message(|message| unsafe {
        if libc::recvmsg(from.as_fd().as_raw_fd(), message, libc::MSG_CMSG_CLOEXEC) < 0 {
            return Err(io::Error::last_os_error());
        }
        let header = libc::CMSG_FIRSTHDR(message);
        if header.is_null() || (*header).cmsg_type != libc::SCM_RIGHTS {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(OwnedFd::from_raw_fd(libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned()))
    })
}

/// Returns the size of a file.
pub fn size_of(fd: RawFd) -> io::Result<u64> {
    // SAFETY: zero is a valid stat.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: stat is a place for the result; a bad descriptor is an error.
    if unsafe { libc::fstat(fd, &mut stat) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(stat.st_size as u64)
}

/// Locks one byte of a memory file, which marks it as in use through this open file description.
/// The lock ends with an unlock or with the last descriptor, also when the process dies, and is
/// visible across PID namespaces.
pub fn mark_in_use(file: &File, byte: u64, in_use: bool) {
    let kind = if in_use { libc::F_RDLCK } else { libc::F_UNLCK };
    let mut lock = lock(kind as _, byte, 1);
    // SAFETY: a valid descriptor and flock.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &mut lock) };
}

/// Returns whether another open file description has marked a byte of the range.
pub fn is_in_use(fd: impl AsFd, start: u64, len: u64) -> bool {
    let mut lock = lock(libc::F_WRLCK as _, start, len);
    // SAFETY: a valid descriptor and flock.
    let asked = unsafe { libc::fcntl(fd.as_fd().as_raw_fd(), libc::F_OFD_GETLK, &mut lock) };
    asked == 0 && i32::from(lock.l_type) != libc::F_UNLCK
}

fn lock(kind: libc::c_short, start: u64, len: u64) -> libc::flock {
    // SAFETY: zero is a valid flock.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind;
    lock.l_whence = libc::SEEK_SET as _;
    lock.l_start = start as _;
    lock.l_len = len as _;
    lock
}

/// Address ranges of freed memory, reserved for the next allocations of their length. Empty without
/// the adversary.
static FREED: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

fn freed() -> MutexGuard<'static, Vec<(usize, usize)>> {
    FREED.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// An address range of this process, unmapped on drop.
#[derive(Debug)]
pub struct Mapping {
    start: usize,
    len: usize,
    /// Whether the program knows the addresses. With the adversary, the next allocation of the same
    /// length gets the range that was freed last.
    is_memory: bool,
}

impl Mapping {
    /// Reserves addresses for the program, without memory, aligned to the granule.
    pub fn reserve(len: usize) -> Result<Mapping, Code> {
        let mut freed = freed();
        if let Some(index) = freed.iter().rposition(|&(_, other)| other == len) {
            return Ok(Mapping { start: freed.remove(index).0, len, is_memory: true });
        }
        drop(freed);
        let mut mapping = Mapping::reserve_new(len)?;
        mapping.is_memory = true;
        Ok(mapping)
    }

    fn reserve_new(len: usize) -> Result<Mapping, Code> {
        let span = len.checked_add(GRANULE).ok_or(OUT_OF_MEMORY)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let whole = Mapping::map(std::ptr::null_mut(), span, libc::PROT_NONE, flags, -1, 0)?;
        let start = round_up(whole.start, GRANULE);
        let (head, tail) = (start - whole.start, whole.start + span - (start + len));
        let (first, last) = (whole.start, start + len);
        std::mem::forget(whole);
        for (at, len) in [(first, head), (last, tail)] {
            if len > 0 {
                drop(Mapping { start: at, len, is_memory: false });
            }
        }
        Ok(Mapping { start, len, is_memory: false })
    }

    /// Maps memory of the program from a file, aligned to the granule.
    pub fn of_file(fd: RawFd, offset: usize, len: usize) -> Result<Mapping, Code> {
        let mapping = Mapping::reserve(len)?;
        mapping.back_with(fd, offset, len, libc::PROT_READ | libc::PROT_WRITE)?;
        Ok(mapping)
    }

    /// Maps pages of a file that are the driver's own.
    pub fn of_page(fd: RawFd, offset: usize, len: usize) -> Result<Mapping, Code> {
        let mapping = Mapping::reserve_new(len)?;
        mapping.back_with(fd, offset, len, libc::PROT_READ | libc::PROT_WRITE)?;
        Ok(mapping)
    }

    /// Maps memory of the program that no file backs.
    pub fn anonymous(len: usize) -> Result<Mapping, Code> {
        let mapping = Mapping::reserve(len)?;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        Mapping::map(mapping.start as *mut _, len, protection, flags, -1, 0).map(std::mem::forget)?;
        Ok(mapping)
    }

    fn map(
        at: *mut libc::c_void,
        len: usize,
        protection: i32,
        flags: i32,
        fd: RawFd,
        offset: usize,
    ) -> Result<Mapping, Code> {
        // SAFETY: without MAP_FIXED this takes only free addresses; with it, callers pass a range
        // that they own.
        let start = unsafe { libc::mmap(at, len, protection, flags, fd, offset as libc::off_t) };
        if start == libc::MAP_FAILED {
            return Err(MAP_FAILED);
        }
        Ok(Mapping { start: start as usize, len, is_memory: false })
    }

    fn back_with(&self, fd: RawFd, offset: usize, len: usize, protection: i32) -> Result<(), Code> {
        debug_assert!(len <= self.len);
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        Mapping::map(self.start as *mut _, len, protection, flags, fd, offset).map(std::mem::forget)
    }

    /// Maps a file's memory at `at`, a part of this range, without access.
    pub fn put(&self, at: usize, len: usize, fd: RawFd) -> Result<(), Code> {
        self.part(at, len).back_with(fd, 0, len, libc::PROT_NONE)
    }

    /// Unmaps the memory at `at`. The addresses stay reserved.
    pub fn take(&self, at: usize, len: usize) -> Result<(), Code> {
        let part = self.part(at, len);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        Mapping::map(part.start as *mut _, len, libc::PROT_NONE, flags, -1, 0).map(std::mem::forget)
    }

    /// Returns a part of this range, which is not unmapped on its own.
    fn part(&self, start: usize, len: usize) -> std::mem::ManuallyDrop<Mapping> {
        assert!(start >= self.start && start + len <= self.start + self.len);
        std::mem::ManuallyDrop::new(Mapping { start, len, is_memory: false })
    }

    pub fn start(&self) -> usize {
        self.start
    }

    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.is_memory && config::get().adversary && self.take(self.start, self.len).is_ok() {
            freed().push((self.start, self.len));
            return;
        }
        // SAFETY: the range belongs to this mapping.
        unsafe { libc::munmap(self.start as *mut _, self.len) };
    }
}

/// Gives the host the access to mapped device memory that the devices have.
pub fn protect(start: usize, len: usize, read: bool, write: bool) {
    let protection =
        if read { libc::PROT_READ } else { libc::PROT_NONE } | if write { libc::PROT_WRITE } else { 0 };
    // SAFETY: callers pass ranges that they have mapped.
    unsafe { libc::mprotect(start as *mut _, len, protection) };
}

/// Returns a random number, unique among processes.
pub fn random() -> u64 {
    let mut number = [0u8; 8];
    // SAFETY: a place for eight bytes. A short read, before the kernel's pool is ready, would only
    // make the number less random.
    unsafe { libc::getrandom(number.as_mut_ptr().cast(), 8, 0) };
    u64::from_ne_bytes(number)
}
