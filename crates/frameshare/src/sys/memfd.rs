// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory files: creation, seals, and checks of files from peers.

use super::{
    limits::{file_size_limit, total_memory},
    mapping::{Mapping, Words, load_bytes},
};
use rustix::{
    fs::{
        MemfdFlags, SealFlags, SeekFrom, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, memfd_create, seek,
    },
    io::{Errno, pwrite},
};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    thread,
};

/// A memory file is written in steps of this size, some 20 µs each.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
/// File system of memory files (`TMPFS_MAGIC`), unless they are of huge pages.
const TMPFS: u64 = 0x0102_1994;

/// Operations that the seals of a memory file prevent for every process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SealedAgainst {
    /// Changing its size, so that no mapping of it can fault.
    Resizing,
    /// The same until the peer has mapped it, which then seals it against writing, too.
    ResizingSoFar,
    /// Changing its size, and writing except through mappings made before the seal: by `write`, by
    /// new mappings, or by punching holes (`F_SEAL_FUTURE_WRITE`, Linux 5.1).
    ResizingAndWriting,
}

impl SealedAgainst {
    fn flags(self) -> SealFlags {
        let size = SealFlags::SHRINK | SealFlags::GROW;
        match self {
            Self::Resizing => size | SealFlags::SEAL,
            Self::ResizingSoFar => size,
            Self::ResizingAndWriting => size | SealFlags::FUTURE_WRITE | SealFlags::SEAL,
        }
    }
}

/// Maximum number of characters of a stream in the names of its memory files.
const MAX_LABEL: usize = 64;

/// A stream's name in the names of its memory files, which people see in /proc/PID/fd and
/// /proc/PID/maps.
#[derive(Clone, Debug, Default)]
pub struct Label(Arc<str>);

impl Label {
    /// The first 64 characters of a name. Those that stream names do not have become `_`.
    pub fn new(stream: &str) -> Self {
        let is_kept = |character: char| character.is_ascii_alphanumeric() || "._-".contains(character);
        let kept = |character| if is_kept(character) { character } else { '_' };
        Self(stream.chars().take(MAX_LABEL).map(kept).collect::<String>().into())
    }

    /// The name of a memory file of this kind.
    pub(crate) fn file(&self, kind: &str) -> String {
        if self.0.is_empty() { format!("frameshare-{kind}") } else { format!("frameshare-{kind}:{}", self.0) }
    }
}

/// Makes a memory file of `size` zero bytes, all of them allocated, so that lack of memory is an
/// error here instead of a later SIGBUS. `seal` it after mapping it.
///
/// # Errors
/// The error of a system call, such as a lack of memory.
pub fn memfd(name: &str, size: u64) -> io::Result<OwnedFd> {
    // memfds have no size limit of their own: the kernel would allocate page after page until it
    // kills a process.
    if total_memory().is_some_and(|memory| size > memory) {
        return Err(io::Error::new(io::ErrorKind::OutOfMemory, "that is more than the machine's memory"));
    }
    // Beyond this limit a write raises SIGXFSZ, which ends the process (setrlimit(2)).
    if let Some(limit) = file_size_limit().filter(|limit| size > *limit) {
        let text = format!(
            "{size} bytes are more than this process may allocate in one file, {limit} bytes: raise the limit (ulimit -f)"
        );
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    // For SEEK_HOLE the kernel counts a page as data once it was written (see `check_memfd`);
    // writing also allocates it.
    let mut offset = 0;
    while offset < size {
        // Threads that the last publication has woken may wait for this core.
        thread::yield_now();
        let rest = usize::try_from(size - offset).unwrap_or(usize::MAX);
        match pwrite(&fd, &ZEROS[..rest.min(ZEROS.len())], offset) {
            Err(Errno::INTR) => {}
            written => offset += written? as u64,
        }
    }
    Ok(fd)
}

impl SealedAgainst {
    /// Adds the seals.
    ///
    /// # Errors
    /// The error of fcntl(2).
    pub fn seal(self, fd: impl AsFd) -> io::Result<()> {
        Ok(fcntl_add_seals(fd, self.flags())?)
    }
}

/// Checks that a descriptor from a peer is a memory file of at least `size` bytes with the right
/// seals, so that no access to a mapping of it can fault: its pages are allocated and of ordinary
/// size. (Huge pages come from a separate pool, and a hole in them is a SIGBUS once that is empty.)
///
/// # Errors
/// The missing size or seals, or the error of a system call.
pub fn check_memfd(fd: impl AsFd, size: u64, against: SealedAgainst) -> io::Result<()> {
    let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
    let seals = fcntl_get_seals(&fd).map_err(|_| invalid("the descriptor is no memory file".into()))?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err(invalid("the memory file is not sealed against shrinking".into()));
    }
    if against == SealedAgainst::ResizingAndWriting
        && !seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE)
    {
        return Err(invalid("the memory file is not sealed against writing and punching holes".into()));
    }
    let length = u64::try_from(fstat(&fd)?.st_size).unwrap_or(0);
    if length < size {
        return Err(invalid(format!("the memory file has {length} bytes instead of {size}")));
    }
    if fstatfs(&fd)?.f_type as u64 != TMPFS {
        return Err(invalid("the memory file is not made of ordinary pages".into()));
    }
    if size > 0 && first_hole(&fd)? < size {
        return Err(invalid("the memory file has holes".into()));
    }
    Ok(())
}

/// Reads a memory file of a peer that is sealed against writing.
///
/// # Errors
/// Those of [`check_memfd`], and a lack of memory.
pub fn read_memfd(fd: impl AsFd, size: u64) -> io::Result<Vec<u8>> {
    check_memfd(&fd, size, SealedAgainst::ResizingAndWriting)?;
    let len = usize::try_from(size).map_err(|_| io::ErrorKind::OutOfMemory)?;
    // Whole words are mapped; past the file's end the last page reads as zero.
    let words = Words::from(Mapping::read_only(&fd, len.next_multiple_of(8))?);
    Ok(load_bytes(&words, 0, len))
}

/// Returns the offset of the first hole, or the file's length. A hole is filled on its first read,
/// from the reader's memory.
///
/// `st_blocks` is no substitute: it counts blocks behind the range, and behind the file's end.
/// `lseek` with `SEEK_HOLE` goes page by page; on tmpfs a page that was allocated and never written
/// is a hole for it (`mapping_seek_hole_data`, Linux 5.12 to 6.18, and `shmem_seek_hole_data`
/// before), so that [`memfd`] writes each. Swapped pages are data.
fn first_hole(fd: impl AsFd) -> io::Result<u64> {
    Ok(seek(fd, SeekFrom::Hole(0))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{FallocateFlags, fallocate};

    #[test]
    fn label_is_bounded_and_printable() {
        let file = |stream: &str| Label::new(stream).file("slot");
        assert_eq!(file("cam-0.left_1"), "frameshare-slot:cam-0.left_1");
        assert_eq!(file("a b\n/\u{1b}[31mé\0"), "frameshare-slot:a_b____31m__");
        let long = file(&"é".repeat(1000));
        assert_eq!(long.len(), "frameshare-slot:".len() + MAX_LABEL);
        memfd(&long, 4096).unwrap();
    }

    #[test]
    fn faulting_descriptors_are_refused() {
        use SealedAgainst::{Resizing, ResizingAndWriting};
        let problem = |fd: &OwnedFd, size, against| check_memfd(fd, size, against).unwrap_err().to_string();
        let sealed = memfd("test", 4096).unwrap();
        assert!(problem(&sealed, 4096, Resizing).contains("shrinking"));
        Resizing.seal(&sealed).unwrap();
        check_memfd(&sealed, 4096, Resizing).unwrap();
        assert!(problem(&sealed, 4097, Resizing).contains("4096 bytes"));
        assert!(problem(&sealed, 4096, ResizingAndWriting).contains("punching holes"));
        let pipe = rustix::pipe::pipe().unwrap();
        assert!(problem(&pipe.0, 1, Resizing).contains("no memory file"));
        assert!(rustix::fs::ftruncate(&sealed, 0).is_err());

        let sparse = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&sparse, 1 << 30).unwrap();
        ResizingAndWriting.seal(&sparse).unwrap();
        assert!(problem(&sparse, 1 << 30, ResizingAndWriting).contains("holes"));

        // Making the file needs no huge page, and neither does its detection.
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        if let Ok(huge) = memfd_create("test", flags) {
            Resizing.seal(&huge).unwrap();
            assert!(problem(&huge, 0, Resizing).contains("ordinary pages"));
        }
    }

    #[test]
    fn hole_with_blocks_behind_it_is_refused() {
        use SealedAgainst::ResizingAndWriting;
        // Whole pages, of any page size.
        const PAGE: u64 = 64 << 10;
        const SIZE: u64 = 8 * PAGE;
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let is_refused = |fd: &OwnedFd, size| {
            ResizingAndWriting.seal(fd).unwrap();
            check_memfd(fd, size, ResizingAndWriting).is_err_and(|error| error.to_string().contains("holes"))
        };
        let whole = memfd("test", SIZE).unwrap();
        assert!(!is_refused(&whole, SIZE));
        for hole in [0, 1, 3] {
            // The range has a hole, and the file more blocks than the range.
            let longer = memfd("test", SIZE).unwrap();
            fallocate(&longer, punch, hole * PAGE, PAGE).unwrap();
            assert!(is_refused(&longer, 4 * PAGE), "page {hole}");
            // The same with the blocks behind the end of the file.
            let beyond = memfd("test", SIZE).unwrap();
            fallocate(&beyond, FallocateFlags::KEEP_SIZE, SIZE, SIZE).unwrap();
            fallocate(&beyond, punch, hole * PAGE, PAGE).unwrap();
            assert!(is_refused(&beyond, SIZE), "page {hole}");
        }
        // A hole behind the range does not matter.
        let behind = memfd("test", SIZE).unwrap();
        fallocate(&behind, punch, 4 * PAGE, PAGE).unwrap();
        assert!(!is_refused(&behind, 4 * PAGE));
    }

    #[test]
    fn sealed_memory_cannot_be_punched() {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        for (against, refused) in
            [(SealedAgainst::Resizing, false), (SealedAgainst::ResizingAndWriting, true)]
        {
            let file = memfd("test", 8192).unwrap();
            against.seal(&file).unwrap();
            assert_eq!(fallocate(&file, hole, 0, 4096).is_err(), refused, "{against:?}");
        }
    }
}
