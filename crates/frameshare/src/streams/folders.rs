// SPDX-License-Identifier: MIT OR Apache-2.0

//! The folders that are searched for streams, and the reasons why one cannot be used.

use crate::{named_folder::NamedFolder, reader::open_folder};
use std::{
    env,
    ffi::OsStr,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// A folder that is searched for streams.
#[derive(Debug)]
#[non_exhaustive]
pub struct StreamFolder {
    /// Its path.
    pub path: PathBuf,
    /// Whether it is the folder of this user's named streams, and not one of `FRAMESHARE_PATH`.
    pub is_own: bool,
    /// The reason why it is not used, if there is one: a folder of `FRAMESHARE_PATH` cannot be
    /// read, or exporters and readers refuse the own one. A missing own folder is made by the first
    /// exporter.
    pub problem: Option<io::Error>,
    /// The first folder on the way in which other users can put something in place of a socket: for
    /// that reason only exporters of this user and root are accepted.
    pub open_to_others: Option<PathBuf>,
}

/// Returns the folders that are searched for streams, in their order: the own one, then those of
/// the environment variable `FRAMESHARE_PATH`. Its relative folders are not searched, and are
/// listed with that problem.
pub fn stream_folders() -> Vec<StreamFolder> {
    let own = NamedFolder::own();
    let path = env::var_os("FRAMESHARE_PATH").unwrap_or_default();
    let others = folders_of(&path, own.path().to_owned()).into_iter().map(|folder| {
        let problem = fs::read_dir(&folder).err();
        StreamFolder::new(folder, false, problem)
    });
    let relative = env::split_paths(&path).filter(|folder| folder.is_relative() && *folder != Path::new(""));
    let relative = relative.map(|folder| {
        let problem = io::Error::new(io::ErrorKind::InvalidInput, "the path is relative");
        StreamFolder { path: folder, is_own: false, problem: Some(problem), open_to_others: None }
    });
    let own = StreamFolder::new(own.path().to_owned(), true, own.inspect().err());
    [own].into_iter().chain(others).chain(relative).collect()
}

impl StreamFolder {
    fn new(path: PathBuf, is_own: bool, problem: Option<io::Error>) -> Self {
        let is_open = || fs::metadata(&path).is_ok_and(|folder| folder.mode() & 0o022 != 0);
        let open_to_others =
            open_folder(&path, false).ok().flatten().or_else(|| is_open().then(|| path.clone()));
        Self { path, is_own, problem, open_to_others }
    }
}

/// Returns the folders of `FRAMESHARE_PATH`, each once and without the own one.
pub(super) fn folders_of(path: &OsStr, own: PathBuf) -> Vec<PathBuf> {
    let mut folders = vec![own];
    for folder in env::split_paths(path).filter(|folder| folder.is_absolute()) {
        if !folders.contains(&folder) {
            folders.push(folder);
        }
    }
    folders.split_off(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn path_is_list_of_other_absolute_folders() {
        let folders = |path: &str| folders_of(OsStr::new(path), "/own".into());
        assert_eq!(folders(""), Vec::<PathBuf>::new());
        let expected = ["/run/cameras", "/srv/b"].map(PathBuf::from);
        assert_eq!(folders("/run/cameras:relative::/own:/srv/b/:/run/cameras/"), expected);
    }

    #[test]
    fn folder_that_others_can_write_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let open = || StreamFolder::new(folder.path().to_owned(), false, None).open_to_others;
        assert_eq!(open(), None);
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        assert_eq!(open().as_deref(), Some(folder.path()));
    }
}
