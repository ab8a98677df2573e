// SPDX-License-Identifier: MIT OR Apache-2.0

//! The lock that owns a stream's name.

use super::process_number;
use rustix::{
    fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, Stat, flock, fstat, ftruncate, openat, statat},
    io::{Errno, pread, pwrite},
    process::geteuid,
};
use std::{
    ffi::OsStr,
    io,
    os::fd::{BorrowedFd, OwnedFd},
};

/// Ownership of a stream's name, held until it is dropped or the process ends.
///
/// The process that took the name unlocks the file when it drops this; its forked children do not.
/// If that process ends without dropping it, children with a copy of the descriptor keep the name
/// (flock(2)).
///
/// The lock file stays: if it were removed, two processes could each hold a lock on a file of that
/// name.
#[derive(Debug)]
#[must_use = "dropping the lock gives the name up"]
pub struct NameLock {
    file: OwnedFd,
    process: u64,
}

/// The reason why a name could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum NameTaken {
    /// Another process holds it.
    #[error("held by {0}")]
    By(String),
    /// The lock file could not be opened or locked.
    #[error(transparent)]
    Io(io::Error),
}

impl NameLock {
    /// Locks the file `name` of a folder, which is created if it is missing. Does not wait.
    ///
    /// The file may have been planted by another user: anything but a regular file of this user
    /// with a single name is an error. It is written only once the lock is held.
    ///
    /// # Errors
    /// [`NameTaken`]: another process holds the lock, or the file is not safe to use.
    pub fn take(folder: BorrowedFd<'_>, name: &OsStr) -> Result<Self, NameTaken> {
        let failed = |cause: io::Error| {
            let text = format!("cannot lock {}: {cause}", name.display());
            NameTaken::Io(io::Error::new(cause.kind(), text))
        };
        let invalid =
            |text: String| failed(io::Error::new(io::ErrorKind::AlreadyExists, format!("{text}; remove it")));
        // NONBLOCK: opening a FIFO would wait for its other end.
        let flags = OFlags::RDWR
            | OFlags::CREATE
            | OFlags::CLOEXEC
            | OFlags::NOFOLLOW
            | OFlags::NONBLOCK
            | OFlags::NOCTTY;
        loop {
            let file = match openat(folder, name, flags, Mode::RUSR | Mode::WUSR) {
                Ok(file) => file,
                Err(Errno::LOOP) => return Err(invalid("it is a symbolic link".into())),
                Err(error) => return Err(failed(error.into())),
            };
            let found = fstat(&file).map_err(|error| failed(error.into()))?;
            if let Some(text) = problem(&found) {
                return Err(invalid(text));
            }
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => {
                    let mut text = [0; 128];
                    let len = pread(&file, &mut text, 0).unwrap_or(0);
                    let holder = String::from_utf8_lossy(&text[..len]).trim().to_owned();
                    return Err(NameTaken::By(if holder.is_empty() {
                        "another process".into()
                    } else {
                        holder
                    }));
                }
                Err(error) => return Err(failed(error.into())),
            }
            let lock = Self { file, process: process_number() };
            // A file that was removed before it was locked does not own the name.
            if lock.is_at(folder, name) {
                let holder = format!("{} (pid {})\n", super::process_name(), std::process::id());
                ftruncate(&lock.file, 0)
                    .and_then(|()| pwrite(&lock.file, holder.as_bytes(), 0))
                    .map_err(|error| failed(error.into()))?;
                return Ok(lock);
            }
        }
    }

    /// Returns whether the locked file still has that name. If not, another process can lock the
    /// name, too.
    pub fn is_at(&self, folder: BorrowedFd<'_>, name: &OsStr) -> bool {
        let there = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
        match (fstat(&self.file), there) {
            (Ok(ours), Ok(there)) => (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino),
            _ => false,
        }
    }
}

impl Drop for NameLock {
    fn drop(&mut self) {
        if self.process == process_number() {
            // Closing the file unlocks it as well, unless a child has a copy.
            let _ = flock(&self.file, FlockOperation::NonBlockingUnlock);
        }
    }
}

/// Returns the reason why a file cannot be locked, if there is one.
fn problem(file: &Stat) -> Option<String> {
    let own = geteuid().as_raw();
    if FileType::from_raw_mode(file.st_mode) != FileType::RegularFile {
        Some("it is not a plain file".into())
    } else if file.st_uid != own {
        Some(format!("it belongs to user {}, and this process runs as user {own}", file.st_uid))
    } else if file.st_nlink > 1 {
        Some("it has another name as well (hard link)".into())
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use frameshare_process::testing::in_child;
    use rustix::{
        fs::{CWD, mkfifoat},
        io::dup,
    };
    use std::{
        fs::{self, File},
        os::{fd::AsFd, unix::fs::symlink},
    };

    fn folder() -> (tempfile::TempDir, File) {
        let folder = tempfile::tempdir().unwrap();
        let opened = File::open(folder.path()).unwrap();
        (folder, opened)
    }

    #[test]
    fn second_holder_of_name_is_refused_with_pid() {
        let (_folder, opened) = folder();
        let take = || NameLock::take(opened.as_fd(), "cam0.sock.lock".as_ref());
        let held = take().unwrap();
        let error = take().unwrap_err().to_string();
        assert!(error.contains(&format!("pid {}", std::process::id())), "{error}");
        drop(held);
        assert!(take().is_ok());
    }

    /// Each child has a copy, between fork(2) and execve(2) or for its life.
    #[test]
    fn forked_child_neither_keeps_nor_gives_up_the_name() {
        let (_folder, opened) = folder();
        let take = || NameLock::take(opened.as_fd(), "cam0.sock.lock".as_ref());
        let held = take().unwrap();
        let dropped_copy = || drop(NameLock { file: dup(&held.file).unwrap(), process: held.process });
        assert_eq!(in_child(|| (dropped_copy(), true).1), Some(true));
        assert!(matches!(take(), Err(NameTaken::By(_))), "the child has unlocked it");
        // As a forked child has one.
        let _copy = dup(&held.file).unwrap();
        drop(held);
        assert!(take().is_ok());
    }

    #[test]
    fn lock_file_placed_by_others_is_refused_and_kept() {
        let (folder, opened) = folder();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("victim"), "precious").unwrap();
        symlink(path("victim"), path("symlink")).unwrap();
        symlink(path("missing"), path("dangling")).unwrap();
        fs::hard_link(path("victim"), path("hardlink")).unwrap();
        mkfifoat(CWD, path("fifo"), Mode::RUSR | Mode::WUSR).unwrap();
        fs::create_dir(path("folder")).unwrap();
        fs::write(path("foreign"), "precious").unwrap();
        let mut cases = vec!["symlink", "dangling", "hardlink", "fifo", "folder"];
        if geteuid().is_root() {
            std::os::unix::fs::chown(path("foreign"), Some(65534), None).unwrap();
            cases.push("foreign");
        }
        for case in cases {
            let error = NameLock::take(opened.as_fd(), case.as_ref()).unwrap_err().to_string();
            assert!(error.contains(case), "{case}: {error}");
        }
        assert!(!path("missing").exists());
        for kept in ["victim", "foreign"] {
            assert_eq!(fs::read_to_string(path(kept)).unwrap(), "precious");
        }
    }

    #[test]
    fn removed_lock_file_is_noticed() {
        let (folder, opened) = folder();
        let take = || NameLock::take(opened.as_fd(), "lock".as_ref());
        let held = take().unwrap();
        assert!(held.is_at(opened.as_fd(), "lock".as_ref()));
        fs::remove_file(folder.path().join("lock")).unwrap();
        assert!(!held.is_at(opened.as_fd(), "lock".as_ref()));
        let other = take().unwrap();
        assert!(other.is_at(opened.as_fd(), "lock".as_ref()) && !held.is_at(opened.as_fd(), "lock".as_ref()));
    }
}
