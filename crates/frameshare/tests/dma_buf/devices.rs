// SPDX-License-Identifier: MIT OR Apache-2.0

//! dma-bufs to test with: of `vgem`, a GPU without hardware, whose fences a process signals, and of
//! `udmabuf`, which makes them of a memory file.
//!
//! # Safety
//!
//! Ioctls with parameters of the types that the driver reads and writes (drm/drm.h,
//! drm/vgem_drm.h), and a mapping that its owner unmaps.
#![allow(unsafe_code)]

use rustix::{
    fs::{MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create, open},
    ioctl::{Opcode, Updater, ioctl, opcode},
    mm::{MapFlags, ProtFlags, mmap, munmap},
};
use std::{
    fs,
    io::Write as _,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    path::{Path, PathBuf},
    ptr::NonNull,
};

/// Reports a skipped test past the harness's output capture.
pub fn skip(test: &str, reason: &str) {
    std::io::stdout().write_all(format!("SKIP {test}: {reason}\n").as_bytes()).unwrap();
}

/// The device, opened once; buffers of one opening are named by handles there.
pub struct Vgem(OwnedFd);

/// Buffer of a [`Vgem`].
#[derive(Clone, Copy)]
pub struct Buffer {
    handle: u32,
    pub size: u64,
}

impl Vgem {
    /// Opens the device, or reports the test as skipped.
    pub fn open(test: &str) -> Option<Self> {
        let Some(path) = card() else {
            skip(test, "the kernel module vgem is not loaded: tests/guests/dmabuf runs it");
            return None;
        };
        Some(Self(open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap()))
    }

    /// Makes a buffer of this many pages.
    pub fn make(&self, pages: u32) -> Buffer {
        #[repr(C)]
        #[derive(Default)]
        struct Create {
            height: u32,
            width: u32,
            bpp: u32,
            flags: u32,
            handle: u32,
            pitch: u32,
            size: u64,
        }
        let mut create = Create { height: pages, width: 1024, bpp: 32, ..Create::default() };
        self.call::<{ opcode::read_write::<Create>(b'd', 0xb2) }, _>(&mut create);
        Buffer { handle: create.handle, size: create.size }
    }

    /// Exports a buffer as a dma-buf, for reading only or also for writing.
    pub fn export(&self, buffer: Buffer, is_writable: bool) -> OwnedFd {
        let flags = OFlags::CLOEXEC.union(if is_writable { OFlags::RDWR } else { OFlags::empty() });
        let mut prime = Prime { handle: buffer.handle, flags: flags.bits(), fd: -1 };
        self.call::<{ opcode::read_write::<Prime>(b'd', 0x2d) }, _>(&mut prime);
        // SAFETY: the driver has just opened this descriptor for this process.
        unsafe { OwnedFd::from_raw_fd(prime.fd) }
    }

    /// Imports a dma-buf, as a device of another process does.
    pub fn import(&self, dma_buf: BorrowedFd<'_>, size: u64) -> Buffer {
        let mut prime = Prime { handle: 0, flags: 0, fd: dma_buf.as_raw_fd() };
        self.call::<{ opcode::read_write::<Prime>(b'd', 0x2e) }, _>(&mut prime);
        Buffer { handle: prime.handle, size }
    }

    /// Attaches a fence of work that writes the buffer, or only reads it. The driver signals it
    /// after ten seconds.
    pub fn attach(&self, buffer: Buffer, writes: bool) -> Fence<'_> {
        let mut attach = [buffer.handle, u32::from(writes), 0, 0];
        self.call::<{ opcode::read_write::<[u32; 4]>(b'd', 0x41) }, _>(&mut attach);
        Fence { device: self, number: attach[2] }
    }

    /// Maps a buffer by the device, for writing, whatever the mode of the dma-buf was.
    pub fn map(&self, buffer: Buffer) -> Bytes {
        #[repr(C)]
        struct Map {
            handle: u32,
            pad: u32,
            offset: u64,
        }
        let mut map = Map { handle: buffer.handle, pad: 0, offset: 0 };
        self.call::<{ opcode::read_write::<Map>(b'd', 0xb3) }, _>(&mut map);
        Bytes::map(self.0.as_fd(), buffer.size, map.offset).unwrap()
    }

    fn call<const OPCODE: Opcode, T>(&self, parameter: &mut T) {
        // SAFETY: the driver reads and writes one `T`.
        unsafe { ioctl(&self.0, Updater::<OPCODE, T>::new(parameter)) }.unwrap();
    }
}

/// `struct drm_prime_handle`.
#[repr(C)]
struct Prime {
    handle: u32,
    flags: u32,
    fd: i32,
}

/// Fence on a buffer.
pub struct Fence<'a> {
    device: &'a Vgem,
    number: u32,
}

impl Fence<'_> {
    /// Signals it: the device's work is done.
    pub fn signal(self) {
        let mut signal = [self.number, 0];
        self.device.call::<{ opcode::write::<[u32; 2]>(b'd', 0x42) }, _>(&mut signal);
    }
}

/// Makes a dma-buf of a memory file, or reports the test as skipped.
pub fn udmabuf(test: &str, size: u64) -> Option<(OwnedFd, Bytes)> {
    #[repr(C)]
    struct Create {
        memfd: u32,
        flags: u32,
        offset: u64,
        size: u64,
    }
    let device = match open("/dev/udmabuf", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Ok(device) => device,
        Err(error) => {
            skip(test, &format!("/dev/udmabuf: {error}"));
            return None;
        }
    };
    let memory = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&memory, size).unwrap();
    fcntl_add_seals(&memory, SealFlags::SHRINK).unwrap();
    let create = Create { memfd: memory.as_raw_fd().cast_unsigned(), flags: 1, offset: 0, size };
    let number = opcode::write::<Create>(b'u', 0x42);
    // SAFETY: the driver reads a `Create`, and returns a new descriptor for this process.
    let fd = unsafe { libc::ioctl(device.as_raw_fd(), number as _, &raw const create) };
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    let bytes = Bytes::map(memory.as_fd(), size, 0).unwrap();
    // SAFETY: as above.
    Some((unsafe { OwnedFd::from_raw_fd(fd) }, bytes))
}

/// The card of `vgem` among those of the machine.
fn card() -> Option<PathBuf> {
    let cards = fs::read_dir("/sys/class/drm").ok()?.filter_map(Result::ok).map(|entry| entry.file_name());
    let is_vgem = |name: &str| {
        let device = Path::new("/sys/class/drm").join(name);
        name.starts_with("card")
            && fs::canonicalize(device).is_ok_and(|path| path.to_string_lossy().contains("vgem"))
    };
    let name = cards.filter_map(|name| name.into_string().ok()).find(|name| is_vgem(name))?;
    Some(Path::new("/dev/dri").join(name))
}

/// A writable mapping.
pub struct Bytes {
    start: NonNull<u8>,
    size: usize,
}

impl Bytes {
    /// Maps a descriptor for writing.
    pub fn map(fd: BorrowedFd<'_>, size: u64, offset: u64) -> rustix::io::Result<Self> {
        let size = size as usize;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let start = unsafe { mmap(std::ptr::null_mut(), size, access, MapFlags::SHARED, fd, offset) }?;
        Ok(Self { start: NonNull::new(start.cast()).unwrap(), size })
    }

    pub fn fill(&self, value: u8) {
        // SAFETY: mapped until it is dropped.
        unsafe { self.start.as_ptr().write_bytes(value, self.size) };
    }

    pub fn holds(&self, value: u8) -> bool {
        // SAFETY: mapped until it is dropped; the test writes it on this thread alone.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.size) }
            .iter()
            .all(|byte| *byte == value)
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        // SAFETY: the owned mapping, which nothing refers to any more.
        unsafe { munmap(self.start.as_ptr().cast(), self.size) }.unwrap();
    }
}
