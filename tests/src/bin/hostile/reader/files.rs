// SPDX-License-Identifier: MIT OR Apache-2.0

//! Attacks by the received memory files.

use super::{Fate, cut_off, join, take, wait_for};
use crate::Result;
use frameshare_protocol::message::ToReader;
use frameshare_tests::raw::{PATIENCE, Page};
use rustix::{
    fs::{FallocateFlags, Mode, OFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, open},
    io::pwrite,
};
use std::{
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
};

const HOLE: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

/// A reader may damage its own claims page: the exporter finds no leases, and no SIGBUS.
pub fn punch_claims(path: &Path) -> Result<Fate> {
    let reader = join(path)?;
    take(&reader)?;
    fallocate(&reader.fds[1], HOLE, 0, 4096)?;
    cut_off(&reader)
}

/// Tries every way to write to the read-only files.
pub fn write_what_is_read(path: &Path) -> Result<Fate> {
    let reader = join(path)?;
    let slot = wait_for("a slot", || match reader.channel.receive(PATIENCE) {
        Ok(Some((packet, fds))) => match ToReader::decode(&packet) {
            Ok(ToReader::Slot { .. }) => fds.into_iter().next(),
            _ => None,
        },
        _ => None,
    })?;
    for (what, fd) in [("queue", &reader.fds[0]), ("metadata", &reader.fds[2]), ("slot", &slot)] {
        cannot_be_written(what, fd)?;
    }
    for fd in [&reader.fds[0], &reader.fds[1], &reader.fds[2], &slot] {
        if ftruncate(fd, 0).is_ok() || ftruncate(fd, 1 << 30).is_ok() {
            return Err("a file can be resized".into());
        }
        if fcntl_add_seals(fd, SealFlags::WRITE).is_ok() {
            return Err("a file can be sealed further".into());
        }
    }
    Ok(Fate::Left)
}

fn cannot_be_written(what: &str, fd: &OwnedFd) -> Result<()> {
    let again = open(format!("/proc/self/fd/{}", fd.as_raw_fd()), OFlags::RDWR, Mode::empty());
    let written = [
        Page::writable(fd, 4096).is_ok(),
        pwrite(fd, &[1], 0).is_ok(),
        fallocate(fd, HOLE, 0, 4096).is_ok(),
        again.is_ok_and(|again| pwrite(&again, &[1], 0).is_ok() || Page::writable(&again, 4096).is_ok()),
    ];
    match written {
        [false, false, false, false] => Ok(()),
        _ => Err(format!("the {what} can be written: map, write, punch, reopen: {written:?}").into()),
    }
}
