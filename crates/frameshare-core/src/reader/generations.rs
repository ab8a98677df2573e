// SPDX-License-Identifier: MIT OR Apache-2.0

//! Generations whose frames may still arrive, and their imported slots.

use super::violation::Violation;
use frameshare_protocol::{Descriptor, MemoryKind, SlotId};
use std::collections::BTreeMap;

/// Maximum number of generations, and of slots of all of them, that are imported at once: a process
/// has at most some 65,000 mappings.
const MAX_GENERATIONS: usize = 256;
const MAX_IMPORTS: usize = 8192;

/// A new generation, as the exporter announces it.
#[derive(Clone, Copy, Debug)]
pub struct Announcement {
    /// Its number.
    pub generation: u32,
    /// The kind of memory of its slots.
    pub memory: MemoryKind,
    /// Size of each slot in bytes.
    pub slot_size: u64,
    /// Whether the slots are memory of a third party, such as a decoder, shared in place.
    pub adopted: bool,
}

/// Owns the generations of a connection that are not retired: which of their slots are imported,
/// and which generations are unreadable, since an import failed. It imports nothing itself: `M` is
/// the memory of a generation, from which its slots are imported, and `I` an imported slot.
///
/// The order, for a generation: [`Generations::check_room`] before it is opened, and
/// [`Generations::add`]; for each slot [`Generations::begin_import`], then
/// [`Generations::insert`] or [`Generations::mark_unreadable`]; [`Generations::retire_slot`] and
/// [`Generations::retire`] drop imports. [`Generations::place`] is asked for each frame.
#[derive(Debug)]
pub struct Generations<M, I> {
    by_number: BTreeMap<u32, Generation<M, I>>,
}

#[derive(Debug)]
struct Generation<M, I> {
    kind: MemoryKind,
    slot_size: u64,
    /// An import failed: no frame in the generation is taken.
    is_unreadable: bool,
    memory: M,
    slots: BTreeMap<u32, I>,
}

/// The place of a frame in memory: its generation and the import of its slot, if they are known.
#[derive(Debug)]
pub struct Place<'a, M, I> {
    generation: Option<&'a Generation<M, I>>,
    import: Option<&'a I>,
}

impl<M, I> Default for Generations<M, I> {
    /// No generations yet.
    fn default() -> Self {
        Self { by_number: BTreeMap::new() }
    }
}

impl<M, I> Generations<M, I> {
    /// Checks that one more generation may be added.
    ///
    /// # Errors
    /// [`Violation::TooManyGenerations`].
    pub fn check_room(&self) -> Result<(), Violation> {
        if self.by_number.len() >= MAX_GENERATIONS {
            return Err(Violation::TooManyGenerations { limit: MAX_GENERATIONS });
        }
        Ok(())
    }

    /// Adds a generation in this memory.
    ///
    /// # Errors
    /// [`Violation::DuplicateGeneration`] if it exists already.
    pub fn add(&mut self, new: Announcement, memory: M) -> Result<(), Violation> {
        let Announcement { generation, memory: kind, slot_size, .. } = new;
        let new = Generation { kind, slot_size, is_unreadable: false, memory, slots: BTreeMap::new() };
        match self.by_number.insert(generation, new) {
            Some(_) => Err(Violation::DuplicateGeneration { generation }),
            None => Ok(()),
        }
    }

    /// Returns the kind and size of a new slot, and the memory that it is to be imported from;
    /// `None` if its generation is unreadable.
    ///
    /// # Errors
    /// [`Violation`] beyond the limit, or if there is no such generation.
    pub fn begin_import(&self, slot: SlotId) -> Result<Option<(MemoryKind, u64, &M)>, Violation> {
        let imports: usize = self.by_number.values().map(|one| one.slots.len()).sum();
        if imports >= MAX_IMPORTS {
            return Err(Violation::TooManySlots { limit: MAX_IMPORTS });
        }
        match self.by_number.get(&slot.generation) {
            None => Err(Violation::SlotOfUnknownGeneration { slot }),
            Some(one) if one.is_unreadable => Ok(None),
            Some(one) => Ok(Some((one.kind, one.slot_size, &one.memory))),
        }
    }

    /// Adds the import of a slot.
    ///
    /// # Errors
    /// [`Violation::DuplicateSlot`] if it exists already.
    pub fn insert(&mut self, slot: SlotId, import: I) -> Result<(), Violation> {
        let found = self.by_number.get_mut(&slot.generation);
        match found.and_then(|found| found.slots.insert(slot.index, import)) {
            Some(_) => Err(Violation::DuplicateSlot { slot }),
            None => Ok(()),
        }
    }

    /// Notes that an import of a generation failed: the next frames are elsewhere. Returns the
    /// memory of the generation, of which nothing is imported any more.
    pub fn mark_unreadable(&mut self, generation: u32) -> Option<&mut M> {
        let found = self.by_number.get_mut(&generation)?;
        found.is_unreadable = true;
        Some(&mut found.memory)
    }

    /// Removes a generation, with its imports. Held frames keep theirs.
    pub fn retire(&mut self, generation: u32) {
        self.by_number.remove(&generation);
    }

    /// Removes a slot, which no frame uses any more. Returns its import; `None` if it was not
    /// imported, since its generation is unreadable.
    ///
    /// # Errors
    /// [`Violation::RetiredUnknownSlot`] if there is no such slot.
    pub fn retire_slot(&mut self, slot: SlotId) -> Result<Option<I>, Violation> {
        let found = self.by_number.get_mut(&slot.generation);
        let found = found.ok_or(Violation::RetiredUnknownSlot { slot })?;
        match found.slots.remove(&slot.index) {
            None if !found.is_unreadable => Err(Violation::RetiredUnknownSlot { slot }),
            removed => Ok(removed),
        }
    }

    /// The place of a frame in this slot.
    pub fn place(&self, slot: SlotId) -> Place<'_, M, I> {
        let generation = self.by_number.get(&slot.generation);
        Place { generation, import: generation.and_then(|generation| generation.slots.get(&slot.index)) }
    }
}

impl<'a, M, I> Place<'a, M, I> {
    /// Returns whether an import of the frame's generation failed: the next frames are elsewhere.
    pub fn is_unreadable(&self) -> bool {
        self.generation.is_some_and(|generation| generation.is_unreadable)
    }

    /// Returns whether the frame's slot is imported.
    pub fn is_imported(&self) -> bool {
        self.import.is_some()
    }

    /// Returns whether the frame has fences of its connection. Host frames have none: they are
    /// complete when they are published.
    pub fn is_fenced(&self) -> bool {
        self.generation.is_none_or(|generation| generation.is_unreadable || generation.kind.is_gpu())
    }

    /// Returns whether the frame is in a dma-buf, which has fences of its own.
    pub fn is_in_dma_buf(&self) -> bool {
        self.generation.is_some_and(|generation| generation.kind == MemoryKind::DmaBuf)
    }

    /// The import of the frame's slot, which contains the frame.
    ///
    /// # Errors
    /// The violation if there is no such slot, or the frame is not inside it.
    pub fn import(&self, descriptor: &Descriptor) -> Result<&'a I, Violation> {
        let &Descriptor { sequence, slot: SlotId { generation, index }, .. } = descriptor;
        let Some(found) = self.generation else {
            return Err(Violation::UnknownGeneration { sequence, generation });
        };
        let Some(import) = self.import else {
            return Err(Violation::UnknownSlot { sequence, slot: index });
        };
        descriptor.check_frame(found.slot_size)?;
        Ok(import)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use frameshare_protocol::Sequence;

    const SLOT: SlotId = SlotId { generation: 1, index: 5 };

    fn announcement(generation: u32, memory: MemoryKind) -> Announcement {
        Announcement { generation, memory, slot_size: 100, adopted: false }
    }

    /// Generation 1 in host memory and 2 in GPU memory; slot 5 of the former is imported.
    fn known() -> Generations<&'static str, &'static str> {
        let mut known = Generations::default();
        known.add(announcement(1, MemoryKind::Host), "host").unwrap();
        known.add(announcement(2, MemoryKind::Vmm), "GPU").unwrap();
        assert_eq!(known.begin_import(SLOT).unwrap(), Some((MemoryKind::Host, 100, &"host")));
        known.insert(SLOT, "slot 5").unwrap();
        known
    }

    fn frame(slot: SlotId, size: u64) -> Descriptor {
        Descriptor { sequence: Sequence(3), slot, size, ..Descriptor::default() }
    }

    #[test]
    fn frame_is_found_inside_its_imported_slot_only() {
        let known = known();
        let import = |slot, size| known.place(slot).import(&frame(slot, size));
        assert_eq!(import(SLOT, 100).unwrap(), &"slot 5");
        let violations = [
            import(SLOT, 101).unwrap_err(),
            import(SlotId { index: 6, ..SLOT }, 1).unwrap_err(),
            import(SlotId { generation: 3, ..SLOT }, 1).unwrap_err(),
        ];
        assert!(
            matches!(
                violations,
                [
                    Violation::Descriptor(_),
                    Violation::UnknownSlot { slot: 6, .. },
                    Violation::UnknownGeneration { generation: 3, .. }
                ]
            ),
            "{violations:?}"
        );
    }

    #[test]
    fn frames_outside_host_memory_are_fenced() {
        let mut known = known();
        known.add(announcement(4, MemoryKind::DmaBuf), "dma-buf").unwrap();
        let fenced = |known: &Generations<_, _>, generation| {
            let place = known.place(SlotId { generation, ..SLOT });
            (place.is_fenced(), place.is_in_dma_buf())
        };
        let found: Vec<_> = (1..5).map(|generation| fenced(&known, generation)).collect();
        // Number 3 is unknown.
        assert_eq!(found, [(false, false), (true, false), (true, false), (false, true)]);
        known.mark_unreadable(4);
        assert_eq!(fenced(&known, 4), (true, true));
    }

    #[test]
    fn unreadable_generation_imports_nothing_and_retires() {
        let mut known = known();
        assert!(!known.place(SLOT).is_unreadable());
        assert_eq!(known.mark_unreadable(1), Some(&mut "host"));
        assert!(known.place(SLOT).is_unreadable() && known.place(SLOT).is_imported());
        let late = SlotId { index: 6, ..SLOT };
        assert_eq!(known.begin_import(late).unwrap(), None);
        assert_eq!(known.retire_slot(late).unwrap(), None);
        assert_eq!(known.retire_slot(SLOT).unwrap(), Some("slot 5"));
        known.retire(1);
        assert!(!known.place(SLOT).is_unreadable() && !known.place(SLOT).is_imported());
        assert!(known.mark_unreadable(1).is_none());
    }

    #[test]
    fn repeated_and_unknown_numbers_are_violations() {
        let mut known = known();
        let unknown = SlotId { generation: 9, index: 0 };
        let violations = [
            known.insert(SLOT, "again").unwrap_err(),
            known.begin_import(unknown).unwrap_err(),
            known.retire_slot(unknown).unwrap_err(),
            known.retire_slot(SlotId { index: 6, ..SLOT }).unwrap_err(),
            known.add(announcement(2, MemoryKind::Host), "again").unwrap_err(),
        ];
        assert!(
            matches!(
                violations,
                [
                    Violation::DuplicateSlot { slot: SLOT },
                    Violation::SlotOfUnknownGeneration { .. },
                    Violation::RetiredUnknownSlot { .. },
                    Violation::RetiredUnknownSlot { .. },
                    Violation::DuplicateGeneration { generation: 2 }
                ]
            ),
            "{violations:?}"
        );
    }

    #[test]
    fn generations_and_imports_are_limited() {
        let mut known = Generations::<(), ()>::default();
        for generation in 0..MAX_GENERATIONS as u32 {
            known.check_room().unwrap();
            known.add(announcement(generation, MemoryKind::Host), ()).unwrap();
        }
        let error = known.check_room().unwrap_err();
        assert!(matches!(error, Violation::TooManyGenerations { .. }), "{error}");
        for index in 0..MAX_IMPORTS as u32 {
            let slot = SlotId { generation: index % 2, index };
            assert!(known.begin_import(slot).unwrap().is_some());
            known.insert(slot, ()).unwrap();
        }
        let error = known.begin_import(SLOT).unwrap_err();
        assert!(matches!(error, Violation::TooManySlots { .. }), "{error}");
    }
}
