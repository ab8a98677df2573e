//! Readers cannot change frames: the kernel refuses every way that there is.
//!
//! # Safety
//!
//! Mappings are made where the kernel likes, one byte of a writable one is written by its address, and they are given
//! back before anybody else knows of them.
#![allow(unsafe_code)]

use crate::{Stream, saw_everything};
use frameshare::Policy;
use frameshare_protocol::message::ToReader;
use frameshare_tests::raw::{self, PATIENCE, Page, RawReader};
use rustix::{
    fs::{FallocateFlags, Mode, OFlags, fallocate, ftruncate, open},
    io::pwrite,
    mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mprotect, munmap},
};
use std::{
    ffi::c_void,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::atomic::Ordering,
};

const PAGE: usize = 4096;
/// Bytes of a frame, which is no whole number of pages.
const SIZE: usize = 20_000;

type Outcome = rustix::io::Result<()>;
type Way = fn(BorrowedFd<'_>) -> Outcome;

/// Maps the first page, and does something with it.
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

/// Every way to change what a memory file holds; those at the end leave nothing of it.
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
    ("a longer file", |fd| ftruncate(fd, 1 << 20)),
    ("a shorter file", |fd| ftruncate(fd, 0)),
];

fn ways_that_work(fd: BorrowedFd<'_>) -> Vec<&'static str> {
    WAYS.into_iter().filter(|(_, way)| way(fd).is_ok()).map(|(name, _)| name).collect()
}

/// Negative control: without seals, every one of the ways works.
#[test]
fn what_is_not_sealed_can_be_changed_in_all_these_ways() {
    let open = raw::memfd(2 * PAGE as u64).unwrap();
    assert_eq!(ways_that_work(open.as_fd()), WAYS.map(|(name, _)| name));
}

#[test]
fn readers_cannot_change_what_they_are_given_in_any_way() {
    let stream = Stream::start(&format!("--fps 200 --readers 1 --size {SIZE}"));
    let witness = stream.read("--policy lossless");
    let path = stream.stage.path("frameshare/s.sock");
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
        // Nor is there anything in it but frames.
        let words = Page::read_only(slot, SIZE.next_multiple_of(PAGE)).unwrap();
        assert!(words[SIZE.div_ceil(8)..].iter().all(|word| word.load(Ordering::Relaxed) == 0));
    }
    // The order in which they come: queue, claims (which is theirs to write), metadata, wake socket.
    for (what, fd) in [("the queue", intruder.fds.remove(0)), ("the metadata", intruder.fds.remove(1))] {
        assert_eq!(ways_that_work(fd.as_fd()), Vec::<&str>::new(), "{what}");
    }
    drop(intruder);
    let (outcome, _stage) = stream.end();
    saw_everything(witness, &outcome.summary()["published"]);
}
