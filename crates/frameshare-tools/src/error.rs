// SPDX-License-Identifier: MIT OR Apache-2.0

//! Errors and exit statuses.

use crate::{pixels::ImageError, recording::Damage};
use frameshare::{
    EndpointError, Reason,
    exporter::{BindError, EventTooLong, VideoExporterError},
    observer::ObserveError,
    reader::{ConnectError, ReadError},
    video::VideoError,
};
use std::{
    io,
    net::SocketAddr,
    path::PathBuf,
    process::{ExitCode, ExitStatus},
    time::Duration,
};

/// The reason why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "invalid stream {text:?}: {why}; give a name such as cam0, or the path of a socket such as ./cam0.sock"
    )]
    InvalidStream { text: String, why: String },
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    #[error("{0}{hint}", hint = hint(.0))]
    Observe(#[from] ObserveError),
    #[error("{0}{hint}", hint = connect_hint(.0))]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("{}", ambiguous(.reader, .ids))]
    Reader { reader: String, ids: Vec<u64> },
    #[error(
        "no frame of {stream} came within {} s: `frameshare doctor {stream}` says why; --timeout waits longer",
        limit.as_secs_f64()
    )]
    NoFrame { stream: String, limit: Duration },
    #[error("the stream {stream} ended before a frame came")]
    Ended { stream: String },
    #[error("the frame cannot be shown: {0}")]
    Image(#[from] ImageError),
    #[error("cannot write an image: {0}")]
    Png(#[from] png::EncodingError),
    #[error("{} is no PNG file: give a name that ends in .png, or - for stdout without --json", path.display())]
    NotPng { path: PathBuf },
    #[error("{} exists: --force replaces it", path.display())]
    Exists { path: PathBuf },
    #[error("cannot play {}: {damage}", path.display())]
    Recording { path: PathBuf, damage: Damage },
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    Export(VideoExporterError),
    #[error("cannot send an event: {0}")]
    Event(#[from] EventTooLong),
    #[error("{0}")]
    Format(#[from] VideoError),
    #[error("the test pattern is not made in {format}: choose another --format, such as NV12")]
    Pattern { format: &'static str },
    #[error("cannot read {}: {source}", path.display())]
    Video { path: PathBuf, source: io::Error },
    #[error(
        "video files need gst-launch-1.0, which is not installed: install it (Debian, Ubuntu: apt-get install \
         gstreamer1.0-tools gstreamer1.0-plugins-good gstreamer1.0-libav)"
    )]
    NoGstLaunch,
    #[error(
        "video files need the GStreamer plugin of frameshare, and GStreamer does not find framesharesink: install \
         it (make install), or name its folder in GST_PLUGIN_PATH"
    )]
    NoPlugin,
    #[error(
        "gst-launch-1.0 could not play {} ({status}), as it says above; decoders are in \
         gstreamer1.0-plugins-good and gstreamer1.0-libav, and frames may be at most 8192 pixels wide and high", path.display()
    )]
    Gst { path: PathBuf, status: ExitStatus },
    #[error("cannot serve metrics at {address}: {source}; another address is set by --listen")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("{errors} of the checks failed")]
    Doctor { errors: usize },
    #[error("cannot use the terminal: {0}; -b prints tables instead")]
    Terminal(io::Error),
    #[error("cannot handle signals: {0}")]
    Signals(io::Error),
    #[error("cannot list the streams: {0}")]
    List(io::Error),
    #[error("cannot write to stdout: {0}")]
    Output(io::Error),
    #[error("cannot write {path}: {source}", path = .path.display())]
    File { path: std::path::PathBuf, source: io::Error },
}

const NOT_THERE: &str =
    ": `frameshare list` lists the streams that are shared now (FRAMESHARE_PATH adds folders to it)";
const NOT_ADMITTED: &str =
    ": run this as the exporter's user, or have the exporter admit you (allowed-uids, socket-mode)";

/// Returns what to do about an error of an observer.
fn hint(error: &ObserveError) -> &'static str {
    match error {
        ObserveError::NotThere { .. } => NOT_THERE,
        ObserveError::PermissionDenied { .. } => NOT_ADMITTED,
        _ => "",
    }
}

/// Returns what to do about an error of a reader.
fn connect_hint(error: &ConnectError) -> &'static str {
    match error {
        ConnectError::NotThere { .. } => NOT_THERE,
        ConnectError::PermissionDenied { .. } => NOT_ADMITTED,
        ConnectError::Refused { reason: Reason::NoCreditLeft, .. } => {
            ": end a reader, or give the exporter more slots (max-slots)"
        }
        _ => "",
    }
}

fn ambiguous(reader: &str, ids: &[u64]) -> String {
    match ids {
        [] => format!("no reader is named {reader:?}: `frameshare info STREAM` lists the readers"),
        ids => {
            let ids = ids.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
            format!("readers {ids} are named {reader:?}: give the number of one")
        }
    }
}

impl From<VideoExporterError> for Error {
    fn from(error: VideoExporterError) -> Self {
        match error {
            VideoExporterError::Bind(error) => Self::Bind(error),
            error => Self::Export(error),
        }
    }
}

impl Error {
    /// Returns whether the user has ended the command: by a signal, or by the exit of the process
    /// that reads stdout, such as `head`.
    pub fn is_end(&self) -> bool {
        match self {
            Self::Output(error) => error.kind() == io::ErrorKind::BrokenPipe,
            Self::Connect(error) => matches!(error, ConnectError::Interrupted),
            _ => false,
        }
    }

    /// Returns the exit status, as in the help of the command.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::InvalidStream { .. } | Self::Endpoint(_) | Self::NotPng { .. } => 2,
            Self::Format(_) | Self::Pattern { .. } => 2,
            Self::Bind(BindError::Io { source, .. }) if source.kind() == io::ErrorKind::PermissionDenied => 4,
            Self::Observe(ObserveError::NotThere { .. } | ObserveError::NoSuchReader { .. }) => 3,
            Self::Connect(ConnectError::NotThere { .. }) => 3,
            Self::Reader { ids, .. } => {
                if ids.is_empty() {
                    3
                } else {
                    2
                }
            }
            Self::Connect(
                ConnectError::PermissionDenied { .. }
                | ConnectError::Refused { reason: Reason::PermissionDenied, .. },
            ) => 4,
            Self::Observe(
                ObserveError::PermissionDenied { .. }
                | ObserveError::MayNotDisconnect { .. }
                | ObserveError::Refused { reason: Reason::PermissionDenied, .. },
            ) => 4,
            _ => 1,
        })
    }
}
