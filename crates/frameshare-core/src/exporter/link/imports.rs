// SPDX-License-Identifier: MIT OR Apache-2.0

//! A reader's imports: the generations and slots that were introduced to it.

use frameshare_protocol::SlotId;
use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
};

/// A generation that was introduced to a reader.
#[derive(Debug, Default)]
struct Generation {
    slots: BTreeSet<u32>,
    /// Slots whose imports the reader was asked to drop, and their bytes.
    retired_slots: BTreeMap<u32, u64>,
    /// The reader was asked to drop its imports.
    is_retired: bool,
}

/// The generations whose imports a reader has not dropped.
#[derive(Debug, Default)]
pub struct Imports(BTreeMap<u32, Generation>);

impl Imports {
    /// The generations by their numbers.
    pub fn generations(&self) -> impl Iterator<Item = u32> {
        self.0.keys().copied()
    }

    /// Returns whether the reader may have imports of a generation.
    pub fn has_any(&self, generation: u32) -> bool {
        self.0.contains_key(&generation)
    }

    /// Returns whether a slot was introduced, and the reader was not asked to drop it.
    #[inline]
    pub fn has(&self, slot: SlotId) -> bool {
        self.0.get(&slot.generation).is_some_and(|generation| generation.slots.contains(&slot.index))
    }

    /// Records that a slot was introduced.
    pub fn add(&mut self, slot: SlotId) {
        self.0.entry(slot.generation).or_default().slots.insert(slot.index);
    }

    /// Records that the reader is asked to drop its imports of a generation. Returns false if it
    /// has none, or was asked already.
    pub fn retire(&mut self, generation: u32) -> bool {
        let generation = self.0.get_mut(&generation);
        generation.is_some_and(|generation| !mem::replace(&mut generation.is_retired, true))
    }

    /// Records that the reader has dropped its imports of a generation. Returns false if it had
    /// none, or was not asked to drop them; a reader that `may_drop_all` need not be asked.
    pub fn drop_generation(&mut self, generation: u32, may_drop_all: bool) -> bool {
        let asked = self.0.get(&generation).is_some_and(|known| may_drop_all || known.is_retired);
        asked && self.0.remove(&generation).is_some()
    }

    /// Records that the reader is asked to drop its import of a slot of `bytes` bytes. Returns
    /// false if it has none, or was asked already.
    pub fn retire_slot(&mut self, slot: SlotId, bytes: u64) -> bool {
        let Some(generation) = self.0.get_mut(&slot.generation) else { return false };
        let is_known = generation.slots.remove(&slot.index);
        is_known && generation.retired_slots.insert(slot.index, bytes).is_none()
    }

    /// Records that the reader has dropped its import of a slot. Returns false if it was not asked.
    pub fn drop_slot(&mut self, slot: SlotId) -> bool {
        let generation = self.0.get_mut(&slot.generation);
        generation.is_some_and(|generation| generation.retired_slots.remove(&slot.index).is_some())
    }

    /// Returns whether the reader may have an import of a slot, whether or not it was asked to drop
    /// it.
    pub fn may_have(&self, slot: SlotId) -> bool {
        let generation = self.0.get(&slot.generation);
        self.has(slot) || generation.is_some_and(|known| known.retired_slots.contains_key(&slot.index))
    }

    /// Number of slots that the reader was asked for and has not dropped.
    pub fn retired_slots(&self) -> usize {
        self.0.values().map(|generation| generation.retired_slots.len()).sum()
    }

    /// Bytes that the reader was asked for and has not dropped: of retired slots, and of
    /// generations that are `retired`.
    pub fn kept(&self, retired: &BTreeMap<u32, u64>) -> u64 {
        let slots = self.0.values().flat_map(|generation| generation.retired_slots.values());
        let generations = self.0.keys().filter_map(|generation| retired.get(generation));
        slots.chain(generations).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: SlotId = SlotId { generation: 2, index: 5 };
    const UNKNOWN: SlotId = SlotId { generation: 2, index: 6 };

    fn imports() -> Imports {
        let mut imports = Imports::default();
        imports.add(SLOT);
        imports
    }

    #[test]
    fn slot_is_imported_until_the_reader_drops_it_when_asked() {
        let mut imports = imports();
        assert!(imports.has(SLOT) && imports.may_have(SLOT));
        assert!(!imports.drop_slot(SLOT), "the reader was not asked");
        for slot in [UNKNOWN, SlotId { generation: 3, ..SLOT }] {
            assert!(!imports.has(slot) && !imports.may_have(slot) && !imports.retire_slot(slot, 100));
            assert!(!imports.drop_slot(slot));
        }
        assert!(imports.retire_slot(SLOT, 100) && !imports.retire_slot(SLOT, 100));
        assert!(!imports.has(SLOT) && imports.may_have(SLOT));
        assert_eq!(imports.retired_slots(), 1);
        assert!(imports.drop_slot(SLOT) && !imports.drop_slot(SLOT));
        assert!(!imports.may_have(SLOT) && imports.has_any(2));
        assert_eq!(imports.retired_slots(), 0);
    }

    #[test]
    fn generation_is_imported_until_the_reader_drops_it_when_asked() {
        let mut imports = imports();
        assert!(imports.has_any(2) && !imports.has_any(3));
        assert_eq!(imports.generations().collect::<Vec<_>>(), [2]);
        assert!(!imports.retire(3) && !imports.drop_generation(3, true));
        assert!(!imports.drop_generation(2, false) && imports.has_any(2), "the reader was not asked");
        assert!(imports.retire(2) && !imports.retire(2));
        assert!(imports.has_any(2) && imports.has(SLOT));
        assert!(imports.drop_generation(2, false));
        assert!(!imports.has_any(2) && !imports.may_have(SLOT));
        // A reader that cannot import a generation drops it unasked.
        imports.add(SLOT);
        assert!(imports.drop_generation(2, true) && !imports.has_any(2));
    }

    #[test]
    fn memory_that_the_reader_was_asked_for_is_kept() {
        let mut imports = imports();
        imports.add(SlotId { generation: 7, index: 1 });
        imports.retire_slot(SLOT, 100);
        let retired = BTreeMap::from([(7, 3000), (8, 50_000)]);
        assert_eq!(imports.kept(&retired), 3100);
        imports.drop_slot(SLOT);
        assert_eq!(imports.kept(&retired), 3000);
    }
}
