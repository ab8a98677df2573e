// SPDX-License-Identifier: MIT OR Apache-2.0

//! Test case, and its requirements.

use std::fmt;

use anyhow::Result;

/// A test case.
pub struct Case {
    /// Suite of the case.
    pub suite: &'static str,
    /// Name within the suite.
    pub name: &'static str,
    /// Time limit in seconds.
    pub seconds: u64,
    /// Requirements.
    pub needs: Needs,
    /// Runs the case; returns a detail text for the report.
    pub conduct: fn(seed: u64) -> Result<String>,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.suite, self.name)
    }
}

/// Requirements of a case in addition to a GPU.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// Not even a GPU.
    NoGpu,
    /// None.
    Nothing,
    /// A second GPU.
    TwoDevices,
    /// The simulated driver, which can inject failures.
    Simulation,
    /// Permission to create namespaces.
    Namespaces,
}

/// Error of a case that cannot run on this machine.
#[derive(Debug)]
pub struct Skip(pub String);

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skip {}
