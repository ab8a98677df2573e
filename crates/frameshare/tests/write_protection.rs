// SPDX-License-Identifier: MIT OR Apache-2.0

//! Write protection of host memory: readers cannot write slots by any means of Linux, and without
//! the seal they could.

use frameshare::memory::{Address, Allocator as _, host::Host};
use rustix::{
    fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create},
    mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mprotect, munmap},
};
use std::os::fd::OwnedFd;

#[expect(unsafe_code, reason = "trying the accesses of a hostile reader")]
fn ways_to_write(fd: &OwnedFd) -> Vec<&'static str> {
    let mut ways = Vec::new();
    if rustix::io::pwrite(fd, b"x", 0).is_ok() {
        ways.push("pwrite");
    }
    let reopened = std::fs::OpenOptions::new()
        .write(true)
        .open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(fd)));
    if reopened.is_ok_and(|file| rustix::io::pwrite(file, b"x", 0).is_ok()) {
        ways.push("reopening");
    }
    if fallocate(fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 4096).is_ok() {
        ways.push("punching a hole");
    }
    // SAFETY: fresh mappings at addresses of the kernel's choice, unmapped before anything else
    // sees them.
    unsafe {
        if let Ok(start) =
            mmap(std::ptr::null_mut(), 4096, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, fd, 0)
        {
            ways.push("mapping");
            munmap(start, 4096).unwrap();
        }
        let start = mmap(std::ptr::null_mut(), 4096, ProtFlags::READ, MapFlags::SHARED, fd, 0).unwrap();
        if mprotect(start, 4096, MprotectFlags::READ | MprotectFlags::WRITE).is_ok() {
            ways.push("mprotect");
        }
        munmap(start, 4096).unwrap();
    }
    if ftruncate(fd, 0).is_ok() {
        ways.push("truncating");
    }
    ways
}

#[test]
#[expect(unsafe_code, reason = "writing the allocation that the test holds")]
fn slot_descriptor_permits_no_writes() {
    let allocation = Host::default().allocate(4096).unwrap();
    let fd = allocation.handle().fd.unwrap().try_clone_to_owned().unwrap();
    assert_eq!(ways_to_write(&fd), Vec::<&str>::new());
    // The exporter still can write.
    let Address::Host(start) = allocation.address() else { panic!("host memory has host addresses") };
    // SAFETY: the allocation is writable and as long as requested.
    unsafe { start.as_ptr().write(b'x') };
}

#[test]
fn unsealed_descriptor_permits_all_writes() {
    let unsealed = memfd_create("unsealed", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&unsealed, 4096).unwrap();
    let all = ["pwrite", "reopening", "punching a hole", "mapping", "mprotect", "truncating"];
    assert_eq!(ways_to_write(&unsealed), all);
}
