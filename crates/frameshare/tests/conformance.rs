// SPDX-License-Identifier: MIT OR Apache-2.0

//! Conformance: rules for every kind of memory and fence, written once and checked for host memory
//! and for no fence. The GPU kinds are checked by tests/gpu.

use frameshare::{
    FenceKind, MemoryKind,
    fence::{ExporterFence, FenceState, ReaderFence, Signals, none::NoFence},
    memory::{Address, Allocator, Importer, host::Host},
};
use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

/// A kind of memory, with access to its bytes.
struct Memory {
    kind: MemoryKind,
    allocator: Box<dyn Allocator>,
    importer: Box<dyn Importer>,
    read: fn(Address, usize) -> Vec<u8>,
    write: fn(Address, &[u8]),
}

fn host() -> Memory {
    #[expect(unsafe_code, reason = "looking into memory that the test keeps alive")]
    fn read(address: Address, len: usize) -> Vec<u8> {
        let Address::Host(start) = address else { panic!("host memory has host addresses") };
        // SAFETY: the callers below hold the allocation or the import, which are at least `len`
        // long.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), len) }.to_vec()
    }
    #[expect(unsafe_code, reason = "as above")]
    fn write(address: Address, bytes: &[u8]) {
        let Address::Host(start) = address else { panic!("host memory has host addresses") };
        // SAFETY: as above, and the allocation is writable.
        unsafe { start.as_ptr().copy_from(bytes.as_ptr(), bytes.len()) }
    }
    Memory { kind: MemoryKind::Host, allocator: Box::new(Host), importer: Box::new(Host), read, write }
}

fn content(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|index| (index as u8).wrapping_mul(31) ^ seed).collect()
}

/// Allocates, and returns the handle of an importer.
fn exported(
    memory: &Memory,
    size: u64,
) -> (Arc<dyn frameshare::memory::Allocation>, Vec<u8>, Option<OwnedFd>) {
    let allocation = memory.allocator.allocate(size).unwrap();
    let handle = allocation.handle();
    let fd = handle.fd.map(|fd| fd.try_clone_to_owned().unwrap());
    let bytes = handle.bytes.to_vec();
    (allocation, bytes, fd)
}

fn an_import_shows_what_the_allocation_holds(memory: &Memory) {
    for size in [4096, 8192, 3 << 20] {
        let (allocation, handle, fd) = exported(memory, size);
        assert!(allocation.size() >= size);
        assert_eq!(
            (memory.read)(allocation.address(), size as usize),
            vec![0; size as usize],
            "fresh memory is zero"
        );
        let import = memory.importer.import(size, &handle, fd.as_ref().map(AsFd::as_fd)).unwrap();
        for seed in [1, 2] {
            let expected = content(seed, size as usize);
            (memory.write)(allocation.address(), &expected);
            assert_eq!((memory.read)(import.address(), size as usize), expected);
        }
    }
}

fn an_import_outlives_the_allocation_where_the_kind_promises_it(memory: &Memory) {
    if !matches!(memory.kind, MemoryKind::Host | MemoryKind::Vmm) {
        return;
    }
    let (allocation, handle, fd) = exported(memory, 4096);
    (memory.write)(allocation.address(), &content(7, 4096));
    let import = memory.importer.import(4096, &handle, fd.as_ref().map(AsFd::as_fd)).unwrap();
    drop(allocation);
    assert_eq!((memory.read)(import.address(), 4096), content(7, 4096));
}

fn handles_that_cannot_be_right_are_errors(memory: &Memory) {
    let (_allocation, handle, fd) = exported(memory, 4096);
    let has_fd = fd.is_some();
    let error = memory.importer.import(1 << 39, &handle, fd.as_ref().map(AsFd::as_fd)).unwrap_err();
    assert_eq!(error.kind, memory.kind, "more than there is");
    if has_fd {
        assert!(memory.importer.import(4096, &handle, None).is_err(), "no descriptor");
        let pipe = rustix::pipe::pipe().unwrap();
        assert!(memory.importer.import(4096, &handle, Some(pipe.0.as_fd())).is_err(), "a pipe");
        let file: OwnedFd = tempfile::tempfile().unwrap().into();
        assert!(memory.importer.import(4096, &handle, Some(file.as_fd())).is_err(), "a file");
    }
}

fn too_much_memory_is_an_error(memory: &Memory) {
    let error = memory.allocator.allocate(1 << 50).unwrap_err();
    assert_eq!((error.doing, error.kind), ("allocate", memory.kind));
}

/// A pair of fences of one kind.
struct Fences {
    signals: Signals,
    exporter: Box<dyn ExporterFence>,
    reader: Box<dyn ReaderFence>,
    /// Ends a lease on the reader's side, by the means of its fence.
    release: fn(&dyn ReaderFence, usize, u64),
}

fn signals_arrive_in_any_order_of_entries(fences: &mut Fences) {
    for (entry, sequence) in [(2, 1), (0, 2), (1, 3)] {
        fences.exporter.signal_ready(entry, sequence, &mut fences.signals).unwrap();
        fences.signals.flush().unwrap();
    }
    for (entry, sequence) in [(1, 3), (2, 1), (0, 2)] {
        while fences.reader.poll_ready(entry, sequence).unwrap() == FenceState::Pending {
            std::thread::yield_now();
        }
        (fences.release)(&*fences.reader, entry, sequence);
        while fences.exporter.poll_released(entry, sequence).unwrap() == FenceState::Pending {
            std::thread::yield_now();
        }
    }
}

macro_rules! memory_suite {
    ($($kind:ident: $($rule:ident),+;)+) => { $(mod $kind { $(
        #[test]
        fn $rule() { super::$rule(&super::$kind()); }
    )+ })+ };
}

memory_suite! {
    host:
        an_import_shows_what_the_allocation_holds,
        an_import_outlives_the_allocation_where_the_kind_promises_it,
        handles_that_cannot_be_right_are_errors,
        too_much_memory_is_an_error;
}

#[test]
fn no_fence_is_always_ready() {
    let mut fences = Fences {
        signals: Signals::new(None).unwrap(),
        exporter: Box::new(NoFence),
        reader: Box::new(NoFence),
        release: |_, _, _| (),
    };
    assert_eq!((fences.exporter.kind(), fences.reader.kind()), (FenceKind::None, FenceKind::None));
    signals_arrive_in_any_order_of_entries(&mut fences);
}

/// Readers of host memory cannot write it, by any means of Linux; without the seal they could.
mod write_protection {
    use super::*;
    use rustix::{
        fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create},
        mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mprotect, munmap},
    };

    #[expect(unsafe_code, reason = "trying what a reader might try")]
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
    fn readers_cannot_write_slots() {
        let (allocation, _, fd) = exported(&host(), 4096);
        assert_eq!(ways_to_write(&fd.unwrap()), Vec::<&str>::new());
        // The exporter still can.
        (host().write)(allocation.address(), b"x");
    }

    #[test]
    fn without_the_seal_they_could() {
        let unsealed = memfd_create("unsealed", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&unsealed, 4096).unwrap();
        let all = ["pwrite", "reopening", "punching a hole", "mapping", "mprotect", "truncating"];
        assert_eq!(ways_to_write(&unsealed), all);
    }
}
