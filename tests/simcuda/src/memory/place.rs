// SPDX-License-Identifier: MIT OR Apache-2.0

//! Identity of memory between processes: the file that is mapped, and the offset in it.

use std::fmt::{Display, Formatter};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;

/// Start and length of an address range of this process.
pub type Range = (usize, usize);

/// A location in memory. Two processes that map the same memory have the same place for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Device and inode of the mapped file, `None` for memory of this process alone.
    file: Option<(u64, u64)>,
    /// Offset in the file, or the address.
    offset: u64,
}

impl Display for Place {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self.file {
            Some((device, inode)) => write!(f, "{device:x}.{inode:x}:{:x}", self.offset),
            None => write!(f, "anon:{:x}", self.offset),
        }
    }
}

impl Place {
    /// Returns an offset in a file.
    pub fn in_file(file: impl AsFd, offset: usize) -> Option<Place> {
        let metadata = |fd: BorrowedFd<'_>| File::from(fd.try_clone_to_owned()?).metadata();
        let metadata = metadata(file.as_fd()).ok()?;
        Some(Place { file: Some((metadata.dev(), metadata.ino())), offset: offset as u64 })
    }

    /// Returns an address in memory that belongs to this process alone.
    pub fn anonymous(address: usize) -> Place {
        Place { file: None, offset: address as u64 }
    }

    pub fn plus(self, bytes: usize) -> Place {
        Place { offset: self.offset + bytes as u64, ..self }
    }
}

/// Returns the place of host memory that the driver may not know, and how many bytes follow it
/// there; `None` for an address that is not mapped.
pub fn of_host(address: usize) -> Option<(Place, usize)> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let hex = |text: &str| usize::from_str_radix(text, 16).ok();
    maps.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let (from, to) = words.next()?.split_once('-')?;
        let (from, to) = (hex(from)?, hex(to)?);
        if !(from..to).contains(&address) {
            return None;
        }
        let (rights, offset) = (words.next()?, hex(words.next()?)?);
        let (major, minor) = words.next()?.split_once(':')?;
        let device = libc::makedev(hex(major)? as u32, hex(minor)? as u32);
        let inode: u64 = words.next()?.parse().ok()?;
        // A private mapping shares no writes.
        let place = if inode == 0 || !rights.ends_with('s') {
            Place::anonymous(address)
        } else {
            Place { file: Some((device, inode)), offset: (offset + address - from) as u64 }
        };
        Some((place, to - address))
    })
}
