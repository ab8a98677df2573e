// SPDX-License-Identifier: MIT OR Apache-2.0

//! All generations of a stream: slot allocation, adopted memory, and retirement.

use super::{
    departure::Ending,
    generation::{Generation, Place, Unallocated},
    link::Link,
    slot::{AcquireError, Purpose, Slot},
    state::{Publication, State},
};
use crate::{
    memory::{Allocation, MemoryError, adopted, frees_imports_first, same_process},
    sys::is_own_or_root,
};
use frameshare_protocol::{MemoryKind, message::Reason};
use std::{any::Any, collections::BTreeSet, mem, sync::Arc};

/// Slots are allocated in whole pages.
const PAGE: u64 = 4096;

impl State {
    /// Retires old generations that only readers still refer to, and frees their slots.
    pub fn retire(&mut self) {
        let newest = |kind| self.generations.iter().rfind(|one| one.is_own(kind)).map(|one| one.id);
        // The generation of new frames, and the one of downloads.
        let current = [newest(self.kind()), self.downloads.as_ref().and_then(|_| newest(MemoryKind::Host))];
        for index in 0..self.generations.len() {
            let publications = &self.publications;
            let generation = &mut self.generations[index];
            let (id, kind) = (generation.id, generation.kind);
            let of = |slot| {
                let in_slot = |publication: &&Publication| {
                    publication.slot.0.generation == id && publication.slot.0.index == slot
                };
                publications.iter().flatten().filter(in_slot).count()
            };
            let old = !generation.is_foreign() && !current.contains(&Some(id));
            if old && !generation.retired && generation.is_held_by_publications_alone(of) {
                self.retire_generation(index);
            }
            let imported = is_imported(&self.links, &self.leaving, id);
            let generation = &mut self.generations[index];
            if generation.retired && !(frees_imports_first(kind) && imported) {
                let unused = generation.take_unused();
                if !unused.is_empty() {
                    self.trash.push(Box::new(unused));
                }
            }
        }
        // Memory that a reader imports stays allocated although the exporter has freed it.
        self.retired.retain(|id, _| is_imported(&self.links, &self.leaving, *id));
        let closed = self.closed;
        self.generations
            .retain(|one| !one.is_empty() || (!closed && (current.contains(&Some(one.id)) || !one.retired)));
    }

    /// Asks readers to drop their imports of a generation. A reader that keeps too much memory from
    /// being freed is evicted.
    fn retire_generation(&mut self, index: usize) {
        let generation = &mut self.generations[index];
        generation.retired = true;
        let (before, id, bytes) = (self.next, generation.id, generation.bytes());
        let retired = mem::take(&mut self.retired);
        let limit = self.config.max_retired_bytes;
        self.each_link(|link| {
            let kept: u64 = link.knows().filter_map(|known| retired.get(&known)).sum();
            if kept > limit {
                let text =
                    format!("it keeps {kept} bytes of retired memory from being freed, and may keep {limit}");
                return Err(Ending::new(Reason::LimitExceeded, text));
            }
            link.retire(before, id)
        });
        self.retired = retired;
        self.retired.insert(id, bytes);
    }

    /// Returns a free slot of at least `size` bytes, or capacity for one.
    pub fn place(&mut self, size: u64, purpose: Purpose) -> Result<Place, AcquireError> {
        // This may find that the GPU has failed, and close the stream.
        self.reclaim();
        if self.closed {
            return Err(AcquireError::Closed);
        }
        let needed = size.max(1).checked_next_multiple_of(PAGE).ok_or(AcquireError::Size(size))?;
        if needed > frameshare_protocol::limits::MAX_SLOT_SIZE {
            return Err(AcquireError::Size(size));
        }
        let kind = self.kind();
        let renew = mem::replace(&mut self.renew, false);
        self.renew_host |= renew;
        self.renew_generation(kind, needed, renew)?;
        let max = self.config.max_slots;
        let credit = self.credit();
        let publications = &self.publications;
        let current = self.generations.iter_mut().rfind(|one| one.is_open(kind));
        let Some(generation) = current else { return Err(AcquireError::Size(size)) };
        if purpose == Purpose::Pool && held_upstream(generation, publications) + credit + 2 >= max {
            return Err(AcquireError::Exhausted { max_slots: max });
        }
        generation.place(max)
    }

    /// Makes a slot of memory that was allocated for it, unless the limit has been reached
    /// meanwhile.
    pub fn add(&mut self, slot: &Unallocated, memory: Arc<dyn Allocation>, exporter: u64) -> Option<Slot> {
        let max = self.config.max_slots;
        let generation = self.generations.iter_mut().find(|one| one.id == slot.generation)?;
        if generation.retired || generation.len() >= max {
            return None;
        }
        let (kind, slot) = (generation.kind, generation.add(memory, exporter));
        self.note_local(&slot, kind);
        Some(slot)
    }

    /// Returns whether there are slots of `size` bytes to wait for when no more can be allocated.
    pub fn has_slots(&self, size: u64) -> bool {
        let kind = self.kind();
        let current = self.generations.iter().rfind(|one| one.is_open(kind));
        current.is_some_and(|one| one.slot_size >= size && !one.is_empty())
    }

    /// Reuses an existing slot when no further slot can be allocated. `latest` readers lose untaken
    /// frames for it, unless a lossless one still needs them.
    pub fn make_do(&mut self, size: u64) -> Option<Slot> {
        let kind = self.kind();
        let lossless = self.links.iter().filter(|link| link.is_lossless());
        let needed: BTreeSet<usize> = lossless.flat_map(Link::areas).collect();
        loop {
            let current = self.generations.iter_mut().rfind(|one| one.is_open(kind));
            if let Some(slot) = current.filter(|one| one.slot_size >= size)?.free() {
                return Some(slot);
            }
            // User data of a lease that has just ended may hold a slot; it is dropped when the
            // state is unlocked.
            if !self.dropped.is_empty() {
                return None;
            }
            let mut ended = Vec::new();
            self.each_link(|link| {
                if !link.is_lossless() {
                    link.revoke_oldest(&mut ended, |area| !needed.contains(&area))?;
                }
                Ok(())
            });
            if ended.is_empty() {
                return None;
            }
            self.end_leases(ended);
        }
    }

    /// Returns a free host slot for a download, or capacity for one; `None` if all are in use.
    pub fn place_host(&mut self, size: u64) -> Option<Place> {
        let needed = size.max(1).checked_next_multiple_of(PAGE)?;
        let renew = mem::replace(&mut self.renew_host, false);
        self.renew_generation(MemoryKind::Host, needed, renew).ok()?;
        let generation = self.generations.iter_mut().rfind(|one| one.is_open(MemoryKind::Host))?;
        generation.place(self.config.max_slots).ok()
    }

    /// Starts a new generation of own slots if the newest does not suit.
    fn renew_generation(&mut self, kind: MemoryKind, needed: u64, renew: bool) -> Result<(), MemoryError> {
        let present = self.generations.iter().rfind(|one| one.is_open(kind)).map_or(0, |one| one.slot_size);
        if needed > present || (renew && needed != present) {
            // Within one format only plain bytes vary in size: leave room for longer frames.
            let slot_size = if renew || present == 0 { needed } else { needed.next_power_of_two() };
            let gpu = self.config.gpu.as_ref();
            self.generations.push(Generation::new(self.next_generation, slot_size, kind, gpu)?);
            self.next_generation += 1;
            self.retire();
        }
        Ok(())
    }

    /// Registers memory for readers of this process, which use it in place since they cannot import
    /// it.
    fn note_local(&self, slot: &Slot, kind: MemoryKind) {
        if !frees_imports_first(kind) {
            return;
        }
        let key = (self.session, slot.0.generation, slot.0.index);
        same_process::note(key, &slot.0.memory, self.config.gpu.as_ref());
    }

    /// Returns the slot of an adopted allocation: its existing one, or a new one.
    pub fn adopt(
        &mut self,
        pointer: u64,
        owner: Box<dyn Any + Send>,
        exporter: u64,
    ) -> Result<(Slot, u64), AcquireError> {
        // User code in Drop must not run under the lock.
        let mut owner = Some(owner);
        let adopted = self.adopt_from(pointer, &mut owner, exporter);
        self.dropped.extend(owner);
        adopted
    }

    /// Implements [`State::adopt`]; takes the owner if it makes a slot.
    fn adopt_from(
        &mut self,
        pointer: u64,
        owner: &mut Option<Box<dyn Any + Send>>,
        exporter: u64,
    ) -> Result<(Slot, u64), AcquireError> {
        if self.closed {
            return Err(AcquireError::Closed);
        }
        let Some(gpu) = self.config.gpu.clone() else {
            let cause = "no GPU was given to share it on".into();
            return Err(MemoryError { doing: "share", size: None, kind: MemoryKind::Legacy, cause }.into());
        };
        let buffer_id = adopted::buffer_id(&gpu, pointer)?;
        let open = |one: &Generation| one.is_foreign() && !one.retired;
        let known = self.generations.iter().filter(|one| open(one)).find_map(|one| one.adopted(buffer_id));
        let slot = match known {
            Some(slot) => slot,
            None => {
                let memory = adopted::AdoptedAllocation::new(&gpu, pointer, owner)?;
                let size = memory.size();
                // The slots of a generation are of one size.
                let fits = self.generations.iter().position(|one| open(one) && one.slot_size == size);
                let index = fits.unwrap_or_else(|| {
                    self.generations.insert(0, Generation::foreign(self.next_generation, size));
                    self.next_generation += 1;
                    0
                });
                self.generations[index].adopt(memory, buffer_id, exporter)
            }
        };
        self.note_local(&slot, MemoryKind::Legacy);
        let start = match slot.address() {
            crate::memory::Address::Device(start) => start,
            crate::memory::Address::Host(_) => pointer,
        };
        Ok((slot, pointer.saturating_sub(start)))
    }

    /// The kind of memory that frames go to.
    pub fn kind(&self) -> MemoryKind {
        if self.in_host { MemoryKind::Host } else { self.memory.kind }
    }

    pub fn use_host_memory(&mut self, yes: bool) {
        self.renew |= mem::replace(&mut self.in_host, yes) != yes;
    }

    /// Names a reader that cannot read adopted memory, with the reason, if there is one.
    pub fn cannot_adopt(&self) -> Option<String> {
        self.links.iter().find_map(|link| {
            let info = &link.info;
            link.cannot_adopt
                .as_ref()
                .map(|why| format!("reader {} ({}, process {}): {why}", info.id, info.name, info.pid))
        })
    }

    /// Returns the reason why some reader cannot read a frame in this slot, if there is one.
    pub fn not_for_all(&self, slot: &Slot) -> Option<String> {
        let mut foreign = self.generations.iter().filter(|one| one.is_foreign());
        foreign.any(|one| one.id == slot.0.generation).then(|| self.cannot_adopt()).flatten()
    }

    /// Retires adopted memory: its owners are dropped when no reader imports it any more.
    pub fn retire_adopted(&mut self) {
        for index in 0..self.generations.len() {
            if self.generations[index].is_foreign() && !self.generations[index].retired {
                self.retire_generation(index);
            }
        }
        self.retire();
    }

    /// The sum of all readers' credits.
    pub fn credit(&self) -> u32 {
        let links = self.links.iter().chain(self.leaving.iter().filter(|link| !link.holds_nothing()));
        self.promised + links.map(|link| link.info.credit).sum::<u32>()
    }

    /// Returns the credit left for a joining reader of this user. A quarter of the slots is
    /// reserved for readers of the exporter's own user, so that other users cannot exclude them.
    pub fn credit_left(&mut self, uid: u32) -> u32 {
        let kind = self.kind();
        let current = self.generations.iter_mut().rfind(|one| one.is_own(kind));
        let held = current.map_or(0, |generation| held_upstream(generation, &self.publications));
        let left = self.config.max_slots.saturating_sub(2 + self.credit() + held);
        if is_own_or_root(uid) {
            return left;
        }
        let own = self.links.iter().filter(|link| is_own_or_root(link.info.uid));
        let in_use = own.map(|link| link.info.credit).sum();
        left.saturating_sub((self.config.max_slots / 4).saturating_sub(in_use))
    }
}

/// Returns whether a reader has imports of a generation.
fn is_imported(links: &[Link], leaving: &[Link], generation: u32) -> bool {
    links.iter().chain(leaving).any(|link| link.knows().any(|known| known == generation))
}

/// Returns the number of slots of a generation with other holders than publications.
fn held_upstream(generation: &mut Generation, publications: &[Option<Publication>]) -> u32 {
    let id = generation.id;
    generation.count_held(|index| {
        let mut slots = publications.iter().flatten().map(|publication| &publication.slot.0);
        slots.any(|slot| slot.generation == id && slot.index == index)
    })
}
