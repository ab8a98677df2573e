//! Where a stream lies during a case.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

use anyhow::Result;
use tempfile::TempDir;

/// A stream's place, for one case.
pub struct Place(TempDir);

impl Place {
    /// A place that nobody else has.
    pub fn new() -> Result<Place> {
        // Short enough for a socket, whatever the machine calls its folder for temporary files.
        Ok(Place(tempfile::Builder::new().prefix("gpu-case").tempdir_in("/tmp")?))
    }

    /// Lets other users in, and the stream with its lock be made by one of them.
    pub fn open(&self) -> Result<()> {
        Ok(std::fs::set_permissions(self.0.path(), Permissions::from_mode(0o777))?)
    }

    /// The stream's socket.
    pub fn path(&self) -> String {
        self.0.path().join("s").display().to_string()
    }
}
