// SPDX-License-Identifier: MIT OR Apache-2.0

//! Folders of a run: one for the supervisor's socket, and one for streams if the user has none.

use anyhow::{Context, Result};
use frameshare::stream_folders;
use rustix::fs::{Access, access};
use std::{env, ffi::OsString, path::PathBuf};

/// Environment variable with the folder of runtime files.
const RUNTIME: &str = "XDG_RUNTIME_DIR";

/// Folders of a run, removed at its end.
pub struct Folders {
    private: tempfile::TempDir,
    /// Whether the streams are in the private folder.
    has_streams: bool,
}

impl Folders {
    pub fn new() -> Result<Self> {
        let private = tempfile::Builder::new().prefix("camera-ingest-").tempdir();
        let private = private.context("cannot create a folder for temporary files")?;
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
