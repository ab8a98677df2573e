// SPDX-License-Identifier: MIT OR Apache-2.0

//! Folders of a run: one for the supervisor's socket and the configuration in use, and one for the
//! streams where the user has none.

use anyhow::{Context, Result};
use frameshare::stream_folders;
use std::{
    env,
    ffi::OsString,
    fs,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

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

    /// Keeps the text of the configuration in use, and returns its file. Processes that are started
    /// again read that one, whatever becomes of the original.
    pub fn keep(&self, text: &str) -> Result<PathBuf> {
        let path = self.private.path().join("camera-ingest.toml");
        let fresh = path.with_extension("new");
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let write = || -> std::io::Result<()> {
            options.open(&fresh)?.write_all(text.as_bytes())?;
            fs::rename(&fresh, &path)
        };
        write().with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
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
            own.path.parent().is_some_and(can_write)
        }
        Some(_) => false,
    }
}

fn can_write(folder: &Path) -> bool {
    rustix::fs::access(folder, rustix::fs::Access::WRITE_OK).is_ok()
}
