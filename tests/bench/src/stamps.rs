//! Stamps beside the frames, for frames that nobody can write into: a file that the exporter writes and readers look up
//! by the frame's number.

use crate::stamp::{SIZE, Stamp};
use anyhow::{Context, Result};
use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

/// The stamps of a run.
#[derive(Debug)]
pub struct Stamps(File);

/// Where they are, beside the stream's socket.
pub fn path(socket: &str) -> PathBuf {
    Path::new(socket).with_extension("stamps")
}

impl Stamps {
    /// For the exporter.
    pub fn create(socket: &str) -> Result<Self> {
        File::create(path(socket)).map(Self).context("no file for stamps")
    }

    /// For a reader.
    pub fn open(socket: &str) -> Result<Self> {
        File::open(path(socket)).map(Self).context("the exporter keeps no stamps")
    }

    /// Notes the stamp of a frame; a frame whose stamp cannot be noted is seen by nobody.
    pub fn note(&self, stamp: Stamp) {
        let _ = self.0.write_all_at(&stamp.encode(), stamp.sequence * SIZE as u64);
    }

    /// The stamp of a frame.
    pub fn of(&self, sequence: u64) -> Option<Stamp> {
        let mut bytes = [0; SIZE];
        self.0.read_exact_at(&mut bytes, sequence * SIZE as u64).ok()?;
        Stamp::decode(&bytes).filter(|stamp| stamp.sequence == sequence)
    }
}
