// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory files of kept units: checks, and the frames in them.

use crate::{
    reader::{error::ProtocolViolation, lease::Frame, origin::Origin},
    sys::{Mapping, SealedAgainst, UntrustedFd, Words, check_memfd, load_bytes},
};
use frameshare_core::reader::Violation;
use frameshare_protocol::kept::{KeptUnit, RECORD};
use std::{
    io,
    sync::{Arc, atomic::Ordering},
};

/// A mapped file of kept units.
#[derive(Clone, Debug)]
pub(super) struct KeptFile(Words);

impl KeptFile {
    /// Maps a file of `size` bytes.
    ///
    /// # Errors
    /// [`ProtocolViolation`] if the file is missing, or lacks the agreed size or seals.
    pub fn open(fd: Option<UntrustedFd>, size: u64) -> Result<Self, ProtocolViolation> {
        let fd = fd.ok_or(ProtocolViolation::DescriptorCount)?;
        let map = || -> io::Result<Words> {
            check_memfd(&fd, size, SealedAgainst::ResizingAndWriting)?;
            let len = usize::try_from(size).map_err(|_| io::ErrorKind::OutOfMemory)?;
            Mapping::read_only(&fd, len).map(Words::from)
        };
        map().map(Self).map_err(ProtocolViolation::Payload)
    }

    /// Length in words.
    pub fn words(&self) -> usize {
        self.0.len()
    }

    /// Reads and checks the record at word `at`, which is wholly in the file.
    ///
    /// # Errors
    /// [`Violation::Descriptor`] for a unit that is not wholly in the file.
    pub fn unit(&self, at: usize) -> Result<KeptUnit, Violation> {
        let mut record = [0; RECORD];
        for (value, word) in record.iter_mut().zip(&self.0[at..]) {
            *value = word.load(Ordering::Relaxed);
        }
        Ok(KeptUnit::decode(&record, at, self.words())?)
    }

    /// Makes a frame of the unit whose record is at word `at`.
    ///
    /// # Errors
    /// [`Violation::KeptUnitsEnd`] if its bytes are not in the file.
    pub fn frame(
        self,
        at: usize,
        unit: KeptUnit,
        session: u64,
        is_last: bool,
        origin: Arc<Origin>,
    ) -> Result<Frame, Violation> {
        let end = Violation::KeptUnitsEnd { size: 8 * self.words() as u64, end: 8 * at as u64 };
        let metadata = load_bytes(&self.0, unit.metadata_at, unit.metadata);
        Frame::kept(unit.descriptor, metadata, self.0, session, is_last, origin).ok_or(end)
    }
}
