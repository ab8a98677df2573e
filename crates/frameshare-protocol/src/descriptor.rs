// SPDX-License-Identifier: MIT OR Apache-2.0

//! Frame descriptors: the content of one queue entry, as 64-bit words.

use crate::{
    ids::{AreaIndex, Sequence, SlotId},
    limits::{LARGE_AREA, MAX_PLANES},
};
use std::fmt;

/// Length of an encoded descriptor in 64-bit words: three cache lines.
pub const WORDS: usize = 24;
/// Encodes an absent optional value.
const NONE: u64 = u64::MAX;

/// Layout of a plane within a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plane {
    /// Bytes from the start of the frame to the start of the plane.
    pub offset: u64,
    /// Bytes from one row to the next; negative for bottom-up images.
    pub stride: i32,
}

/// Descriptor of one published frame, for one reader.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// Sequence number of the frame in the stream, counted from 1.
    pub sequence: Sequence,
    /// Number of ordered control messages sent to this reader before this frame.
    pub messages: u64,
    /// Slot that holds the frame.
    pub slot: SlotId,
    /// Metadata area assigned to the frame.
    pub area: AreaIndex,
    /// Bytes of metadata in that area, or in the large area of the same index if they exceed
    /// [`METADATA_AREA`](crate::limits::METADATA_AREA).
    pub metadata: u32,
    /// Bytes from the start of the slot to the start of the frame.
    pub offset: u64,
    /// Size of the frame in bytes.
    pub size: u64,
    /// Presentation time, in ns of `CLOCK_MONOTONIC`.
    pub pts: Option<u64>,
    /// Decoding time, in ns of `CLOCK_MONOTONIC`.
    pub dts: Option<u64>,
    /// Presentation duration, in ns.
    pub duration: Option<u64>,
    /// The source's own counter (of frames, samples or bytes) at the start of the frame.
    pub media_offset: Option<u64>,
    /// The same counter at the end of the frame.
    pub media_offset_end: Option<u64>,
    /// Frame flags, defined by the publisher.
    pub flags: u64,
    /// Time of publication, in ns of `CLOCK_MONOTONIC`.
    pub published: u64,
    /// Number of valid entries in `planes`; 0 for plain bytes or the default layout of the format.
    pub plane_count: u32,
    /// Layout of the planes.
    pub planes: [Plane; MAX_PLANES],
}

/// An invalid descriptor, with the offending field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("descriptor of frame {sequence} has an invalid {field}")]
pub struct InvalidDescriptor {
    /// Sequence number in the descriptor.
    pub sequence: Sequence,
    /// The invalid field.
    pub field: Field,
}

/// A field of a descriptor that can be invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Field {
    /// The sequence number, which differs from the claim's.
    Sequence,
    /// The claim, which never stays the same.
    Claim,
    /// The number of planes.
    PlaneCount,
    /// The offset of a plane.
    PlaneOffset,
    /// The length of the metadata.
    MetadataLength,
    /// Offset and size of the frame.
    Size,
    /// A word that must be zero.
    Reserved,
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sequence => "sequence number",
            Self::Claim => "claim, which never stays the same",
            Self::PlaneCount => "plane count",
            Self::PlaneOffset => "plane offset",
            Self::MetadataLength => "metadata length",
            Self::Size => "size",
            Self::Reserved => "reserved word",
        })
    }
}

impl Descriptor {
    /// Encodes the descriptor as words.
    pub fn encode(&self) -> [u64; WORDS] {
        let some = |value: Option<u64>| value.unwrap_or(NONE);
        let pair = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        let [a, b, c, d] = self.planes;
        [
            self.sequence.0,
            self.messages,
            pair(self.slot.generation, self.slot.index),
            pair(self.area.0, self.metadata),
            self.offset,
            self.size,
            some(self.pts),
            some(self.dts),
            some(self.duration),
            some(self.media_offset),
            some(self.media_offset_end),
            self.flags,
            self.published,
            self.plane_count.into(),
            a.offset,
            b.offset,
            c.offset,
            d.offset,
            pair(a.stride as u32, b.stride as u32),
            pair(c.stride as u32, d.stride as u32),
            0,
            0,
            0,
            0,
        ]
    }

    /// Decodes a descriptor written by a peer.
    ///
    /// Validates the words by themselves only. The caller, which knows the sizes, must check that
    /// the slot and the area exist and that the frame is inside its slot
    /// ([`Descriptor::check_frame`]).
    ///
    /// # Errors
    /// [`InvalidDescriptor`] for a plane count or metadata length above its limit, and for reserved
    /// words that are not zero.
    pub fn decode(words: &[u64; WORDS]) -> Result<Self, InvalidDescriptor> {
        let some = |word: u64| (word != NONE).then_some(word);
        let high = |word: u64| (word >> 32) as u32;
        let low = |word: u64| word as u32;
        let invalid = |field| InvalidDescriptor { sequence: Sequence(words[0]), field };
        let plane = |index: usize, stride: u32| Plane { offset: words[14 + index], stride: stride as i32 };
        let descriptor = Self {
            sequence: Sequence(words[0]),
            messages: words[1],
            slot: SlotId { generation: high(words[2]), index: low(words[2]) },
            area: AreaIndex(high(words[3])),
            metadata: low(words[3]),
            offset: words[4],
            size: words[5],
            pts: some(words[6]),
            dts: some(words[7]),
            duration: some(words[8]),
            media_offset: some(words[9]),
            media_offset_end: some(words[10]),
            flags: words[11],
            published: words[12],
            plane_count: u32::try_from(words[13]).map_err(|_| invalid(Field::PlaneCount))?,
            planes: [
                plane(0, high(words[18])),
                plane(1, low(words[18])),
                plane(2, high(words[19])),
                plane(3, low(words[19])),
            ],
        };
        if descriptor.plane_count as usize > MAX_PLANES {
            return Err(invalid(Field::PlaneCount));
        }
        if descriptor.metadata as usize > LARGE_AREA {
            return Err(invalid(Field::MetadataLength));
        }
        if words[20..].iter().any(|word| *word != 0) {
            return Err(invalid(Field::Reserved));
        }
        Ok(descriptor)
    }

    /// Checks that the frame is inside a slot of `slot_size` bytes, and that every plane starts
    /// inside the frame.
    ///
    /// # Errors
    /// [`InvalidDescriptor`] with the field that is out of range.
    pub fn check_frame(&self, slot_size: u64) -> Result<(), InvalidDescriptor> {
        let invalid = |field| InvalidDescriptor { sequence: self.sequence, field };
        if self.offset.checked_add(self.size).is_none_or(|end| end > slot_size) {
            return Err(invalid(Field::Size));
        }
        if self.used_planes().iter().any(|plane| plane.offset > self.size) {
            return Err(invalid(Field::PlaneOffset));
        }
        Ok(())
    }

    /// Returns the valid entries of `planes`.
    pub fn used_planes(&self) -> &[Plane] {
        &self.planes[..(self.plane_count as usize).min(MAX_PLANES)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Descriptor {
        Descriptor {
            sequence: Sequence(42),
            messages: 3,
            slot: SlotId { generation: 2, index: 5 },
            area: AreaIndex(6),
            metadata: 77,
            offset: 4096,
            size: 1000,
            pts: Some(1),
            dts: None,
            duration: Some(40_000_000),
            media_offset: Some(9),
            media_offset_end: Some(10),
            flags: 1 << 40 | 1,
            published: 123,
            plane_count: 3,
            planes: [
                Plane { offset: 0, stride: 10 },
                Plane { offset: 100, stride: -5 },
                Plane { offset: 150, stride: 5 },
                Plane::default(),
            ],
        }
    }

    #[test]
    fn descriptor_round_trip_is_lossless() {
        assert_eq!(Descriptor::decode(&sample().encode()), Ok(sample()));
    }

    #[test]
    fn frame_outside_slot_is_rejected() {
        assert!(sample().check_frame(5096).is_ok());
        assert_eq!(sample().check_frame(5095).unwrap_err().field, Field::Size);
        let overflowing = Descriptor { offset: u64::MAX, ..sample() };
        assert_eq!(overflowing.check_frame(u64::MAX).unwrap_err().field, Field::Size);
        let mut outside = sample();
        outside.planes[1].offset = 1001;
        assert_eq!(outside.check_frame(5096).unwrap_err().field, Field::PlaneOffset);
    }

    #[test]
    fn invalid_words_are_rejected() {
        for (word, value, field) in [
            (13, 5, Field::PlaneCount),
            (13, 1 << 33, Field::PlaneCount),
            (3, LARGE_AREA as u64 + 1, Field::MetadataLength),
            (23, 1, Field::Reserved),
        ] {
            let mut words = sample().encode();
            words[word] = value;
            assert_eq!(Descriptor::decode(&words).unwrap_err().field, field);
        }
    }
}
