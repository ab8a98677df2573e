// SPDX-License-Identifier: MIT OR Apache-2.0

//! The address of a stream.

use frameshare_protocol::StreamName;
use rustix::{
    fs::{Mode, mkdir, stat},
    io::Errno,
};
use std::{
    env, fmt, io,
    path::{Path, PathBuf},
};

/// Maximum length in bytes of a Unix socket's path, without the closing zero (`sun_path`, unix(7)).
const MAX_PATH: usize = 107;

/// The path of a stream's socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    path: PathBuf,
    /// The folder is frameshare's own, and made if it is missing.
    own_folder: bool,
}

/// A path that cannot be a socket's.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// The path is too long for a Unix socket.
    #[error("{path:?} is longer than the {MAX_PATH} bytes that the path of a Unix socket may have")]
    TooLong {
        /// The path.
        path: PathBuf,
    },
    /// The path names no file.
    #[error("{path:?} is not the path of a file")]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
}

impl Endpoint {
    /// The endpoint of a named stream: `$XDG_RUNTIME_DIR/frameshare/NAME.sock`, or
    /// `/run/frameshare/NAME.sock` if that variable is not set to an absolute path.
    ///
    /// # Errors
    /// [`EndpointError`] if the path is too long for a socket.
    pub fn of_stream(name: &StreamName) -> Result<Self, EndpointError> {
        Ok(Self { own_folder: true, ..Self::at(Self::folder().join(format!("{name}.sock")))? })
    }

    /// The folder of named streams.
    pub(crate) fn folder() -> PathBuf {
        let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
        runtime.unwrap_or_else(|| "/run".into()).join("frameshare")
    }

    /// An endpoint at any path, in a folder that the caller manages.
    ///
    /// # Errors
    /// [`EndpointError`] if the path is too long for a socket, or names no file.
    pub fn at(path: impl Into<PathBuf>) -> Result<Self, EndpointError> {
        let path = path.into();
        if path.as_os_str().len() > MAX_PATH {
            Err(EndpointError::TooLong { path })
        } else if path.file_name().is_none() || path.as_os_str().as_encoded_bytes().ends_with(b"/") {
            Err(EndpointError::NotAFile { path })
        } else {
            Ok(Self { path, own_folder: false })
        }
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether it lies in frameshare's own folder, which is closed to other users.
    pub(crate) fn is_private(&self) -> bool {
        self.own_folder
    }

    /// Makes frameshare's own folder if it is missing, for its owner alone, and checks its owner
    /// and mode.
    pub(crate) fn prepare_folder(&self) -> io::Result<()> {
        let Some(folder) = self.path.parent().filter(|_| self.own_folder) else { return Ok(()) };
        match mkdir(folder, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let found = stat(folder)?;
        let problem = if found.st_uid != rustix::process::geteuid().as_raw() {
            "belongs to another user"
        } else if found.st_mode & 0o077 != 0 {
            "is open to other users; make it private with chmod 700"
        } else {
            return Ok(());
        };
        Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("{} {problem}", folder.display())))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.display().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_socket_paths_are_refused() {
        assert!(Endpoint::at("/tmp/x.sock").is_ok());
        assert!(matches!(Endpoint::at("x".repeat(108)), Err(EndpointError::TooLong { .. })));
        for bad in ["", "/", "..", "/tmp/"] {
            assert!(matches!(Endpoint::at(bad), Err(EndpointError::NotAFile { .. })), "{bad:?}");
        }
    }
}
