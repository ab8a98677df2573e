// SPDX-License-Identifier: MIT OR Apache-2.0

//! Starts, restarts and stops the processes of a site.

use anyhow::{Result, bail};
use std::path::Path;

/// Runs a site until SIGINT or SIGTERM.
pub fn supervise(config: &Path, demo: bool) -> Result<()> {
    bail!("no supervisor yet for {} (demo {demo})", config.display())
}
