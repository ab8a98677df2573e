// SPDX-License-Identifier: MIT OR Apache-2.0

//! The page: all cameras as small pictures, one of them in full, and the state of the site.

use crate::roles::Context;
use anyhow::{Result, bail};

/// Serves the page until the role is stopped.
pub fn run(context: &Context) -> Result<()> {
    bail!("no page yet for {}", context.config.wall.listen)
}
