// SPDX-License-Identifier: MIT OR Apache-2.0

//! Frames and units that are kept for readers that join later.

use crate::exporter::{link::WaitingFrame, unit::Unit};
use frameshare_protocol::{AreaIndex, Descriptor, Sequence, kept::KeptUnit, limits::MAX_KEPT_UNITS};
use std::{mem, sync::Arc, time::Duration};

/// Minimum time between two requests for a key unit, in ns.
const BETWEEN_REQUESTS: u64 = 1_000_000_000;

/// The content of a unit, copied out of its slot.
#[derive(Debug)]
pub struct Content {
    /// Its metadata.
    pub metadata: Box<[u8]>,
    /// Its bytes.
    pub bytes: Box<[u8]>,
}

impl Content {
    /// Bytes to copy.
    pub fn size(&self) -> u64 {
        (self.metadata.len() + self.bytes.len()) as u64
    }
}

/// A unit, and its copy.
#[derive(Clone, Debug)]
pub struct KeptCopy {
    pub descriptor: Descriptor,
    pub content: Arc<Content>,
}

/// Kept units in order, without gaps.
pub type KeptUnits = Vec<KeptCopy>;

/// Owns the last frame of a stream of whole frames, which holds its publication, or copies of the
/// units since the last key unit of an encoded stream. It does not know who joins, nor whether the
/// owner of the stream wants anything kept. Times are in ns of `CLOCK_MONOTONIC`.
///
/// Units are copied before they are published, with the state unlocked. Format changes, the end of
/// the stream and units beyond the limit drop the copies until the next key unit. Dropped units
/// are returned, to be freed with the state unlocked.
#[derive(Debug)]
pub struct Kept<A> {
    frame: Option<WaitingFrame<A>>,
    units: KeptUnits,
    /// Bytes of the units in a memory file.
    bytes: u64,
    /// The last published unit.
    last: Unit,
    /// Time of the last request for a key unit.
    requested: Option<u64>,
}

impl<A> Default for Kept<A> {
    fn default() -> Self {
        Self { frame: None, units: Vec::new(), bytes: 0, last: Unit::default(), requested: None }
    }
}

impl<A> Kept<A> {
    /// Keeps a frame in place of the last one, or none. Returns the area of the last one, whose
    /// lease ends.
    pub fn replace_frame(&mut self, frame: Option<WaitingFrame<A>>) -> Option<AreaIndex> {
        mem::replace(&mut self.frame, frame).map(|last| last.area)
    }

    /// Returns whether the kept frame is in this area.
    pub fn has_frame_in(&self, area: AreaIndex) -> bool {
        self.frame.as_ref().is_some_and(|frame| frame.area == area)
    }

    /// The kept frame, if no other has followed it for so long. In a fast stream the next one comes
    /// soon, and at its own time.
    pub fn frame_after(&self, pause: Duration, now: u64) -> Option<&WaitingFrame<A>> {
        let age =
            |frame: &WaitingFrame<A>| Duration::from_nanos(now.saturating_sub(frame.descriptor.published));
        self.frame.as_ref().filter(|frame| age(frame) >= pause)
    }

    /// Number of kept units.
    pub fn units(&self) -> u32 {
        self.units.len() as u32
    }

    /// Bytes of the kept units.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns whether a unit of this size continues or begins the kept GOP within `limit`.
    pub fn has_room(&self, unit: Unit, bytes: u64, metadata: usize, limit: u64) -> bool {
        let before = match unit {
            Unit::Key => 0,
            Unit::Delta if !self.units.is_empty() && self.units() < MAX_KEPT_UNITS => self.bytes,
            Unit::Whole | Unit::Delta => return false,
        };
        encoded_size(bytes, metadata).is_some_and(|size| before.saturating_add(size) <= limit)
    }

    /// Notes a unit that is published. Returns true if it depends on units before it, which no
    /// reader has got.
    pub fn note(&mut self, unit: Unit) -> bool {
        let last = mem::replace(&mut self.last, unit);
        unit == Unit::Delta && last == Unit::Whole
    }

    /// Keeps the copy of the unit that is published, if there is one and it has room within
    /// `limit`; else the kept GOP ends. Returns what it drops.
    pub fn keep_unit(
        &mut self,
        descriptor: &Descriptor,
        content: Option<Arc<Content>>,
        limit: u64,
        now: u64,
    ) -> KeptUnits {
        let unit = self.last;
        let size = descriptor.size;
        let fits = |content: &Arc<Content>| self.has_room(unit, size, content.metadata.len(), limit);
        let content = content.filter(fits);
        let dropped = if unit == Unit::Key || content.is_none() { self.drop_units() } else { Vec::new() };
        if let Some(content) = content {
            self.bytes += encoded_size(size, content.metadata.len()).unwrap_or_default();
            let descriptor = Descriptor { published: now, ..descriptor.clone() };
            self.units.push(KeptCopy { descriptor, content });
        }
        dropped
    }

    /// Takes all units out: readers that join get none of them.
    pub fn drop_units(&mut self) -> KeptUnits {
        self.bytes = 0;
        mem::take(&mut self.units)
    }

    /// Takes all units out: the next unit belongs to another sequence of units.
    pub fn end_units(&mut self) -> KeptUnits {
        self.last = Unit::Whole;
        self.drop_units()
    }

    /// Returns whether the stream consists of units: one that follows another one depends on it.
    pub fn has_units(&self) -> bool {
        self.last != Unit::Whole
    }

    /// The sequence number of the key unit that the kept GOP begins with.
    pub fn begin_of_units(&self) -> Option<Sequence> {
        self.units.first().map(|unit| unit.descriptor.sequence)
    }

    /// Returns the kept units from `from` on.
    pub fn units_from(&self, from: Sequence) -> KeptUnits {
        self.units.iter().filter(|unit| unit.descriptor.sequence >= from).cloned().collect()
    }

    /// Returns whether the owner is to be asked for a key unit: at most once in
    /// `BETWEEN_REQUESTS`, and if the stream has any.
    pub fn asks_for_key(&mut self, now: u64) -> bool {
        let recent = self.requested.is_some_and(|at| now.saturating_sub(at) < BETWEEN_REQUESTS);
        let asks = !recent && self.has_units();
        if asks {
            self.requested = Some(now);
        }
        asks
    }
}

/// Returns the size of a unit in a memory file.
fn encoded_size(size: u64, metadata: usize) -> Option<u64> {
    let unit = KeptUnit::new(Descriptor { size, ..Descriptor::default() }, metadata, 0)?;
    Some(8 * unit.next as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use frameshare_protocol::kept::RECORD;

    /// Bytes of a unit of 20 bytes with 5 bytes of metadata, in whole words.
    const UNIT: u64 = 8 * (RECORD as u64 + 1 + 3);

    /// A kept frame in the area of its number.
    fn frame(area: u32, published: u64) -> WaitingFrame<()> {
        let descriptor = Descriptor { published, ..Descriptor::default() };
        WaitingFrame { area: AreaIndex(area), descriptor, oversized: None, bytes: 100 }
    }

    /// Publishes a unit with this number, and keeps its copy. Returns the number of units that are
    /// dropped.
    fn publish(kept: &mut Kept<()>, unit: Unit, sequence: u64, limit: u64) -> usize {
        kept.note(unit);
        let content = Arc::new(Content { metadata: [0; 5].into(), bytes: [0; 20].into() });
        assert_eq!(content.size(), 25);
        let descriptor = Descriptor { sequence: Sequence(sequence), size: 20, ..Descriptor::default() };
        kept.keep_unit(&descriptor, Some(content), limit, 7000 + sequence).len()
    }

    /// The numbers of units.
    fn numbers(units: &KeptUnits) -> Vec<u64> {
        units.iter().map(|unit| unit.descriptor.sequence.0).collect()
    }

    #[test]
    fn last_frame_is_kept_once_no_other_follows_it() {
        let (mut kept, pause) = (Kept::default(), Duration::from_nanos(100));
        assert_eq!(kept.replace_frame(Some(frame(3, 1000))), None);
        assert!(kept.has_frame_in(AreaIndex(3)) && !kept.has_frame_in(AreaIndex(4)));
        assert!(kept.frame_after(pause, 1099).is_none() && kept.frame_after(pause, 1100).is_some());
        assert_eq!(kept.replace_frame(None), Some(AreaIndex(3)));
        assert!(!kept.has_frame_in(AreaIndex(3)) && kept.frame_after(pause, 1100).is_none());
    }

    #[test]
    fn units_are_kept_from_the_last_key_unit_on() {
        let mut kept = Kept::default();
        // Units before the first key unit are of no use.
        assert_eq!(publish(&mut kept, Unit::Delta, 1, 10 * UNIT), 0);
        assert_eq!((kept.units(), kept.bytes(), kept.begin_of_units()), (0, 0, None));
        for (unit, sequence) in [(Unit::Key, 2), (Unit::Delta, 3), (Unit::Delta, 4)] {
            assert_eq!(publish(&mut kept, unit, sequence, 3 * UNIT), 0);
        }
        assert_eq!((kept.units(), kept.bytes(), kept.begin_of_units()), (3, 3 * UNIT, Some(Sequence(2))));
        let units = kept.units_from(Sequence(3));
        assert_eq!((numbers(&units), units[0].descriptor.published), (vec![3, 4], 7003));
        assert_eq!(publish(&mut kept, Unit::Key, 5, 3 * UNIT), 3);
        assert_eq!((kept.units(), kept.bytes(), kept.begin_of_units()), (1, UNIT, Some(Sequence(5))));
        // A unit without a copy ends the kept units, and so does a whole frame.
        kept.note(Unit::Delta);
        assert_eq!(numbers(&kept.keep_unit(&Descriptor::default(), None, 3 * UNIT, 0)), [5]);
        assert_eq!(publish(&mut kept, Unit::Key, 7, 3 * UNIT), 0);
        assert_eq!(publish(&mut kept, Unit::Whole, 8, 3 * UNIT), 1);
        assert_eq!((kept.units(), kept.bytes()), (0, 0));
    }

    #[test]
    fn kept_units_are_limited_in_bytes_and_number() {
        let mut kept = Kept::default();
        publish(&mut kept, Unit::Key, 1, 2 * UNIT);
        assert!(
            kept.has_room(Unit::Delta, 20, 5, 2 * UNIT) && !kept.has_room(Unit::Delta, 20, 5, 2 * UNIT - 1)
        );
        assert!(kept.has_room(Unit::Key, 20, 5, UNIT) && !kept.has_room(Unit::Key, 20, 5, UNIT - 1));
        assert!(!kept.has_room(Unit::Whole, 20, 5, u64::MAX), "a whole frame is not kept as a unit");
        assert!(!kept.has_room(Unit::Delta, u64::MAX, 5, u64::MAX), "no file takes the unit");
        publish(&mut kept, Unit::Delta, 2, 2 * UNIT);
        assert_eq!(publish(&mut kept, Unit::Delta, 3, 2 * UNIT), 2);
        for sequence in 1..=u64::from(MAX_KEPT_UNITS) {
            let unit = if sequence == 1 { Unit::Key } else { Unit::Delta };
            assert_eq!(publish(&mut kept, unit, sequence, u64::MAX), 0);
        }
        assert_eq!(kept.units(), MAX_KEPT_UNITS);
        assert!(!kept.has_room(Unit::Delta, 20, 5, u64::MAX) && kept.has_room(Unit::Key, 20, 5, UNIT));
    }

    #[test]
    fn delta_unit_without_units_before_depends_on_unknown_ones() {
        let mut kept = Kept::<()>::default();
        assert!(!kept.has_units());
        for (unit, depends) in [
            (Unit::Whole, false),
            (Unit::Delta, true),
            (Unit::Delta, false),
            (Unit::Key, false),
            (Unit::Delta, false),
            (Unit::Whole, false),
        ] {
            assert_eq!(kept.note(unit), depends, "{unit:?}");
            assert_eq!(kept.has_units(), unit != Unit::Whole);
        }
        kept.note(Unit::Key);
        kept.end_units();
        assert!(
            !kept.has_units() && kept.note(Unit::Delta),
            "the next unit belongs to another sequence of units"
        );
    }

    #[test]
    fn key_units_are_requested_once_a_second() {
        let mut kept = Kept::<()>::default();
        assert!(!kept.asks_for_key(0), "the stream has no key units");
        kept.note(Unit::Key);
        for (now, asks) in [
            (5, true),
            (5, false),
            (BETWEEN_REQUESTS + 4, false),
            (BETWEEN_REQUESTS + 5, true),
            (BETWEEN_REQUESTS + 6, false),
        ] {
            assert_eq!(kept.asks_for_key(now), asks, "{now}");
        }
    }
}
