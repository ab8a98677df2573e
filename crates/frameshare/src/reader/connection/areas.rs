// SPDX-License-Identifier: MIT OR Apache-2.0

//! Metadata areas of a connection: those of its `Welcome`, and large ones.

use super::setup::map;
use crate::{
    reader::error::{ProtocolViolation, ReadError},
    sys::{UntrustedFd, Words, load_bytes},
};
use frameshare_protocol::{Descriptor, limits::METADATA_AREA, page::large_areas_size};

/// Metadata areas.
#[derive(Debug)]
pub(super) struct Areas {
    words: Words,
    count: u32,
    large: Option<(Words, u32)>,
    /// The reader's limit of metadata in bytes.
    limit: u64,
}

impl Areas {
    pub fn new(words: Words, count: u32, limit: u64) -> Self {
        Self { words, count, large: None, limit }
    }

    /// Maps large areas.
    ///
    /// # Errors
    /// The violation if there are some already, or the file lacks the agreed size or seals.
    pub fn add_large(&mut self, fd: Option<&UntrustedFd>, count: u32) -> Result<(), ProtocolViolation> {
        if self.large.is_some() {
            return Err(ProtocolViolation::RepeatedAreas);
        }
        let fd = fd.ok_or(ProtocolViolation::DescriptorCount)?;
        self.large = Some((map(fd, large_areas_size(count), false)?, count));
        Ok(())
    }

    /// Copies the metadata of a frame out of its area.
    ///
    /// # Errors
    /// [`ReadError::Violation`] if the exporter has no such area, [`ReadError::TooMuchMetadata`]
    /// if it exceeds the reader's limit.
    pub fn load(&self, descriptor: &Descriptor) -> Result<Vec<u8>, ReadError> {
        let &Descriptor { area, metadata, sequence, .. } = descriptor;
        let unknown = || ProtocolViolation::UnknownArea { sequence, area };
        if area.0 >= self.count {
            return Err(unknown().into());
        }
        let length = metadata as usize;
        if length <= METADATA_AREA {
            return Ok(load_bytes(&self.words, area.first_word(), length));
        }
        let Some((words, _)) = self.large.as_ref().filter(|(_, count)| area.0 < *count) else {
            return Err(unknown().into());
        };
        if u64::from(metadata) > self.limit {
            return Err(ReadError::TooMuchMetadata { size: metadata.into(), limit: self.limit });
        }
        Ok(load_bytes(words, area.first_large_word(), length))
    }
}
