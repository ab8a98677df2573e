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
