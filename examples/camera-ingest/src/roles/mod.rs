// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a process does for its cameras.

use crate::{
    config::{Camera, Config},
    report::Reporter,
    wall,
};
use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

/// Job of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Capture,
    Decode,
    Record,
    Motion,
    Model,
    Wall,
}

/// What every role gets. It runs until SIGINT or SIGTERM, which end it cleanly.
pub struct Context<'a> {
    pub config: &'a Config,
    pub cameras: &'a [Camera],
    pub reporter: Reporter,
    /// Becomes readable at SIGINT and SIGTERM.
    pub stop: frameshare::Interrupt,
}

/// Runs a role until it is stopped.
pub fn run(role: Role, config: &Config, cameras: &[Camera]) -> Result<()> {
    let context = Context {
        config,
        cameras,
        reporter: Reporter::of_environment(),
        stop: frameshare::Interrupt::new()?,
    };
    match role {
        Role::Wall => wall::run(&context),
        role => bail!("no role {role:?} yet"),
    }
}
