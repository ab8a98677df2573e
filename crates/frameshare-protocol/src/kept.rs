// SPDX-License-Identifier: MIT OR Apache-2.0

//! Kept units: the content of the memory file of a
//! [`ToReader::KeptUnits`](crate::message::ToReader::KeptUnits).
//!
//! The units follow each other without gaps. Each is a record of [`RECORD`] words (its descriptor,
//! then the length of its metadata in bytes), its metadata, and its bytes. Metadata and bytes start
//! at whole words. In the descriptor, `offset` counts from the start of the file; slot, area,
//! `metadata` and `messages` are zero.

use crate::{
    descriptor::{self, Descriptor, Field, InvalidDescriptor},
    ids::{AreaIndex, SlotId},
    limits::MAX_PAYLOAD,
};

/// Length of a unit's record in 64-bit words.
pub const RECORD: usize = descriptor::WORDS + 1;
/// Bytes of a word.
const WORD: u64 = 8;

/// Place and description of one unit in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptUnit {
    /// Description of the unit; `offset` is the position of its bytes in the file.
    pub descriptor: Descriptor,
    /// Position of its metadata in the file, in words.
    pub metadata_at: usize,
    /// Length of its metadata in bytes.
    pub metadata: usize,
    /// Position of the next record, or of the end of the units, in words.
    pub next: usize,
}

impl KeptUnit {
    /// Lays out a unit with `metadata` bytes of metadata whose record is at word `at`; `None` if it
    /// does not fit into a file of [`MAX_PAYLOAD`] bytes.
    pub fn new(descriptor: Descriptor, metadata: usize, at: usize) -> Option<Self> {
        let whole = |bytes: u64| bytes.checked_next_multiple_of(WORD);
        let metadata_at = (at as u64).checked_add(RECORD as u64)?;
        let start = metadata_at.checked_mul(WORD)?.checked_add(whole(metadata as u64)?)?;
        let end = start.checked_add(whole(descriptor.size)?)?;
        if end > MAX_PAYLOAD {
            return None;
        }
        let descriptor = Descriptor {
            offset: start,
            slot: SlotId::default(),
            area: AreaIndex::default(),
            metadata: 0,
            messages: 0,
            ..descriptor
        };
        let next = usize::try_from(end / WORD).ok()?;
        Some(Self { descriptor, metadata_at: usize::try_from(metadata_at).ok()?, metadata, next })
    }

    /// Encodes the unit's record.
    pub fn encode(&self) -> [u64; RECORD] {
        let mut words = [0; RECORD];
        words[..descriptor::WORDS].copy_from_slice(&self.descriptor.encode());
        words[descriptor::WORDS] = self.metadata as u64;
        words
    }

    /// Decodes and validates the record at word `at` of a file of `file` words from an exporter.
    ///
    /// # Errors
    /// [`InvalidDescriptor`] for a unit that is not wholly inside the file, or not where its record
    /// ends.
    pub fn decode(words: &[u64; RECORD], at: usize, file: usize) -> Result<Self, InvalidDescriptor> {
        let mut encoded = [0; descriptor::WORDS];
        encoded.copy_from_slice(&words[..descriptor::WORDS]);
        let descriptor = Descriptor::decode(&encoded)?;
        let invalid = |field| InvalidDescriptor { sequence: descriptor.sequence, field };
        let metadata = usize::try_from(words[descriptor::WORDS]);
        let metadata = metadata.map_err(|_| invalid(Field::MetadataLength))?;
        let unit = Self::new(descriptor.clone(), metadata, at).filter(|unit| unit.next <= file);
        let unit = unit.ok_or(invalid(Field::Size))?;
        if unit.descriptor != descriptor {
            return Err(invalid(Field::Size));
        }
        descriptor.check_frame(file as u64 * WORD)?;
        Ok(unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sequence;

    fn unit() -> KeptUnit {
        let descriptor = Descriptor { sequence: Sequence(7), size: 20, flags: 3, ..Descriptor::default() };
        KeptUnit::new(descriptor, 5, 10).unwrap()
    }

    #[test]
    fn kept_unit_round_trip_is_lossless() {
        let unit = unit();
        assert_eq!((unit.metadata_at, unit.next), (10 + RECORD, 10 + RECORD + 1 + 3));
        assert_eq!(unit.descriptor.offset, 8 * (10 + RECORD as u64 + 1));
        assert_eq!(KeptUnit::decode(&unit.encode(), 10, unit.next), Ok(unit));
    }

    #[test]
    fn kept_unit_outside_its_file_is_rejected() {
        let unit = unit();
        let field = |words: [u64; RECORD], at, file| KeptUnit::decode(&words, at, file).unwrap_err().field;
        assert_eq!(field(unit.encode(), 10, unit.next - 1), Field::Size);
        assert_eq!(field(unit.encode(), 11, unit.next + 1), Field::Size, "another place");
        for (word, value) in [(5, u64::MAX), (5, MAX_PAYLOAD), (24, u64::MAX), (24, MAX_PAYLOAD), (4, 0)] {
            let mut words = unit.encode();
            words[word] = value;
            assert_eq!(field(words, 10, unit.next), Field::Size, "word {word}: {value}");
        }
        for (word, value) in [(1, 1), (2, 1), (3, 1)] {
            let mut words = unit.encode();
            words[word] = value;
            assert!(KeptUnit::decode(&words, 10, unit.next).is_err(), "word {word}: {value}");
        }
        let mut words = unit.encode();
        (words[13], words[14]) = (1, 21);
        assert_eq!(field(words, 10, unit.next), Field::PlaneOffset);
    }

    #[test]
    fn kept_unit_larger_than_any_file_has_no_layout() {
        let of_size = |size| KeptUnit::new(Descriptor { size, ..Descriptor::default() }, 0, 0);
        let record = RECORD as u64 * 8;
        assert!(of_size(MAX_PAYLOAD - record).is_some());
        assert!(of_size(MAX_PAYLOAD - record + 1).is_none() && of_size(u64::MAX).is_none());
        assert!(KeptUnit::new(Descriptor::default(), usize::MAX, 0).is_none());
        assert!(KeptUnit::new(Descriptor::default(), 0, usize::MAX).is_none());
    }
}
