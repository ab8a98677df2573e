// SPDX-License-Identifier: MIT OR Apache-2.0

//! Folders of a run: one for the supervisor's socket, and one for streams if the user has none.

use anyhow::{Context, Result};
use frameshare::stream_folders;
use rustix::fs::{Access, access};
use std::{env, ffi::OsString, path::PathBuf};

/// Environment variable with the folder of runtime files.
const RUNTIME: &str = "XDG_RUNTIME_DIR";

/// A folder in memory, which has room when the disk of /tmp is full.
const SHARED_MEMORY: &str = "/dev/shm";

/// Folders of a run, removed at its end.
pub struct Folders {
    private: tempfile::TempDir,
    /// Whether the streams are in the private folder.
    has_streams: bool,
}

impl Folders {
    pub fn new() -> Result<Self> {
        let runtime = env::var_os(RUNTIME).map(PathBuf::from);
        let private = make_private([Some(env::temp_dir()), runtime, Some(SHARED_MEMORY.into())])?;
        Ok(Self { private, has_streams: !has_stream_folder() })
    }

    /// Path of the supervisor's socket.
    pub fn control(&self) -> PathBuf {
        self.private.path().join("control.sock")
    }

    /// Variables that lead processes of this run to its streams.
    pub fn variables(&self) -> Vec<(&'static str, OsString)> {
        let streams = Some((RUNTIME, self.private.path().as_os_str().to_owned()));
        streams.filter(|_| self.has_streams).into_iter().collect()
    }

    /// The folder of streams, if other programs do not find it by themselves.
    pub fn hidden_streams(&self) -> Option<PathBuf> {
        self.has_streams.then(|| self.private.path().join("frameshare"))
    }
}

/// Makes a folder in the first of these that has room for it. The error is that of the first one.
fn make_private(places: impl IntoIterator<Item = Option<PathBuf>>) -> Result<tempfile::TempDir> {
    let make = |place: PathBuf| tempfile::Builder::new().prefix("camera-ingest-").tempdir_in(place);
    let mut tries = places.into_iter().flatten().map(make);
    let first = tries.next().context("no place for temporary files")?;
    first
        .or_else(|error| tries.find_map(Result::ok).ok_or(error))
        .context("cannot create a folder for temporary files")
}

/// Returns whether this user's named streams have a folder, or exporters can make one.
fn has_stream_folder() -> bool {
    let runtime = env::var_os(RUNTIME).map(PathBuf::from).filter(|path| path.is_absolute());
    if runtime.is_some_and(|folder| !folder.is_dir()) {
        return false;
    }
    let Some(own) = stream_folders().into_iter().find(|folder| folder.is_own) else { return false };
    match own.problem {
        None => true,
        Some(error) if error.kind() == std::io::ErrorKind::NotFound => {
            own.path.parent().is_some_and(|parent| access(parent, Access::WRITE_OK).is_ok())
        }
        Some(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A full disk takes no folder, like a place that is not there.
    #[test]
    fn folder_is_made_where_there_is_room() {
        let (room, missing) = (tempfile::tempdir().unwrap(), PathBuf::from("/missing"));
        let made = make_private([Some(missing.clone()), None, Some(room.path().to_owned())]).unwrap();
        assert_eq!(made.path().parent(), Some(room.path()));
        let error = make_private([Some(missing), None]).unwrap_err();
        assert!(format!("{error:#}").contains("/missing"), "{error:#}");
    }
}
