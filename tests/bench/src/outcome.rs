// SPDX-License-Identifier: MIT OR Apache-2.0

//! Results of the runs.

use crate::{
    case::{Case, Transport},
    mps::Mps,
    pace::Exported,
    watch::Received,
};
use serde::{Deserialize, Serialize};

/// Result of one run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// Number of the round.
    pub round: usize,
    /// The transport.
    pub transport: Transport,
    /// The case.
    pub case: Case,
    /// The clients of MPS.
    #[serde(default)]
    pub mps: Mps,
    /// Figures, or the point at which the run got stuck.
    pub result: std::result::Result<Figures, String>,
}

/// Measurements of both sides.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figures {
    /// Of the exporter.
    pub exported: Exported,
    /// Of each reader.
    pub received: Vec<Received>,
}
