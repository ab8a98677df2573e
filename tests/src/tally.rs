// SPDX-License-Identifier: MIT OR Apache-2.0

//! Totals of a long run.

use std::fmt;

/// Totals so far.
#[derive(Default)]
pub struct Tally {
    /// Frames that readers received with the published content.
    pub frames: u64,
    /// Frames lost by `latest` readers, as their policy allows.
    pub lost: u64,
    /// Readers that joined.
    pub joined: u64,
    /// Readers that closed their connections.
    pub left: u64,
    /// Readers that were killed.
    pub killed: u64,
    /// Exporters that were killed.
    pub exporters_killed: u64,
}

impl Tally {
    /// Adds two totals.
    #[must_use]
    pub fn plus(self, other: &Self) -> Self {
        Self {
            frames: self.frames + other.frames,
            lost: self.lost + other.lost,
            joined: self.joined + other.joined,
            left: self.left + other.left,
            killed: self.killed + other.killed,
            exporters_killed: self.exporters_killed + other.exporters_killed,
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { frames, lost, joined, left, killed, exporters_killed } = self;
        write!(
            f,
            "{frames} frames compared and right, {lost} lost by readers of the latest; {joined} readers joined, {left} \
             left, {killed} killed; {exporters_killed} exporters killed"
        )
    }
}
