// SPDX-License-Identifier: MIT OR Apache-2.0

//! Kept units from the exporter: checked memory files, and the frames in them.

use crate::{
    reader::{
        error::{ProtocolViolation, ReadError},
        lease::Frame,
        parts::Progress,
    },
    sys::{Mapping, SealedAgainst, UntrustedFd, Words, check_memfd, load_bytes},
};
use frameshare_protocol::{
    Sequence,
    kept::{KeptUnit, RECORD},
};
use std::{io, sync::atomic::Ordering};

/// The kept units of one connection.
#[derive(Debug)]
pub(super) struct Kept {
    /// Limit of the bytes of all units.
    limit: u64,
    /// Bytes of all units so far.
    opened: u64,
    session: u64,
    /// Units that are due.
    due: Option<KeptUnits>,
    /// The last delivered unit.
    last: Sequence,
}

impl Kept {
    pub fn new(limit: u64, session: u64) -> Self {
        Self { limit, opened: 0, session, due: None, last: Sequence(0) }
    }

    /// Maps a file of `count` units with `size` bytes, all from before frame `before`.
    ///
    /// # Errors
    /// [`ProtocolViolation`] beyond the limit, and for an invalid memory file.
    pub fn open(
        &mut self,
        fd: Option<UntrustedFd>,
        before: Sequence,
        count: u32,
        size: u64,
    ) -> Result<KeptUnits, ProtocolViolation> {
        self.opened = self.opened.saturating_add(size);
        if self.opened > self.limit {
            return Err(ProtocolViolation::TooManyKeptUnits { size: self.opened, limit: self.limit });
        }
        let fd = fd.ok_or(ProtocolViolation::DescriptorCount)?;
        let map = || -> io::Result<Words> {
            check_memfd(&fd, size, SealedAgainst::ResizingAndWriting)?;
            let len = usize::try_from(size).map_err(|_| io::ErrorKind::OutOfMemory)?;
            Mapping::read_only(&fd, len).map(Words::from)
        };
        let file = map().map_err(ProtocolViolation::Payload)?;
        Ok(KeptUnits { file, at: 0, left: count, before, session: self.session })
    }

    /// Delivers these units next. Earlier ones have been delivered.
    pub fn begin(&mut self, units: KeptUnits) {
        self.due = Some(units);
    }

    /// Returns the next of the due units, and counts it.
    ///
    /// # Errors
    /// [`ReadError::Violation`] for a record that is not wholly in the file, or not in order.
    pub fn next(&mut self, progress: &mut Progress) -> Result<Option<Frame>, ReadError> {
        let Some(units) = &mut self.due else { return Ok(None) };
        let unit = units.next(self.last)?;
        match &unit {
            Some(unit) => {
                self.last = unit.descriptor().sequence;
                progress.deliver_kept();
            }
            None => self.due = None,
        }
        Ok(unit)
    }
}

/// The units of one file that are not delivered yet. Each record is checked when it is reached.
#[derive(Debug)]
pub(super) struct KeptUnits {
    file: Words,
    /// Position of the next record in words.
    at: usize,
    left: u32,
    /// The first frame after the units.
    before: Sequence,
    session: u64,
}

impl KeptUnits {
    /// Returns the next unit, which follows unit `after`; `None` if none is left.
    fn next(&mut self, after: Sequence) -> Result<Option<Frame>, ProtocolViolation> {
        let end =
            || ProtocolViolation::KeptUnitsEnd { size: 8 * self.file.len() as u64, end: 8 * self.at as u64 };
        let Some(left) = self.left.checked_sub(1) else {
            return if self.at == self.file.len() { Ok(None) } else { Err(end()) };
        };
        let mut record = [0; RECORD];
        let words = self.at.checked_add(RECORD).and_then(|to| self.file.get(self.at..to));
        for (value, word) in record.iter_mut().zip(words.ok_or_else(end)?) {
            *value = word.load(Ordering::Relaxed);
        }
        let unit = KeptUnit::decode(&record, self.at, self.file.len())?;
        let sequence = unit.descriptor.sequence;
        if sequence <= after || sequence >= self.before {
            let after = if sequence <= after { after } else { self.before };
            return Err(ProtocolViolation::FrameOrder { sequence, after });
        }
        let metadata = load_bytes(&self.file, unit.metadata_at, unit.metadata);
        let is_last = sequence.next() == self.before;
        let frame = Frame::kept(unit.descriptor, metadata, self.file.clone(), self.session, is_last);
        let frame = frame.ok_or_else(end)?;
        (self.at, self.left) = (unit.next, left);
        Ok(Some(frame))
    }
}
