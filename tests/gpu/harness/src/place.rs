// SPDX-License-Identifier: MIT OR Apache-2.0

//! Path of a stream during a case.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

use anyhow::Result;
use tempfile::TempDir;

/// Temporary folder for a stream's socket, for one case.
pub struct Place(TempDir);

impl Place {
    /// Creates a unique folder.
    ///
    /// # Errors
    /// Fails if the folder cannot be created.
    pub fn new() -> Result<Place> {
        // The path is short enough for a socket address, independent of TMPDIR.
        Ok(Place(tempfile::Builder::new().prefix("gpu-case").tempdir_in("/tmp")?))
    }

    /// Grants access to other users, so that one of them can create the stream's socket and lock.
    pub fn open(&self) -> Result<()> {
        Ok(std::fs::set_permissions(self.0.path(), Permissions::from_mode(0o777))?)
    }

    /// Returns the path of the stream's socket.
    pub fn path(&self) -> String {
        self.0.path().join("s").display().to_string()
    }
}
