// SPDX-License-Identifier: MIT OR Apache-2.0

//! State of the site as the supervisor knows it, for the page: JSON lines on a Unix socket.
//!
//! A client connects to the socket that the environment variable [`CONTROL`] names. It gets one
//! [`State`] at once and one after each change, at most 10 per second. It may send [`Command`]s.
//! Rates, ages and losses of streams are not in here: the page observes the streams themselves.

use crate::{report::Report, roles::Role};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Environment variable with the path of the socket.
pub const CONTROL: &str = "CAMERA_INGEST_CONTROL";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Whether [`Command::Kill`] is accepted.
    pub demo: bool,
    pub processes: Vec<Process>,
    /// The last 200 events, oldest first.
    pub events: Vec<Event>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// Role and cameras, such as "decode-cam0", or "decode-1" for a group.
    pub name: String,
    pub role: Role,
    pub cameras: Vec<String>,
    /// None between an exit and the next start.
    pub pid: Option<u32>,
    pub restarts: u64,
    /// Seconds since 1970.
    pub started: f64,
    /// Why it ended last.
    pub last_exit: Option<String>,
    /// The last report of each camera.
    pub reports: BTreeMap<String, Report>,
}

/// Start, exit, restart, or a change that a role reported.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Seconds since 1970.
    pub time: f64,
    pub process: String,
    /// None: the whole process.
    pub camera: Option<String>,
    pub text: String,
}

/// Request of the page, one JSON line each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "command")]
pub enum Command {
    /// Kill a process with SIGKILL. Refused outside demo mode.
    Kill { process: String },
}
