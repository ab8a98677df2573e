// SPDX-License-Identifier: MIT OR Apache-2.0

//! The address of a stream.

use crate::{
    named_folder::NamedFolder,
    sys::{self, Label},
};
use frameshare_protocol::{StreamName, name::InvalidName};
use std::{
    fmt, io,
    path::{Path, PathBuf},
};

/// Maximum length in bytes of a Unix socket's path, without the closing zero (`sun_path`, unix(7)).
const MAX_PATH: usize = 107;

/// The path of a stream's socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    path: PathBuf,
    /// The folder of named streams, if it lies there by its name. Boxed: errors hold endpoints.
    folder: Option<Box<NamedFolder>>,
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
    /// The name of a stream is invalid.
    #[error("stream {text:?}: {source}")]
    Name {
        /// The name.
        text: String,
        /// The reason.
        source: InvalidName,
    },
    /// The name of an abstract socket is invalid.
    #[error("abstract socket {path:?}: {source} (a file needs ./ before @)")]
    AbstractName {
        /// The name, with `@` before it.
        path: PathBuf,
        /// The reason.
        source: InvalidName,
    },
}

impl Endpoint {
    /// The endpoint of a named stream of this process's user:
    /// `$XDG_RUNTIME_DIR/frameshare/NAME.sock`, or `/run/frameshare/NAME.sock` if that variable is
    /// not set to an absolute path. If users share that folder (root's, with the mode 1777), it is
    /// `NAME.sock` in the user's folder there, which is named by the user's number.
    ///
    /// # Errors
    /// [`EndpointError`] if the path is too long for a socket.
    pub fn of_stream(name: &StreamName) -> Result<Self, EndpointError> {
        Self::in_folder(NamedFolder::own(), name)
    }

    /// The endpoint of a named stream of another user, for readers. It differs from
    /// [`Endpoint::of_stream`] where users share a folder.
    ///
    /// # Errors
    /// [`EndpointError`] if the path is too long for a socket.
    pub fn of_user(name: &StreamName, user: u32) -> Result<Self, EndpointError> {
        Self::in_folder(NamedFolder::of(user), name)
    }

    /// The endpoint of a stream of this process's user for the text that people write: a path if it
    /// contains a slash, an abstract socket if it begins with `@`, otherwise a name.
    ///
    /// # Errors
    /// [`EndpointError`] if the text is neither.
    pub fn of_text(text: &str) -> Result<Self, EndpointError> {
        if text.contains('/') || text.starts_with('@') {
            return Self::at(text);
        }
        let invalid = |source| EndpointError::Name { text: text.to_owned(), source };
        Self::of_stream(&text.parse().map_err(invalid)?)
    }

    fn in_folder(folder: NamedFolder, name: &StreamName) -> Result<Self, EndpointError> {
        Ok(Self {
            folder: Some(Box::new(folder.clone())),
            ..Self::at(folder.path().join(format!("{name}.sock")))?
        })
    }

    /// An endpoint at any path, in a folder that the caller manages; or `@NAME`, an abstract socket
    /// (unix(7)), which has no file.
    ///
    /// Every process of the network namespace can bind and connect to an abstract socket: readers
    /// have to set [`exporter_uid`](crate::reader::Config::exporter_uid), and the exporter admits
    /// its own user, root and
    /// [`allowed_uids`](crate::exporter::Config#structfield.allowed_uids).
    ///
    /// # Errors
    /// [`EndpointError`] if the path is too long for a socket, or names no file, or the name is
    /// invalid.
    pub fn at(path: impl Into<PathBuf>) -> Result<Self, EndpointError> {
        let path = path.into();
        if let Some(name) = sys::abstract_name(&path) {
            return match String::from_utf8_lossy(name).parse::<StreamName>() {
                Ok(_) => Ok(Self { path, folder: None }),
                Err(source) => Err(EndpointError::AbstractName { path, source }),
            };
        }
        if path.as_os_str().len() > MAX_PATH {
            Err(EndpointError::TooLong { path })
        } else if path.file_name().is_none() || path.as_os_str().as_encoded_bytes().ends_with(b"/") {
            Err(EndpointError::NotAFile { path })
        } else {
            Ok(Self { path, folder: None })
        }
    }

    /// The path of the socket; `@NAME` for an abstract one.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether the socket has no file.
    pub fn is_abstract(&self) -> bool {
        sys::abstract_name(&self.path).is_some()
    }

    /// The stream's name for people: that of its socket, without `.sock`.
    pub(crate) fn label(&self) -> Label {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let name = name.strip_prefix('@').filter(|_| self.is_abstract()).unwrap_or(&name);
        Label::new(name.strip_suffix(".sock").unwrap_or(name))
    }

    /// Returns whether it lies in the folder of named streams, which is for the exporter's user.
    pub(crate) fn is_named(&self) -> bool {
        self.folder.is_some()
    }

    /// Makes the folder of named streams if it is missing, and checks it.
    pub(crate) fn prepare_folder(&self) -> io::Result<()> {
        self.folder.as_ref().map_or(Ok(()), |folder| folder.prepare())
    }

    /// Checks the folder of named streams for a reader.
    pub(crate) fn check_folder(&self) -> io::Result<()> {
        self.folder.as_ref().map_or(Ok(()), |folder| folder.check())
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
        assert!(Endpoint::at("./@cam 0").is_ok_and(|endpoint| !endpoint.is_abstract()));
        assert!(Endpoint::at("@cam0").is_ok_and(|endpoint| endpoint.is_abstract()));
        for bad in ["@", "@a b", "@a/b", "@@a", "@.a", &format!("@{}", "x".repeat(65))] {
            assert!(matches!(Endpoint::at(bad), Err(EndpointError::AbstractName { .. })), "{bad:?}");
        }
        for bad in ["", "/", "..", "/tmp/"] {
            assert!(matches!(Endpoint::at(bad), Err(EndpointError::NotAFile { .. })), "{bad:?}");
        }
    }
}
