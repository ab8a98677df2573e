// SPDX-License-Identifier: MIT OR Apache-2.0

//! Stamps in a file of their own, for frames that cannot be written: the exporter writes the file,
//! readers look stamps up by frame number.

use crate::stamp::{SIZE, Stamp};
use anyhow::{Context, Result};
use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

/// Stamps of a run.
#[derive(Debug)]
pub struct Stamps(File);

/// Path of the file, beside the stream's socket.
pub fn path(socket: &str) -> PathBuf {
    Path::new(socket).with_extension("stamps")
}

impl Stamps {
    /// Creates the file, for the exporter.
    pub fn create(socket: &str) -> Result<Self> {
        File::create(path(socket)).map(Self).context("no file for stamps")
    }

    /// Opens the file, for a reader.
    pub fn open(socket: &str) -> Result<Self> {
        File::open(path(socket)).map(Self).context("the exporter keeps no stamps")
    }

    /// Writes the stamp of a frame. If that fails, readers ignore the frame.
    pub fn note(&self, stamp: Stamp) {
        let _ = self.0.write_all_at(&stamp.encode(), stamp.sequence * SIZE as u64);
    }

    /// Reads the stamp of a frame.
    pub fn of(&self, sequence: u64) -> Option<Stamp> {
        let mut bytes = [0; SIZE];
        self.0.read_exact_at(&mut bytes, sequence * SIZE as u64).ok()?;
        Stamp::decode(&bytes).filter(|stamp| stamp.sequence == sequence)
    }
}
