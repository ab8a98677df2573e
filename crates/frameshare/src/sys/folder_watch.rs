// SPDX-License-Identifier: MIT OR Apache-2.0

//! Notifications about the files of a folder that may not exist yet (inotify).

use rustix::{
    fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags},
    io::Errno,
};
use std::{
    ffi::{OsStr, OsString},
    io,
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::PathBuf,
};

/// Room for some events; one with a name of maximum length takes 272 bytes.
const BUFFER: usize = 8192;

/// A watch of a folder, or of its parent while the folder is missing.
#[derive(Debug)]
pub struct FolderWatch {
    path: PathBuf,
    inotify: OwnedFd,
    folder: Option<i32>,
    parent: Option<i32>,
}

/// A change of the folder.
#[derive(Debug, PartialEq, Eq)]
pub enum FolderChange {
    /// A file of this name appeared, disappeared, or was closed after writing.
    File(OsString),
    /// Any file may have changed: the folder appeared or disappeared, or events were lost.
    Everything,
}

impl FolderWatch {
    /// Watches a folder.
    ///
    /// # Errors
    /// The error of inotify(7), such as a lack of watches. A folder that is missing or closed to
    /// this user is none.
    pub fn new(path: PathBuf) -> io::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let mut watch = Self { path, inotify, folder: None, parent: None };
        watch.attach()?;
        Ok(watch)
    }

    /// Returns whether neither the folder nor its parent is watched, so that `changes` has to be
    /// called from time to time.
    pub fn is_blind(&self) -> bool {
        self.folder.is_none() && self.parent.is_none()
    }

    /// Returns the changes since the last call.
    pub fn changes(&mut self) -> Vec<FolderChange> {
        let mut changes = Vec::new();
        if self.is_blind() && self.attach().is_ok() && self.folder.is_some() {
            changes.push(FolderChange::Everything);
        }
        let mut has_lost_folder = false;
        let mut buffer = [MaybeUninit::uninit(); BUFFER];
        let mut events = inotify::Reader::new(&self.inotify, &mut buffer);
        while let Ok(event) = events.next() {
            let (wd, flags) = (Some(event.wd()), event.events());
            let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
            if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                changes.push(FolderChange::Everything);
            } else if wd == self.folder {
                match name {
                    Some(name) => changes.push(FolderChange::File(name.to_owned())),
                    None => has_lost_folder = true,
                }
            } else if wd == self.parent {
                has_lost_folder |= name.is_none() || name == self.path.file_name();
            }
        }
        if has_lost_folder {
            for watch in [self.folder.take(), self.parent.take()].into_iter().flatten() {
                let _ = inotify::remove_watch(&self.inotify, watch);
            }
            let _ = self.attach();
            changes.push(FolderChange::Everything);
        }
        changes
    }

    fn attach(&mut self) -> io::Result<()> {
        let watch = |path: &std::path::Path, flags| match inotify::add_watch(
            &self.inotify,
            path,
            flags | WatchFlags::ONLYDIR,
        ) {
            Ok(watch) => Ok(Some(watch)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => Ok(None),
            Err(error) => Err(io::Error::from(error)),
        };
        // The parent first: the folder may appear in between.
        let itself = WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
        if let Some(parent) = self.path.parent() {
            self.parent = watch(parent, WatchFlags::CREATE | WatchFlags::MOVED_TO | itself)?;
        }
        let files = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVE | WatchFlags::CLOSE_WRITE;
        self.folder = watch(&self.path, files | itself)?;
        if self.folder.is_some()
            && let Some(parent) = self.parent.take()
        {
            let _ = inotify::remove_watch(&self.inotify, parent);
        }
        Ok(())
    }
}

impl AsFd for FolderWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn file(name: &str) -> FolderChange {
        FolderChange::File(name.into())
    }

    #[test]
    fn files_of_folder_are_reported() {
        let folder = tempfile::tempdir().unwrap();
        let mut watch = FolderWatch::new(folder.path().to_owned()).unwrap();
        assert_eq!(watch.changes(), []);
        fs::write(folder.path().join("a"), "").unwrap();
        assert_eq!(watch.changes(), [file("a"), file("a")], "created and closed");
        fs::rename(folder.path().join("a"), folder.path().join("b")).unwrap();
        fs::remove_file(folder.path().join("b")).unwrap();
        assert_eq!(watch.changes(), [file("a"), file("b"), file("b")]);
    }

    #[test]
    fn folder_that_comes_and_goes_is_reported() {
        let outer = tempfile::tempdir().unwrap();
        let parent = outer.path().join("parent");
        let folder = parent.join("folder");
        let mut watch = FolderWatch::new(folder.clone()).unwrap();
        assert!(watch.is_blind());
        fs::create_dir(&parent).unwrap();
        assert_eq!(watch.changes(), []);
        assert!(!watch.is_blind());
        for _ in 0..3 {
            fs::write(parent.join("other"), "").unwrap();
            assert_eq!(watch.changes(), []);
            fs::create_dir(&folder).unwrap();
            assert_eq!(watch.changes(), [FolderChange::Everything]);
            fs::write(folder.join("a"), "").unwrap();
            assert!(watch.changes().contains(&file("a")));
            fs::remove_dir_all(&folder).unwrap();
            assert!(watch.changes().contains(&FolderChange::Everything));
        }
        fs::create_dir(&folder).unwrap();
        watch.changes();
        fs::rename(&folder, parent.join("moved")).unwrap();
        assert!(watch.changes().contains(&FolderChange::Everything));
        fs::write(parent.join("moved/a"), "").unwrap();
        assert_eq!(watch.changes(), []);
        fs::remove_dir_all(&parent).unwrap();
        watch.changes();
        assert!(watch.is_blind());
    }
}
