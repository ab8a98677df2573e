// SPDX-License-Identifier: MIT OR Apache-2.0

//! Discovery of streams: in the folder of this user's named streams, and in those of
//! `FRAMESHARE_PATH`.
//!
//! A stream is listed while a process listens on its socket; the socket of a dead exporter is not.
//! Streams with a socket path of their own are listed if their folder is one of these, and their
//! file is named like that of a named stream.

mod folders;
mod monitor;

pub use folders::{StreamFolder, stream_folders};
pub use monitor::{StreamChange, StreamMonitor};

use crate::{Endpoint, EndpointError, StreamName, foreign::report, named_folder::NamedFolder, sys};
use folders::folders_of;
use std::{
    env,
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
};

/// Maximum number of streams that are listed: others may be able to write to the folder.
const MAX_STREAMS: usize = 1024;

/// A stream that is shared at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamInfo {
    /// Its name.
    pub name: StreamName,
    /// Its socket.
    pub endpoint: Endpoint,
    /// The exporter's PID; none if it is in another PID namespace, or too busy to accept now.
    pub exporter_pid: Option<u32>,
    /// The name of the exporter's program.
    pub exporter_program: Option<String>,
}

impl StreamInfo {
    /// Returns whether the stream is in the folder of this user's named streams: its name alone
    /// leads to it ([`Endpoint::of_stream`]).
    pub fn is_named(&self) -> bool {
        self.endpoint.path().parent() == Some(NamedFolder::own().path())
    }
}

/// Returns the streams that are shared at the moment: those of this user that have a name, then
/// those in each folder of the environment variable `FRAMESHARE_PATH`, whose folders are absolute
/// and separated by colons. In a folder, they are in the order of their names.
///
/// # Errors
/// The folder of named streams cannot be read, or is another user's. A folder that does not exist
/// is empty, and another one that cannot be read is left out with a warning in the log.
pub fn streams() -> io::Result<Vec<StreamInfo>> {
    let own = NamedFolder::own();
    own.check()?;
    let mut streams = streams_in(own.path())?;
    let path = env::var_os("FRAMESHARE_PATH").unwrap_or_default();
    for folder in folders_of(&path, own.path().to_owned()) {
        match streams_in(&folder) {
            Ok(found) => streams.extend(found),
            Err(error) => report!(warn, "cannot list the streams in {}: {error}", folder.display()),
        }
    }
    Ok(streams)
}

impl Endpoint {
    /// The endpoint of a stream to read, for the text that people write: as
    /// [`Endpoint::of_text`], and a name is also searched in the folders of `FRAMESHARE_PATH`,
    /// unless this user exports a stream of this name.
    ///
    /// # Errors
    /// [`EndpointError`] if the text is neither a path nor a name.
    pub fn find(text: &str) -> Result<Self, EndpointError> {
        let own = Self::of_text(text)?;
        if !own.is_named() || sys::listener_of(own.path()).is_some() {
            return Ok(own);
        }
        // Problems of the own folder are errors of the connection.
        let streams = streams().unwrap_or_default();
        let found = streams.into_iter().find(|stream| stream.name.as_str() == text);
        Ok(found.map_or(own, |stream| stream.endpoint))
    }
}

fn streams_in(folder: &Path) -> io::Result<Vec<StreamInfo>> {
    Ok(names_in(folder)?.into_iter().filter_map(|name| find(folder, name)).collect())
}

/// Returns the names of sockets, of live and of dead exporters.
fn names_in(folder: &Path) -> io::Result<Vec<StreamName>> {
    let files = match fs::read_dir(folder) {
        Ok(files) => files,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let is_socket = |name: &OsStr| name.as_encoded_bytes().ends_with(b".sock");
    let names = files.flatten().map(|file| file.file_name()).filter(|name| is_socket(name));
    let mut names = names.filter_map(|name| stream_of(&name)).take(MAX_STREAMS).collect::<Vec<_>>();
    names.sort_unstable();
    Ok(names)
}

/// Returns the stream that a file belongs to: its socket, or its lock file.
fn stream_of(file: &OsStr) -> Option<StreamName> {
    let file = file.to_str()?;
    file.strip_suffix(".lock").unwrap_or(file).strip_suffix(".sock")?.parse().ok()
}

/// Returns a stream if a process listens on its socket that this user may connect to.
fn find(folder: &Path, name: StreamName) -> Option<StreamInfo> {
    let endpoint = Endpoint::at(socket_of(folder, &name)).ok()?;
    let exporter_pid = sys::listener_of(endpoint.path())?;
    let program = exporter_pid.and_then(|pid| fs::read(format!("/proc/{pid}/comm")).ok());
    let exporter_program = program.map(|name| String::from_utf8_lossy(&name).trim_end().to_owned());
    Some(StreamInfo { name, endpoint, exporter_pid, exporter_program })
}

fn socket_of(folder: &Path, name: &StreamName) -> PathBuf {
    folder.join(format!("{name}.sock"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exporter::{Config, Exporter};
    use std::os::unix::net::UnixListener;

    #[test]
    fn live_streams_are_listed_with_their_process() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        assert_eq!(names_in(&path("missing")).unwrap(), []);
        let bind = |name: &str| {
            Exporter::bind(&Endpoint::at(path(name)).unwrap(), Config::default(), |_| {}).unwrap()
        };
        let _exporters = [bind("b.sock"), bind("a.sock"), bind("other-suffix")];
        // A dead exporter's socket, another program's, and no sockets.
        drop(UnixListener::bind(path("dead.sock")).unwrap());
        let _other = UnixListener::bind(path("other.sock")).unwrap();
        fs::write(path("file.sock"), "").unwrap();
        fs::write(path(".hidden.sock"), "").unwrap();
        let names = names_in(folder.path()).unwrap();
        assert_eq!(names.len(), 5, "{names:?}");
        let found = names.into_iter().filter_map(|name| find(folder.path(), name)).collect::<Vec<_>>();
        let names = found.iter().map(|stream| stream.name.as_str()).collect::<Vec<_>>();
        assert_eq!(names, ["a", "b"]);
        for stream in found {
            assert_eq!(stream.exporter_pid, Some(std::process::id()));
            assert!(!stream.exporter_program.unwrap().is_empty());
            assert_eq!(stream.endpoint.path(), path(&format!("{}.sock", stream.name)));
        }
    }

    #[test]
    fn files_name_their_stream() {
        let name = |file: &str| stream_of(OsStr::new(file)).map(|name| name.to_string());
        assert_eq!(name("cam0.sock").as_deref(), Some("cam0"));
        assert_eq!(name("cam0.sock.lock").as_deref(), Some("cam0"));
        assert_eq!(name("x.lock.sock").as_deref(), Some("x.lock"));
        for other in ["cam0", "cam0.lock", ".sock", ".a.sock", "a b.sock"] {
            assert_eq!(name(other), None);
        }
    }
}
