// SPDX-License-Identifier: MIT OR Apache-2.0

//! The configuration: one TOML file for the whole site.

mod build;
mod file;
mod parse;
mod secret;
mod source;
#[cfg(test)]
mod tests;
pub mod units;

pub use parse::Problem;
pub use secret::{Secret, hide_variables, redact};

use anyhow::{Context, Result};
use frameshare::Policy;
use serde::{Deserialize, Serialize};
use std::{
    fmt, fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

/// Configuration of a site, with all defaults filled in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    pub cameras: Vec<Camera>,
    pub recording: Recording,
    pub model: Model,
    pub wall: Wall,
    pub groups: Groups,
    pub access: Access,
    /// Time without a sign of life after which a process is killed and started again.
    pub hang_timeout: Option<Duration>,
}

/// One camera. Its streams are named after it: see [`Camera::encoded`] and the others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Camera {
    pub name: String,
    pub main: Source,
    /// A smaller stream of the same camera.
    pub sub: Option<Source>,
    pub decode: Decode,
    /// Areas in which motion counts. None: the whole picture.
    pub zones: Vec<Zone>,
    /// Which roles read this camera.
    pub record: bool,
    pub motion: bool,
    pub model: bool,
    /// Their policies.
    pub policies: Policies,
}

/// Policies of the readers of a camera.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Policies {
    pub record: Policy,
    pub motion: Policy,
    pub model: Policy,
}

/// Where a stream comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Source {
    /// `rtsp://…` or `rtsps://…`, without user and password.
    Rtsp { url: String, user: Option<String>, password: Option<Secret> },
    /// A file that is played in a loop at its own pace.
    File(PathBuf),
    /// A V4L2 device.
    Device(PathBuf),
    /// A test pattern of videotestsrc, with the frame's number in the picture.
    Pattern { pattern: String, width: u32, height: u32, rate: u32 },
}

/// For people, once [`redact`] has removed secrets of the URL.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rtsp { url, .. } => f.write_str(url),
            Self::File(path) | Self::Device(path) => path.display().fmt(f),
            Self::Pattern { pattern, width, height, rate } => {
                write!(f, "pattern {pattern} {width}x{height} at {rate}/s")
            }
        }
    }
}

/// Whether files, variables and credentials with passwords are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passwords {
    Read,
    /// They may be unreadable: the process connects to no camera.
    Skip,
}

/// Which encoded stream of a camera is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Decode {
    Main,
    Sub,
    Never,
}

/// A polygon in parts of the picture's width and height, 0 to 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Zone {
    pub name: String,
    pub points: Vec<[f64; 2]>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recording {
    pub folder: PathBuf,
    /// Length of a segment.
    pub segment: Duration,
    /// Older segments are deleted.
    pub max_age: Option<Duration>,
    /// The oldest segments are deleted beyond this number of bytes, of all cameras together.
    pub max_bytes: Option<u64>,
    /// Bytes of the disk that are left free. None: an hour of recordings, at least 1 GiB, at most a
    /// tenth of the disk.
    pub reserve: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// The Python program that runs the model.
    pub program: PathBuf,
    /// A GPU's number or UUID, or host memory.
    pub device: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Wall {
    pub listen: SocketAddr,
}

/// Number of cameras that one process of a role serves.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Groups {
    pub capture: usize,
    pub decode: usize,
    pub record: usize,
    pub motion: usize,
    pub model: usize,
}

/// Other users that may read the streams. Default: none
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Access {
    /// Numbers of users
    pub users: Vec<u32>,
    /// Numbers of groups
    pub groups: Vec<u32>,
}

impl Source {
    /// Returns whether the source delivers raw frames, so that there is nothing to decode.
    pub fn is_raw(&self) -> bool {
        matches!(self, Self::Device(_) | Self::Pattern { .. })
    }
}

impl Camera {
    /// Name of the stream with the units of [`Camera::main`].
    pub fn encoded(&self) -> String {
        format!("{}.video", self.name)
    }
    /// Name of the stream with the units of [`Camera::sub`].
    pub fn encoded_sub(&self) -> String {
        format!("{}.sub", self.name)
    }
    pub fn audio(&self) -> String {
        format!("{}.audio", self.name)
    }
    /// Name of the stream of decoded frames.
    pub fn frames(&self) -> String {
        self.name.clone()
    }
    /// Names of the streams of results.
    pub fn motion_results(&self) -> String {
        format!("{}.motion", self.name)
    }
    pub fn model_results(&self) -> String {
        format!("{}.model", self.name)
    }
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// All errors in the file, one a line.
    pub fn load(file: &Path, passwords: Passwords) -> Result<Self> {
        let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let folder = file.parent().unwrap_or(Path::new("."));
        Self::parse(&text, folder, passwords).map_err(|problems| {
            let lines = problems.iter().map(|problem| format!("{}:{problem}", file.display()));
            anyhow::anyhow!("errors in the configuration:\n{}", lines.collect::<Vec<_>>().join("\n"))
        })
    }

    /// Parses a text; paths are relative to a folder.
    pub fn parse(text: &str, folder: &Path, passwords: Passwords) -> Result<Self, Vec<Problem>> {
        let (document, file, problems) = parse::Document::parse(text);
        let mut builder = build::Builder { document: &document, folder, passwords, problems };
        let config = builder.build(file);
        let mut problems = builder.problems;
        problems.sort();
        if problems.is_empty() { Ok(config) } else { Err(problems) }
    }

    /// Returns the part for a process with these cameras. Only `Passwords::Read` keeps secrets.
    pub fn part(&self, cameras: &[String], passwords: Passwords) -> Result<Self> {
        let mut part = Self { cameras: self.select(cameras)?, ..self.clone() };
        let sources =
            part.cameras.iter_mut().flat_map(|camera| [Some(&mut camera.main), camera.sub.as_mut()]);
        for source in sources.flatten().filter(|_| passwords == Passwords::Skip) {
            if let Source::Rtsp { url, .. } = source {
                *source = Source::Rtsp { url: redact(url), user: None, password: None };
            }
        }
        Ok(part)
    }

    /// Finds cameras by name; all if `names` is empty.
    pub fn select(&self, names: &[String]) -> Result<Vec<Camera>> {
        if names.is_empty() {
            return Ok(self.cameras.clone());
        }
        let find = |name: &String| {
            let camera = self.cameras.iter().find(|camera| camera.name == *name);
            camera.cloned().with_context(|| {
                let known: Vec<_> = self.cameras.iter().map(|camera| camera.name.as_str()).collect();
                format!("no camera '{name}' in the configuration, which has {}", known.join(", "))
            })
        };
        names.iter().map(find).collect()
    }
}

/// Prints the JSON schema.
pub fn print_schema() -> Result<()> {
    println!("{}", serde_json::to_string_pretty(&schemars::schema_for!(file::File))?);
    Ok(())
}
