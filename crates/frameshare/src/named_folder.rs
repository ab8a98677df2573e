// SPDX-License-Identifier: MIT OR Apache-2.0

//! The folder of a user's named streams.
//!
//! It is `$XDG_RUNTIME_DIR/frameshare`, or `/run/frameshare` if that variable is not set to an
//! absolute path. If users share that folder, which then is sticky like /tmp, each has a folder of
//! their own in it, named by the user's number. Other users may enter the folder of named streams,
//! and must not be able to write to it.

use crate::sys::{is_own_or_root, note_on_user};
use rustix::{
    fs::{FileType, Mode, OFlags, Stat, fstat, lstat, mkdirat, open, openat},
    io::Errno,
    process::geteuid,
};
use std::{
    env, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

/// A user's folder of named streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamedFolder {
    path: PathBuf,
    user: u32,
    /// The folder above, if users share it.
    shared: Option<PathBuf>,
}

impl NamedFolder {
    /// The folder of this process's user.
    pub fn own() -> Self {
        Self::of(geteuid().as_raw())
    }

    /// The folder of a user. Another user's differs from the own one where users share a folder.
    pub fn of(user: u32) -> Self {
        let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
        Self::at(runtime.unwrap_or_else(|| "/run".into()).join("frameshare"), user)
    }

    pub fn at(folder: PathBuf, user: u32) -> Self {
        if lstat(&folder).is_ok_and(|found| is_shared(&found)) {
            Self { path: folder.join(user.to_string()), user, shared: Some(folder) }
        } else {
            Self { path: folder, user, shared: None }
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the folder of this process's user if it is missing, for that user alone, and checks
    /// it.
    ///
    /// # Errors
    /// The error of a system call, or a text that names the folder, its owner or mode.
    pub fn prepare(&self) -> io::Result<()> {
        let own = geteuid().as_raw();
        if self.shared.is_some() && self.user != own {
            return Err(refusal(format!(
                "{} is the folder of user {}, and this process runs as user {own}",
                self.path.display(),
                self.user
            )));
        }
        let parent = self.open_parent()?;
        match mkdirat(&parent, self.name(), Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        self.check_in(&parent, own)
    }

    /// Checks that the folder is its user's where other users could have made it. A missing one is
    /// valid.
    ///
    /// # Errors
    /// As for [`NamedFolder::prepare`].
    pub fn check(&self) -> io::Result<()> {
        if self.shared.is_none() {
            return Ok(());
        }
        match self.open_parent().and_then(|parent| self.check_in(&parent, self.user)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    /// Checks the folder as [`NamedFolder::prepare`] does, without making it.
    ///
    /// # Errors
    /// As for [`NamedFolder::prepare`]; not found if it is missing.
    pub fn inspect(&self) -> io::Result<()> {
        self.check_in(&self.open_parent()?, self.user)
    }

    fn name(&self) -> &Path {
        self.path.file_name().map_or(Path::new("."), Path::new)
    }

    /// Opens the folder above. If users share it, only the owner of an entry can replace it.
    fn open_parent(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Some(shared) = &self.shared else {
            let parent = self.path.parent().unwrap_or(Path::new("/"));
            return Ok(open(parent, flags, Mode::empty())?);
        };
        let parent = open(shared, flags | OFlags::NOFOLLOW, Mode::empty())?;
        if is_shared(&fstat(&parent)?) {
            Ok(parent)
        } else {
            Err(refusal(format!("{} is no longer a sticky folder of this user or root", shared.display())))
        }
    }

    /// Checks type, owner and mode, without following links.
    fn check_in(&self, parent: &OwnedFd, owner: u32) -> io::Result<()> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = fstat(openat(parent, self.name(), flags, Mode::empty())?)?;
        match self.problem(&found, owner) {
            None => Ok(()),
            Some(problem) => Err(refusal(format!("{} {problem}", self.path.display()))),
        }
    }

    fn problem(&self, found: &Stat, owner: u32) -> Option<String> {
        let (uid, mode) = (found.st_uid, found.st_mode & 0o7777);
        let remedy = match &self.shared {
            Some(_) => "that user or root can remove it",
            None => {
                "set XDG_RUNTIME_DIR to a folder of this user, or let users share this one \
                 (root's, with chmod 1777)"
            }
        };
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Directory if uid != owner => {
                let note = note_on_user(uid, "this");
                Some(format!("belongs to user {uid}{note}, and this stream to user {owner}: {remedy}"))
            }
            FileType::Directory if mode & 0o022 != 0 => {
                Some(format!("can be written by other users (mode 0{mode:o}): run chmod go-w on it"))
            }
            FileType::Directory => None,
            FileType::Symlink => Some(format!("is a symbolic link of user {uid}, and not a folder")),
            _ => Some(format!("is a file of user {uid}, and not a folder")),
        }
    }
}

/// Returns whether users share a folder: others may write to it, it is sticky, and its owner, who
/// can replace everything in it, is trusted.
fn is_shared(found: &Stat) -> bool {
    FileType::from_raw_mode(found.st_mode) == FileType::Directory
        && found.st_mode & 0o1000 != 0
        && found.st_mode & 0o022 != 0
        && is_own_or_root(found.st_uid)
}

fn refusal(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs,
        os::unix::fs::{PermissionsExt, symlink},
    };

    fn own_at(path: &Path) -> NamedFolder {
        NamedFolder::at(path.to_owned(), geteuid().as_raw())
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn folder_is_refused_if_others_can_write() {
        let runtime = tempfile::tempdir().unwrap();
        let path = runtime.path().join("frameshare");
        own_at(&path).prepare().unwrap();
        assert_eq!(mode(&path), 0o700);
        for private in [0o700, 0o755, 0o750, 0o711, 0o1755, 0o2755] {
            set_mode(&path, private);
            own_at(&path).prepare().unwrap();
        }
        for open in [0o770, 0o775, 0o777, 0o757, 0o2775] {
            set_mode(&path, open);
            let error = own_at(&path).prepare().unwrap_err().to_string();
            assert!(error.contains(&format!("{open:o}")) && error.contains("go-w"), "{error}");
        }
    }

    #[test]
    fn shared_folder_has_private_folder_for_each_user() {
        let runtime = tempfile::tempdir().unwrap();
        let (shared, own) = (runtime.path().join("frameshare"), geteuid().as_raw());
        fs::create_dir(&shared).unwrap();
        for open in [0o1777, 0o1775, 0o1770] {
            set_mode(&shared, open);
            let folder = own_at(&shared);
            assert_eq!(folder.path(), shared.join(own.to_string()));
            folder.check().unwrap();
            folder.prepare().unwrap();
            assert_eq!(mode(folder.path()), 0o700);
            folder.check().unwrap();
            set_mode(folder.path(), 0o777);
            for error in [folder.prepare().unwrap_err(), folder.check().unwrap_err()] {
                assert!(error.to_string().contains("go-w"), "{error}");
            }
            fs::remove_dir(folder.path()).unwrap();
        }
        let other = NamedFolder::at(shared.clone(), own + 1);
        let error = other.prepare().unwrap_err().to_string();
        assert!(error.contains(&format!("user {}", own + 1)) && !other.path().exists(), "{error}");
        // Without the sticky bit others could replace the folder.
        let folder = own_at(&shared);
        set_mode(&shared, 0o777);
        let error = folder.prepare().unwrap_err().to_string();
        assert!(error.contains("no longer") && !folder.path().exists(), "{error}");
    }

    #[test]
    fn entry_that_is_no_folder_is_refused() {
        let runtime = tempfile::tempdir().unwrap();
        let at = |name: &str| runtime.path().join(name);
        let (shared, own) = (at("shared"), geteuid().as_raw());
        fs::create_dir(&shared).unwrap();
        set_mode(&shared, 0o1777);
        let victim = at("victim");
        fs::create_dir(&victim).unwrap();
        let user = shared.join(own.to_string());
        for path in [&at("frameshare"), &user] {
            let folder = if *path == user { own_at(&shared) } else { own_at(path) };
            assert_eq!(folder.path(), path);
            let refused = |what: &str| {
                let error = folder.prepare().unwrap_err().to_string();
                assert!(error.contains(what) && error.contains(&format!("user {own}")), "{error}");
                fs::remove_file(path).unwrap();
            };
            symlink(&victim, path).unwrap();
            refused("symbolic link");
            symlink(at("missing"), path).unwrap();
            refused("symbolic link");
            fs::write(path, "").unwrap();
            refused("is a file");
        }
        assert!(!at("missing").exists());
    }
}
