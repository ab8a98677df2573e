// SPDX-License-Identifier: MIT OR Apache-2.0

//! Publications: frames with at least one lease, by metadata area.

use crate::exporter::system::{Signals, System};
use frameshare_protocol::{AreaIndex, Sequence};
use std::any::Any;

/// A publication with at least one lease, or with its write under way.
pub struct Publication<S: System> {
    /// The slot that holds the frame.
    pub slot: S::Slot,
    leases: u32,
    /// User data that is dropped when it ends.
    pub keep: Option<Box<dyn Any + Send>>,
    /// The GPU work that writes the frame, if there is any.
    pub writing: Option<<S::Signals as Signals>::Writing>,
}

/// Owns the publications that hold slots, and their numbers. It counts leases; whose they are, and
/// whether a write is done, it is told.
///
/// A slot is free when all accesses to it have ended, its own write included. A publication without
/// leases, which no reader waited for, therefore holds its slot and its user data until the work
/// that writes it is done. The order: [`Publications::begin`], [`Publications::open`], leases,
/// [`Publications::end_lease`], and for one whose write is under way
/// [`Publications::wait_for_write`] and [`Publications::take_written`].
pub struct Publications<S: System> {
    by_area: Vec<Option<Publication<S>>>,
    /// Those without leases whose writes are under way.
    unwritten: Vec<Publication<S>>,
    /// The sequence number of the next publication.
    next: Sequence,
    /// Time of the last publication in ns of `CLOCK_MONOTONIC`; 0 before the first.
    last_at: u64,
}

impl<S: System> Publications<S> {
    /// Has so many metadata areas.
    pub fn new(areas: u32) -> Self {
        let by_area = (0..areas).map(|_| None).collect();
        Self { by_area, unwritten: Vec::new(), next: Sequence::FIRST, last_at: 0 }
    }

    /// The sequence number of the next publication.
    pub fn next(&self) -> Sequence {
        self.next
    }

    /// Begins a publication; returns its sequence number.
    pub fn begin(&mut self) -> Sequence {
        let sequence = self.next;
        self.next = sequence.next();
        sequence
    }

    /// Time of the last publication in ns of `CLOCK_MONOTONIC`; 0 before the first.
    pub fn last_at(&self) -> u64 {
        self.last_at
    }

    /// Notes the time at which a frame was published.
    pub fn note_time(&mut self, published: u64) {
        self.last_at = published;
    }

    /// Takes a publication, with the publisher's own lease. Returns its metadata area, or the
    /// publication if no area is free.
    pub fn open(
        &mut self,
        slot: S::Slot,
        keep: Option<Box<dyn Any + Send>>,
        writing: Option<<S::Signals as Signals>::Writing>,
    ) -> Result<AreaIndex, Publication<S>> {
        let publication = Publication { slot, leases: 1, keep, writing };
        let Some(area) = self.by_area.iter().position(Option::is_none) else { return Err(publication) };
        self.by_area[area] = Some(publication);
        Ok(AreaIndex(area as u32))
    }

    /// The publication in an area, if there is one.
    pub fn get(&self, area: AreaIndex) -> Option<&Publication<S>> {
        self.by_area[area.0 as usize].as_ref()
    }

    /// The GPU work that writes the publication in an area, if there is any.
    pub fn writing_mut(&mut self, area: AreaIndex) -> Option<&mut <S::Signals as Signals>::Writing> {
        self.by_area[area.0 as usize].as_mut()?.writing.as_mut()
    }

    /// Counts one more lease on a publication.
    pub fn add_lease(&mut self, area: AreaIndex) {
        if let Some(publication) = &mut self.by_area[area.0 as usize] {
            publication.leases += 1;
        }
    }

    /// Ends one lease on a publication: a reader's, a download's, or the publisher's own. Returns
    /// the publication if it was the last one.
    pub fn end_lease(&mut self, area: AreaIndex) -> Option<Publication<S>> {
        let place = &mut self.by_area[area.0 as usize];
        let publication = place.as_mut()?;
        publication.leases -= 1;
        if publication.leases > 0 {
            return None;
        }
        place.take()
    }

    /// Returns whether the publication in an area has one lease.
    pub fn has_one_lease(&self, area: AreaIndex) -> bool {
        self.get(area).is_some_and(|publication| publication.leases == 1)
    }

    /// Holds a publication without leases until its write is done.
    pub fn wait_for_write(&mut self, publication: Publication<S>) {
        self.unwritten.push(publication);
    }

    /// Takes out those without leases whose writes are done.
    pub fn take_written(&mut self, is_writing: impl Fn(&Publication<S>) -> bool) -> Vec<Publication<S>> {
        self.unwritten.extract_if(.., |one| !is_writing(one)).collect()
    }

    /// Publications without leases whose writes are under way.
    pub fn unwritten(&self) -> &[Publication<S>] {
        &self.unwritten
    }

    /// Publications with leases, and their areas.
    pub fn leased(&self) -> impl Iterator<Item = (AreaIndex, &Publication<S>)> {
        let areas = self.by_area.iter().enumerate();
        areas.filter_map(|(area, publication)| Some((AreaIndex(area as u32), publication.as_ref()?)))
    }

    /// Publications that hold slots: those with leases, and those with writes under way.
    pub fn holding(&self) -> impl Iterator<Item = &Publication<S>> {
        self.by_area.iter().flatten().chain(&self.unwritten)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exporter::{
        fake::{Fake, memory, slot},
        system::Slot,
    };

    const FIRST: AreaIndex = AreaIndex(0);

    /// Publications in two areas, both taken. The frame in the second one is being written.
    fn publications() -> Publications<Fake> {
        let mut publications = Publications::new(2);
        for (index, writing) in [None, Some(true)].into_iter().enumerate() {
            let area = publications.open(slot(index as u32, memory(1)), None, writing);
            assert_eq!(area.ok(), Some(AreaIndex(index as u32)));
        }
        publications
    }

    #[test]
    fn frames_are_numbered_from_one() {
        let mut publications = Publications::<Fake>::new(1);
        assert_eq!((publications.next(), publications.last_at()), (Sequence(1), 0));
        assert_eq!([publications.begin(), publications.begin()], [Sequence(1), Sequence(2)]);
        publications.note_time(9);
        assert_eq!((publications.next(), publications.last_at()), (Sequence(3), 9));
    }

    #[test]
    fn publication_ends_with_its_last_lease() {
        let mut publications = publications();
        let refused = publications.open(slot(2, memory(1)), None, None).unwrap_err();
        assert_eq!(refused.slot.id().index, 2, "no area is free");
        publications.add_lease(FIRST);
        publications.add_lease(FIRST);
        for left in [2, 1] {
            assert!(publications.end_lease(FIRST).is_none());
            assert_eq!(publications.has_one_lease(FIRST), left == 1);
        }
        assert_eq!(publications.end_lease(FIRST).unwrap().slot.id().index, 0);
        assert!(publications.end_lease(FIRST).is_none() && !publications.has_one_lease(FIRST));
        assert!(publications.get(FIRST).is_none() && publications.get(AreaIndex(1)).is_some());
        assert_eq!(Vec::from_iter(publications.leased().map(|(area, _)| area)), [AreaIndex(1)]);
        assert_eq!(publications.open(slot(2, memory(1)), None, None).ok(), Some(FIRST));
    }

    #[test]
    fn frame_without_leases_is_held_until_it_is_written() {
        let mut publications = publications();
        assert_eq!(publications.writing_mut(FIRST), None);
        let written = publications.end_lease(FIRST).unwrap();
        let unwritten = publications.end_lease(AreaIndex(1)).unwrap();
        publications.wait_for_write(written);
        publications.wait_for_write(unwritten);
        let is_writing = |one: &Publication<Fake>| one.writing == Some(true);
        assert_eq!((publications.leased().count(), publications.holding().count()), (0, 2));
        assert_eq!(publications.take_written(is_writing)[0].slot.id().index, 0);
        assert_eq!((publications.unwritten().len(), publications.holding().count()), (1, 1));
    }

    #[test]
    fn write_of_publication_is_known_while_it_has_leases() {
        let mut publications = publications();
        *publications.writing_mut(AreaIndex(1)).unwrap() = false;
        assert_eq!(publications.get(AreaIndex(1)).unwrap().writing, Some(false));
    }
}
