// SPDX-License-Identifier: MIT OR Apache-2.0

//! The readers of a stream: who is there, who has left but still holds something, and the credit of
//! all.

use crate::exporter::{link::Link, system::System};
use std::{
    mem,
    ops::{Index, IndexMut},
};

/// Owns the links to readers and the sum of their credits. A link is *present* until it ends, and
/// then *draining* while its reader holds frames, or memory that waits for it: no further frame is
/// offered to it, and its credit stays reserved while it holds frames. Why a link ends, and what
/// its leases were on, is decided elsewhere.
///
/// Present links are addressed by their index, in the order in which they joined.
#[derive(Debug)]
pub struct Readers<S: System> {
    present: Vec<Link<S>>,
    draining: Vec<Link<S>>,
    /// Credit that is reserved for a reader that is being admitted.
    promised: u32,
    /// Number of readers so far.
    total: u64,
    /// Some link may have changed since changes were last taken.
    is_changed: bool,
}

/// Changes of links that others have to see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// A reader is to be woken.
    pub has_sleepers: bool,
    /// A reader's messages have begun to wait for room in its socket, or wait no longer. No frame
    /// is offered to it meanwhile.
    pub has_blocked: bool,
}

impl<S: System> Default for Readers<S> {
    fn default() -> Self {
        Self { present: Vec::new(), draining: Vec::new(), promised: 0, total: 0, is_changed: false }
    }
}

impl<S: System> Readers<S> {
    /// Present readers.
    pub fn present(&self) -> &[Link<S>] {
        &self.present
    }

    /// The same, to be changed.
    pub fn present_mut(&mut self) -> &mut [Link<S>] {
        self.is_changed = true;
        &mut self.present
    }

    /// Present readers that must get every frame.
    pub fn lossless(&self) -> impl Iterator<Item = &Link<S>> {
        self.present.iter().filter(|link| link.is_lossless())
    }

    /// Readers that get no further frame but still hold something.
    pub fn draining(&self) -> &[Link<S>] {
        &self.draining
    }

    /// The same, to be changed.
    pub fn draining_mut(&mut self) -> &mut [Link<S>] {
        self.is_changed = true;
        &mut self.draining
    }

    /// Present and draining readers.
    pub fn all(&self) -> impl Iterator<Item = &Link<S>> + Clone {
        self.present.iter().chain(&self.draining)
    }

    /// The same, to be changed.
    pub fn all_mut(&mut self) -> impl Iterator<Item = &mut Link<S>> {
        self.is_changed = true;
        self.present.iter_mut().chain(&mut self.draining)
    }

    /// A present or draining reader.
    pub fn find(&mut self, id: u64) -> Option<&mut Link<S>> {
        self.all_mut().find(|link| link.info.id == id)
    }

    /// The index of a present reader.
    pub fn position(&self, id: u64) -> Option<usize> {
        self.present.iter().position(|link| link.info.id == id)
    }

    /// A draining reader.
    pub fn find_draining(&mut self, id: u64) -> Option<&mut Link<S>> {
        self.is_changed = true;
        self.draining.iter_mut().find(|link| link.info.id == id)
    }

    /// Returns a number for a new reader.
    pub fn count(&mut self) -> u64 {
        self.total += 1;
        self.total
    }

    /// Number of readers so far.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Adds a present reader; returns its index.
    pub fn add(&mut self, link: Link<S>) -> usize {
        self.is_changed = true;
        self.present.push(link);
        self.present.len() - 1
    }

    /// Takes out a present reader.
    pub fn remove(&mut self, index: usize) -> Link<S> {
        self.present.remove(index)
    }

    /// Puts a reader back to its index.
    pub fn put_back(&mut self, index: usize, link: Link<S>) {
        self.present.insert(index, link);
    }

    /// Takes out all present readers.
    pub fn take_present(&mut self) -> Vec<Link<S>> {
        mem::take(&mut self.present)
    }

    /// Adds a draining reader.
    pub fn drain(&mut self, link: Link<S>) {
        self.is_changed = true;
        self.draining.push(link);
    }

    /// Takes out a draining reader for which this is true.
    pub fn remove_draining(&mut self, is_it: impl Fn(&Link<S>) -> bool) -> Option<Link<S>> {
        let index = self.draining.iter().position(is_it)?;
        Some(self.draining.remove(index))
    }

    /// Takes out all draining readers.
    pub fn take_draining(&mut self) -> Vec<Link<S>> {
        mem::take(&mut self.draining)
    }

    /// Returns the changes since the last call that others have to see. Links are looked through
    /// only if one was given out to be changed.
    #[inline]
    pub fn take_changes(&mut self) -> Changes {
        let mut changes = Changes::default();
        if mem::take(&mut self.is_changed) {
            for link in self.present.iter_mut().chain(&mut self.draining) {
                changes.has_sleepers |= link.is_to_wake();
                changes.has_blocked |= link.take_blocked();
            }
        }
        changes
    }

    /// Takes the readers that are to be woken.
    pub fn take_sleepers(&mut self, sleepers: &mut S::Sleepers) {
        let links = self.present.iter_mut().chain(&mut self.draining);
        links.for_each(|link| link.take_wake(sleepers));
    }

    /// Returns whether a reader has imports of a generation.
    pub fn import(&self, generation: u32) -> bool {
        self.all().any(|link| link.imports.generations().any(|known| known == generation))
    }

    /// Reserves credit for the reader that is being admitted.
    pub fn promise(&mut self, credit: u32) {
        self.promised = credit;
    }

    /// Ends the reservation.
    pub fn end_promise(&mut self) {
        self.promised = 0;
    }

    /// The sum of all readers' credits.
    pub fn credit(&self) -> u32 {
        let draining = self.draining.iter().filter(|link| !link.leases.is_empty());
        let links = self.present.iter().chain(draining);
        self.promised + links.map(|link| link.info.credit).sum::<u32>()
    }

    /// The sum of the credits of present readers of the exporter's own user and of root.
    pub fn own_credit(&self) -> u32 {
        let own = self.present.iter().filter(|link| link.peer().is_own_or_root);
        own.map(|link| link.info.credit).sum()
    }
}

impl<S: System> Index<usize> for Readers<S> {
    type Output = Link<S>;

    fn index(&self, index: usize) -> &Link<S> {
        &self.present[index]
    }
}

impl<S: System> IndexMut<usize> for Readers<S> {
    fn index_mut(&mut self, index: usize) -> &mut Link<S> {
        self.is_changed = true;
        &mut self.present[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exporter::{
        fake::{Connection, Fake, Signals, link},
        system::Sent,
        unit::Unit,
    };
    use frameshare_protocol::{
        AreaIndex, EntryIndex, MemoryKind, Policy, Sequence, SlotId,
        message::{Reason, ToReader},
    };

    fn reader(id: u64, credit: u32) -> Link<Fake> {
        link(id, credit, Policy::Latest, Connection::default())
    }

    /// Present readers 1 and 2, and the draining reader 3, whose credits are 2, 3 and 4.
    fn readers() -> Readers<Fake> {
        let mut readers = Readers::default();
        assert_eq!([readers.count(), readers.count(), readers.count(), readers.total()], [1, 2, 3, 3]);
        assert_eq!([readers.add(reader(1, 2)), readers.add(reader(2, 3))], [0, 1]);
        readers.drain(reader(3, 4));
        readers
    }

    fn ids(readers: &Readers<Fake>) -> Vec<u64> {
        readers.all().map(|link| link.info.id).collect()
    }

    #[test]
    fn readers_are_found_by_number() {
        let mut readers = readers();
        for (id, position, is_draining) in [(1, Some(0), false), (2, Some(1), false), (3, None, true)] {
            assert_eq!(readers.find(id).unwrap().info.id, id);
            assert_eq!(readers.position(id), position);
            assert_eq!(readers.find_draining(id).map(|link| link.info.id), is_draining.then_some(id));
        }
        let first = readers.remove(0);
        assert_eq!(ids(&readers), [2, 3]);
        readers.put_back(0, first);
        assert_eq!(ids(&readers), [1, 2, 3]);
        assert!(readers.remove_draining(|link| link.info.id == 1).is_none());
        assert_eq!(readers.remove_draining(|link| link.info.id == 3).unwrap().info.id, 3);
        assert_eq!(ids(&readers), [1, 2]);
    }

    #[test]
    fn credit_is_reserved_while_frames_are_held() {
        let mut readers = readers();
        readers.promise(10);
        assert_eq!(readers.credit(), 2 + 3 + 10, "the draining reader holds no frame");
        let lease = (EntryIndex(0), AreaIndex(0), Sequence(1), Unit::Whole, MemoryKind::Host);
        let (entry, area, sequence, unit, kind) = lease;
        readers.draining_mut()[0].offer(entry, area, sequence, unit, kind, &mut Signals).unwrap();
        assert_eq!(readers.credit(), 2 + 3 + 4 + 10);
        readers.end_promise();
        assert_eq!((readers.credit(), readers.own_credit()), (2 + 3 + 4, 0));
    }

    #[test]
    fn generation_is_imported_until_no_reader_has_it() {
        let mut readers = readers();
        readers.find_draining(3).unwrap().imports.add(SlotId { generation: 5, index: 0 });
        assert!(readers.import(5) && !readers.import(4));
    }

    #[test]
    fn changes_of_any_reader_are_seen_once() {
        let (mut readers, connection) = (readers(), Connection::default());
        let index = readers.add(link(4, 1, Policy::Lossless, connection.clone()));
        assert_eq!(readers.lossless().count(), 1);
        assert_eq!(readers.take_changes(), Changes::default());
        // The last readers are unchanged.
        connection.0.lock().unwrap().refuses = Some(Sent::Full);
        let message = ToReader::Goodbye { reason: Reason::Stopped, text: String::new() };
        readers[index].send(&message).unwrap();
        let blocked = Changes { has_blocked: true, has_sleepers: false };
        assert_eq!([readers.take_changes(), readers.take_changes()], [blocked, Changes::default()]);
        readers.present_mut()[0].wake_up();
        let sleepers = Changes { has_sleepers: true, has_blocked: false };
        assert_eq!([readers.take_changes(), readers.take_changes()], [sleepers, Changes::default()]);
        let mut woken = Vec::new();
        readers.take_sleepers(&mut woken);
        readers.take_sleepers(&mut woken);
        assert_eq!(woken.len(), 1);
    }
}
