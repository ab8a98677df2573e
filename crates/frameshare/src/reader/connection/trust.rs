// SPDX-License-Identifier: MIT OR Apache-2.0

//! The users that an exporter may run as.

use crate::{Endpoint, sys::is_own_or_root};
use rustix::{
    fs::{CWD, FileType, lstat, readlinkat},
    io::Errno,
    process::geteuid,
};
use std::{
    collections::VecDeque,
    env,
    ffi::OsString,
    fmt, io,
    os::unix::ffi::OsStringExt,
    path::{Component, Path, PathBuf},
};

/// The users whose exporter a reader takes frames from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TrustedUsers {
    /// Any user: only users that root or this user put in charge can write to the folders on the
    /// way to the socket.
    Any,
    /// One user, as configured.
    User(u32),
    /// This process's user and root, since other users can write to a folder on the way to the
    /// socket.
    OwnOrRoot {
        /// This process's user.
        own: u32,
        /// The folder.
        folder: PathBuf,
    },
    /// This process's user and root, since every process can bind an abstract socket.
    OwnOrRootAtName {
        /// This process's user.
        own: u32,
    },
}

/// Maximum number of symbolic links on the way to a socket, as in path_resolution(7).
const MAX_LINKS: u32 = 40;

impl TrustedUsers {
    /// Returns the users to trust at an endpoint: `user` if one is configured, else by the folders
    /// on the way.
    ///
    /// # Errors
    /// The error of a system call on a folder.
    pub(crate) fn of(user: Option<u32>, endpoint: &Endpoint) -> io::Result<Self> {
        if let Some(user) = user {
            return Ok(Self::User(user));
        }
        let own = geteuid().as_raw();
        if endpoint.is_abstract() {
            return Ok(Self::OwnOrRootAtName { own });
        }
        Ok(open_folder(endpoint.path(), true)?.map_or(Self::Any, |folder| Self::OwnOrRoot { own, folder }))
    }

    pub(crate) fn includes(&self, uid: u32) -> bool {
        match self {
            Self::Any => true,
            Self::User(user) => uid == *user,
            Self::OwnOrRoot { .. } | Self::OwnOrRootAtName { .. } => is_own_or_root(uid),
        }
    }
}

impl fmt::Display for TrustedUsers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any user"),
            Self::User(user) => write!(f, "user {user}"),
            Self::OwnOrRoot { own: 0, folder } => {
                write!(f, "user 0, since other users can write to {}", folder.display())
            }
            Self::OwnOrRoot { own, folder } => {
                write!(f, "user {own} or 0, since other users can write to {}", folder.display())
            }
            Self::OwnOrRootAtName { own } => {
                write!(f, "user {own} or 0, since every process can bind an abstract socket")
            }
        }
    }
}

/// Returns the first folder on the way to a socket, or to another folder, in which other users can
/// put something in its place.
///
/// That is a folder that its group or others may write to: the group bits stand for those of access
/// control lists as well, acl(5). In a sticky folder such as /tmp only the owner of an entry can
/// replace it (inode(7)), so an entry of root or of this user is safe there, unless it is the
/// socket itself (`is_socket`), which may not be there at all times. The owner of a folder can
/// write to it, but was put in charge by the folder above.
pub(crate) fn open_folder(path: &Path, is_socket: bool) -> io::Result<Option<PathBuf>> {
    let mut here = PathBuf::from("/");
    let mut rest: VecDeque<OsString> = VecDeque::new();
    let push_front = |rest: &mut VecDeque<OsString>, path: &Path| {
        for component in path.components().rev() {
            rest.push_front(component.as_os_str().to_owned());
        }
    };
    push_front(&mut rest, path);
    if path.is_relative() {
        push_front(&mut rest, &env::current_dir()?);
    }
    let mut links = 0;
    while let Some(name) = rest.pop_front() {
        match Path::new(&name).components().next() {
            Some(Component::RootDir) => here = "/".into(),
            Some(Component::ParentDir) => _ = here.pop(),
            Some(Component::Normal(name)) => {
                let entry = here.join(name);
                let found = lstat(&entry)?;
                let folder = lstat(&here)?;
                let is_open = folder.st_mode & 0o022 != 0;
                let is_sticky = folder.st_mode & 0o1000 != 0;
                if is_open && !(is_sticky && is_own_or_root(found.st_uid) && !(is_socket && rest.is_empty()))
                {
                    return Ok(Some(here));
                }
                if FileType::from_raw_mode(found.st_mode) == FileType::Symlink {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(Errno::LOOP.into());
                    }
                    let target = readlinkat(CWD, &entry, Vec::new())?.into_bytes();
                    push_front(&mut rest, Path::new(&OsString::from_vec(target)));
                } else {
                    here = entry;
                }
            }
            _ => {}
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs,
        os::unix::fs::{PermissionsExt, chown, symlink},
    };

    fn open_folder(socket: &Path) -> io::Result<Option<PathBuf>> {
        super::open_folder(socket, true)
    }

    struct Tree(tempfile::TempDir);

    impl Tree {
        /// A private folder in the sticky /tmp.
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn folder(&self, name: &str, mode: u32) -> PathBuf {
            let path = self.0.path().join(name);
            fs::create_dir_all(&path).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path
        }
    }

    fn socket_in(folder: &Path) -> PathBuf {
        let path = folder.join("s.sock");
        fs::write(&path, "").unwrap();
        path
    }

    #[test]
    fn folder_writable_by_others_is_found() {
        let tree = Tree::new();
        for (mode, open) in [
            (0o700, false),
            (0o755, false),
            (0o1755, false),
            (0o775, true),
            (0o757, true),
            (0o1777, true),
            (0o1770, true),
        ] {
            let folder = tree.folder(&format!("{mode:o}"), mode);
            let found = open_folder(&socket_in(&folder)).unwrap();
            assert_eq!(found, open.then(|| fs::canonicalize(&folder).unwrap()), "{mode:o}");
        }
    }

    #[test]
    fn parent_writable_by_others_counts_unless_sticky() {
        let tree = Tree::new();
        let open = tree.folder("open", 0o777);
        let socket = socket_in(&tree.folder("open/own", 0o700));
        assert_eq!(open_folder(&socket).unwrap(), Some(fs::canonicalize(&open).unwrap()));
        let socket = socket_in(&tree.folder("sticky/own", 0o700));
        tree.folder("sticky", 0o1777);
        assert_eq!(open_folder(&socket).unwrap(), None);
    }

    #[test]
    fn link_counts_with_its_folder() {
        let tree = Tree::new();
        let (own, open) = (tree.folder("own", 0o700), tree.folder("open", 0o777));
        socket_in(&own);
        symlink(&own, open.join("link")).unwrap();
        symlink("../own", tree.0.path().join("own/link")).unwrap();
        assert!(open_folder(&open.join("link/s.sock")).unwrap().is_some());
        assert_eq!(open_folder(&own.join("link/s.sock")).unwrap(), None);
        assert_eq!(open_folder(&own.join("../own/./s.sock")).unwrap(), None);
        symlink("loop", own.join("loop")).unwrap();
        assert!(open_folder(&own.join("loop/s.sock")).is_err());
    }

    #[test]
    fn sticky_folder_protects_own_entries_only() {
        if !geteuid().is_root() {
            println!("SKIP trust: only root gives folders away");
            return;
        }
        let tree = Tree::new();
        let socket = socket_in(&tree.folder("sticky/other", 0o755));
        tree.folder("sticky", 0o1777);
        assert_eq!(open_folder(&socket).unwrap(), None);
        chown(tree.0.path().join("sticky/other"), Some(65534), None).unwrap();
        assert!(open_folder(&socket).unwrap().is_some());
    }

    #[test]
    fn configured_user_is_the_only_one() {
        let trust = TrustedUsers::of(Some(7), &Endpoint::at("/nowhere/s.sock").unwrap()).unwrap();
        assert!(trust.includes(7) && !trust.includes(0));
        assert_eq!(trust.to_string(), "user 7");
    }
}
