// SPDX-License-Identifier: MIT OR Apache-2.0

//! Form of the configuration file. Every key is optional here: [`super::build`] fills in defaults.
//!
//! The comments are the descriptions in the JSON schema.

use super::{Access, Decode};
use schemars::JsonSchema;
use serde::Deserialize;
use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf};

/// Configuration of camera-ingest
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct File {
    /// Cameras by name: up to 57 of A-Z a-z 0-9 _ -
    #[schemars(with = "BTreeMap<String, Camera>")]
    pub cameras: BTreeMap<String, CameraTable>,
    /// Defaults of all cameras
    pub defaults: Readers,
    pub recording: RecordingFile,
    pub model: ModelFile,
    pub wall: WallFile,
    /// Number of cameras that one process of a role serves
    pub groups: GroupsFile,
    pub access: Access,
    /// Seconds without a sign of life after which a process is killed and started again; 0 = never
    pub hang_timeout: Option<u64>,
}

/// Schema of a camera, which [`super::parse`] makes a table.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "a schema")]
enum Camera {
    /// The camera's source
    Source(String),
    Table(CameraTable),
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[serde(expecting = "a source such as \"rtsp://host/path\", or a table with main = \"...\"")]
pub struct CameraTable {
    /// rtsp://HOST/PATH, rtsps://HOST/PATH, /dev/videoN, a file that is played in a loop, or
    /// pattern:NAME?width=640&height=360&rate=10
    pub main: Option<String>,
    /// A smaller stream of the same camera
    pub sub: Option<String>,
    /// Which stream is decoded. Default: sub if there is one
    pub decode: Option<Decode>,
    /// User name for RTSP
    pub user: Option<String>,
    /// File with the password, of which line ends are removed
    pub password_file: Option<String>,
    /// Environment variable with the password
    pub password_env: Option<String>,
    /// Name of a credential of systemd (LoadCredential=) with the password
    pub password_credential: Option<String>,
    /// Areas in which motion counts. Default: the whole picture
    pub zones: Option<Vec<ZoneFile>>,
    /// Whether and how the recorder reads the camera
    pub record: Option<Reading>,
    /// Whether and how motion detection reads the camera
    pub motion: Option<Reading>,
    /// Whether and how the model reads the camera
    pub model: Option<Reading>,
}

/// Readers of cameras without keys of their own for them
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Readers {
    /// Default: "lossless"
    pub record: Option<Reading>,
    /// Default: "latest"
    pub motion: Option<Reading>,
    /// Default: false
    pub model: Option<Reading>,
}

/// Whether a role reads a camera: with its usual policy, or with this one.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected true, false, \"latest\" or \"lossless\"")]
pub enum Reading {
    IsOn(bool),
    With(PolicyFile),
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PolicyFile {
    Latest,
    Lossless,
}

/// A polygon in parts of the picture's width and height
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ZoneFile {
    pub name: Option<String>,
    /// Corners, 0 to 1: at least three
    pub points: Option<Vec<[f64; 2]>>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct RecordingFile {
    /// Default: recordings, beside the configuration
    pub folder: Option<PathBuf>,
    /// Length of a segment, such as "60s" or "5min". Default: 60s
    pub segment: Option<String>,
    /// Older segments are deleted, such as "12h" or "7d"; "never" for no limit. Default: 7d
    pub max_age: Option<String>,
    /// The oldest segments are deleted beyond this size, of all cameras together, such as "10GB";
    /// "never" for no limit. Default: 10GB
    pub max_size: Option<String>,
    /// The oldest segments are deleted before less than this is free, such as "50GB". Default: an
    /// hour of recordings, at least 1 GiB, at most a tenth of the disk
    pub reserve: Option<String>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct ModelFile {
    /// The Python program that runs the model. Default: model.py, beside the configuration
    pub program: Option<PathBuf>,
    /// A GPU's number or UUID. Default: host memory
    pub device: Option<String>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct WallFile {
    /// Address of the page. Default: 127.0.0.1:8080
    #[schemars(with = "Option<String>")]
    pub listen: Option<SocketAddr>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct GroupsFile {
    /// Default: 1
    pub capture: Option<usize>,
    /// Default: 1
    pub decode: Option<usize>,
    /// Default: 4
    pub record: Option<usize>,
    /// Default: 4
    pub motion: Option<usize>,
    /// Default: 4
    pub model: Option<usize>,
}
