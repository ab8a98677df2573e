// SPDX-License-Identifier: MIT OR Apache-2.0

//! Readers cannot change frames: the kernel refuses every means.
//!
//! # Safety
//!
//! Mappings are made at addresses of the kernel's choice, one byte of a writable one is written by
//! its address, and they are unmapped before any other code knows of them.
#![allow(unsafe_code)]

use crate::{Stream, assert_all_read, is_root};
use frameshare::Policy;
use frameshare_protocol::message::ToReader;
use frameshare_tests::{
    process::TestRun,
    raw::{self, PATIENCE, Page, RawReader},
    skip::skip,
};
use rustix::{
    fs::{FallocateFlags, Mode, OFlags, fallocate, ftruncate, open},
    io::pwrite,
    ioctl::opcode,
    mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mprotect, munmap},
    process::{Gid, Uid},
    thread::{set_thread_res_gid, set_thread_res_uid},
};
use std::{
    ffi::c_void,
    fs::File,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    path::Path,
    sync::atomic::Ordering,
    thread,
};

const PAGE: usize = 4096;
/// Size of a frame in bytes, which is no whole number of pages.
const SIZE: usize = 20_000;

type Outcome = rustix::io::Result<()>;
type Way = fn(BorrowedFd<'_>) -> Outcome;

/// Maps the first page, and applies `change` to it.
fn mapped(fd: BorrowedFd<'_>, access: ProtFlags, change: impl FnOnce(*mut c_void) -> Outcome) -> Outcome {
    // SAFETY: see the module.
    unsafe {
        let start = mmap(std::ptr::null_mut(), PAGE, access, MapFlags::SHARED, fd, 0)?;
        let outcome = change(start);
        munmap(start, PAGE)?;
        outcome
    }
}

fn write_first(start: *mut c_void) -> Outcome {
    // SAFETY: see the module.
    unsafe { start.cast::<u8>().write_volatile(0xff) };
    Ok(())
}

fn reopened(fd: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// All means to change a memory file; those at the end destroy its content.
const WAYS: [(&str, Way); 10] = [
    ("a writable mapping", |fd| mapped(fd, ProtFlags::READ | ProtFlags::WRITE, write_first)),
    ("mprotect of a read-only mapping", |fd| {
        mapped(fd, ProtFlags::READ, |start| {
            // SAFETY: see the module.
            unsafe { mprotect(start, PAGE, MprotectFlags::READ | MprotectFlags::WRITE)? };
            write_first(start)
        })
    }),
    ("pwrite", |fd| pwrite(fd, &[0xff], 0).map(|_| ())),
    ("a writable mapping of the reopened file", |fd| {
        mapped(reopened(fd)?.as_fd(), ProtFlags::READ | ProtFlags::WRITE, write_first)
    }),
    ("pwrite to the reopened file", |fd| pwrite(reopened(fd)?, &[0xff], 0).map(|_| ())),
    ("MADV_REMOVE", |fd| {
        // SAFETY: see the module.
        let remove = |start| unsafe { madvise(start, PAGE, Advice::LinuxRemove) };
        mapped(fd, ProtFlags::READ | ProtFlags::WRITE, remove)
            .or_else(|_| mapped(fd, ProtFlags::READ, remove))
    }),
    ("a hole", |fd| fallocate(fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, PAGE as u64)),
    ("a hole in the reopened file", |fd| {
        fallocate(reopened(fd)?, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, PAGE as u64)
    }),
    ("a longer file", |fd| ftruncate(fd, 1 << 30)),
    ("a shorter file", |fd| ftruncate(fd, 0)),
];

fn ways_that_work(fd: BorrowedFd<'_>) -> Vec<&'static str> {
    WAYS.into_iter().filter(|(_, way)| way(fd).is_ok()).map(|(name, _)| name).collect()
}

/// Negative control: without seals, every one of the ways works.
#[test]
fn unsealed_memory_is_writable_by_all_means() {
    let open = raw::memfd(2 * PAGE as u64).unwrap();
    assert_eq!(ways_that_work(open.as_fd()), WAYS.map(|(name, _)| name));
}

#[test]
fn reader_cannot_change_received_memory() {
    let stream = Stream::start(&format!("--fps 200 --readers 1 --size {SIZE}"));
    let witness = stream.read("--policy lossless");
    let path = stream.run.path("frameshare/s.sock");
    let mut intruder = RawReader::join(&path, raw::hello(Policy::Latest, 4)).unwrap();
    let mut slots = Vec::new();
    while slots.len() < 3 {
        let (packet, fds) = intruder.channel.receive(PATIENCE).unwrap().expect("the exporter is there");
        if let Ok(ToReader::Slot { .. }) = ToReader::decode(&packet) {
            slots.extend(fds);
        }
    }
    for slot in &slots {
        assert_eq!(ways_that_work(slot.as_fd()), Vec::<&str>::new(), "a slot");
        // The slot contains nothing but frames.
        let words = Page::read_only(slot, SIZE.next_multiple_of(PAGE)).unwrap();
        assert!(words[SIZE.div_ceil(8)..].iter().all(|word| word.load(Ordering::Relaxed) == 0));
    }
    // In order: queue, claims (which the reader may write), metadata, wake-up socket.
    for (what, fd) in [("the queue", intruder.fds.remove(0)), ("the metadata", intruder.fds.remove(1))] {
        assert_eq!(ways_that_work(fd.as_fd()), Vec::<&str>::new(), "{what}");
    }
    drop(intruder);
    let (outcome, _run) = stream.end();
    assert_all_read(witness, &outcome.summary()["published"]);
}

/// Parameter of `UDMABUF_CREATE` (linux/udmabuf.h).
#[repr(C)]
struct Create {
    memfd: i32,
    flags: u32,
    offset: u64,
    size: u64,
}

/// Writes into a memory file through a dma-buf of its first 64 KiB, whole pages everywhere.
fn write_through_udmabuf(device: &File, memory: BorrowedFd<'_>) -> std::io::Result<()> {
    let request = Create { memfd: memory.as_raw_fd(), flags: 1, offset: 0, size: 64 << 10 };
    let number = opcode::write::<Create>(b'u', 0x42);
    // SAFETY: the driver reads a `Create`; the result is a descriptor of this process only.
    let buffer = unsafe {
        match libc::ioctl(device.as_raw_fd(), number as _, &raw const request) {
            fd if fd >= 0 => OwnedFd::from_raw_fd(fd),
            _ => return Err(std::io::Error::last_os_error()),
        }
    };
    Ok(mapped(buffer.as_fd(), ProtFlags::READ | ProtFlags::WRITE, write_first)?)
}

/// The attacker has another user's identity, and a device that its user may open.
#[test]
fn other_user_cannot_write_slots_through_udmabuf() {
    const NAME: &str = "other_user_cannot_write_slots_through_udmabuf";
    if !is_root(NAME) {
        return;
    }
    let device = Path::new("/dev/udmabuf");
    if !device.exists() {
        skip(&format!("faults/{NAME}"), "this machine has no /dev/udmabuf");
        return;
    }
    let device = File::options().read(true).write(true).open(device).unwrap();
    // Negative control: memory that is not sealed against writing.
    let open = raw::memfd(64 << 10).unwrap();
    rustix::fs::fcntl_add_seals(&open, rustix::fs::SealFlags::SHRINK).unwrap();
    write_through_udmabuf(&device, open.as_fd()).unwrap();

    let run = TestRun::new();
    run.open_to_others();
    let mut exporter = run.peer(
        "export --socket s.sock --frames 100000000 --fps 200 --size 65536 --readers 0 --socket-mode 666 --allowed-uids 65534",
    );
    exporter.wait_for("open");
    let path = run.path("s.sock");
    // Identities belong to threads on Linux; the other tests keep theirs.
    let attack = thread::spawn(move || {
        let (user, group) = (Uid::from_raw(65534), Gid::from_raw(65534));
        set_thread_res_gid(group, group, group).unwrap();
        set_thread_res_uid(user, user, user).unwrap();
        let intruder = RawReader::join(&path, raw::hello(Policy::Latest, 4)).ok()?;
        loop {
            let (packet, fds) = intruder.channel.receive(PATIENCE).unwrap().expect("the exporter is there");
            if let (Ok(ToReader::Slot { .. }), Some(slot)) = (ToReader::decode(&packet), fds.first()) {
                return Some(write_through_udmabuf(&device, slot.as_fd()));
            }
        }
    });
    match attack.join().unwrap() {
        Some(outcome) => {
            let error = outcome.expect_err("a slot was written");
            eprintln!("udmabuf: a slot cannot be written ({error})");
        }
        None => {
            let refused = exporter.wait_for("refused");
            let why = refused["why"].as_str().unwrap();
            assert!(why.contains("/dev/udmabuf"), "{refused}");
            eprintln!("udmabuf: refused: {why}");
        }
    }
}
