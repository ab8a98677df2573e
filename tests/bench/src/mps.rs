// SPDX-License-Identifier: MIT OR Apache-2.0

//! Clients of NVIDIA's multi-process service (MPS), selected by role. `tests/gpu/mps.sh` starts the
//! daemon and sets the variables.

use serde::{Deserialize, Serialize};
use std::{env, ffi::OsString};

/// The processes of a run that are clients of MPS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mps {
    /// None.
    #[default]
    None,
    /// Exporter and readers.
    All,
    /// The readers.
    Readers,
}

impl Mps {
    /// The set-up of this program's environment.
    pub fn here() -> Self {
        match (folder("export"), folder("read")) {
            (Some(_), Some(_)) => Self::All,
            (None, Some(_)) => Self::Readers,
            _ => Self::None,
        }
    }
}

/// Variables that make a process of this role a client of MPS, if it is to be one.
pub fn variables(role: &str) -> Option<(&'static str, OsString)> {
    Some(("CUDA_MPS_PIPE_DIRECTORY", folder(role)?))
}

/// The folder of the daemon's pipes.
fn folder(role: &str) -> Option<OsString> {
    env::var_os(if role == "export" { "MPS_OF_EXPORTERS" } else { "MPS_OF_READERS" })
}
