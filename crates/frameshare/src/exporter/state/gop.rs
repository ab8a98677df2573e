// SPDX-License-Identifier: MIT OR Apache-2.0

//! Kept GOP: copies of the units of an encoded stream since its last key unit, for joining readers.
//!
//! Units are copied before they are published, with the state unlocked. Format changes, the end of
//! the stream and units beyond the limit drop the copies until the next key unit.

use super::State;
use crate::{
    exporter::{
        frame::Unit,
        link::{Packet, Start},
        observe::Notice,
    },
    sys::{Peer, monotonic_ns},
};
use frameshare_protocol::{Descriptor, Sequence, kept::KeptUnit, limits::MAX_KEPT_UNITS, message::Hello};
use std::{
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

/// Minimum time between two requests for a key unit.
const BETWEEN_REQUESTS: Duration = Duration::from_secs(1);

/// The content of a unit, copied out of its slot.
#[derive(Debug)]
pub struct Content {
    pub metadata: Box<[u8]>,
    pub bytes: Box<[u8]>,
}

impl Content {
    /// Bytes to copy.
    pub fn len(&self) -> u64 {
        (self.metadata.len() + self.bytes.len()) as u64
    }
}

/// A unit, and its copy.
#[derive(Clone, Debug)]
pub struct Kept {
    pub descriptor: Descriptor,
    pub content: Arc<Content>,
}

/// Kept units in order, without gaps.
pub type KeptUnits = Vec<Kept>;

/// The units since the last key unit.
#[derive(Debug, Default)]
pub struct Gop {
    units: KeptUnits,
    /// Bytes of the units in a memory file.
    bytes: u64,
    /// The last published unit.
    last: Unit,
    /// Time of the last request for a key unit.
    requested: Option<Instant>,
}

impl Gop {
    /// Number of kept units.
    pub fn units(&self) -> u32 {
        self.units.len() as u32
    }

    /// Bytes of the kept units.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns whether a unit of this size continues or begins the kept GOP within `limit`.
    fn has_room(&self, unit: Unit, bytes: u64, metadata: usize, limit: u64) -> bool {
        let before = match unit {
            Unit::Key => 0,
            Unit::Delta if !self.units.is_empty() && self.units() < MAX_KEPT_UNITS => self.bytes,
            Unit::Whole | Unit::Delta => return false,
        };
        encoded_size(bytes, metadata).is_some_and(|size| before.saturating_add(size) <= limit)
    }

    /// Takes all units out, to be dropped with the state unlocked.
    fn take(&mut self) -> KeptUnits {
        self.bytes = 0;
        mem::take(&mut self.units)
    }
}

/// Returns the size of a unit in a memory file.
fn encoded_size(size: u64, metadata: usize) -> Option<u64> {
    let unit = KeptUnit::new(Descriptor { size, ..Descriptor::default() }, metadata, 0)?;
    Some(8 * unit.next as u64)
}

impl State {
    /// Returns whether a copy of a unit will be kept.
    pub fn keeps_unit(&self, unit: Unit, bytes: u64, metadata: usize) -> bool {
        self.gop.has_room(unit, bytes, metadata, self.config.max_gop_bytes)
    }

    /// Keeps the copy of a unit that is being published; without one the kept GOP ends.
    pub(super) fn keep_unit(&mut self, unit: Unit, descriptor: &Descriptor, content: Option<Arc<Content>>) {
        let starts = unit == Unit::Delta && self.gop.last == Unit::Whole;
        self.gop.last = unit;
        if starts {
            self.await_key_unit();
        }
        if unit == Unit::Whole && self.gop.units.is_empty() {
            return;
        }
        let fits = |content: &Arc<Content>| self.keeps_unit(unit, descriptor.size, content.metadata.len());
        let content = content.filter(fits);
        if unit == Unit::Key || content.is_none() {
            self.drop_units();
        }
        let Some(content) = content else { return };
        self.gop.bytes += encoded_size(descriptor.size, content.metadata.len()).unwrap_or_default();
        let descriptor = Descriptor { published: monotonic_ns(), ..descriptor.clone() };
        self.gop.units.push(Kept { descriptor, content });
    }

    /// Drops the kept units: readers that join get none of them.
    pub(super) fn drop_units(&mut self) {
        let units = self.gop.take();
        if !units.is_empty() {
            self.dropped.push(Box::new(units));
        }
    }

    /// Drops the kept GOP: the next unit belongs to another sequence of units.
    pub(super) fn drop_gop(&mut self) {
        self.gop.last = Unit::Whole;
        self.drop_units();
    }

    /// The sequence number of the last key unit, if a joining reader gets the units since then.
    pub fn kept_from(&self, peer: &Peer, hello: &Hello) -> Option<Sequence> {
        let gets = self.config.trusts_with_memory(peer) && self.gop.bytes <= hello.max_gop_bytes;
        let first = self.gop.units.first().filter(|_| gets);
        first.map(|unit| unit.descriptor.sequence)
    }

    /// Returns the kept units from `from` on.
    pub fn kept_units(&self, from: Sequence) -> KeptUnits {
        let units = self.gop.units.iter();
        units.filter(|unit| unit.descriptor.sequence >= from).cloned().collect()
    }

    /// Decides where a joining reader starts that gets no kept units.
    pub fn start_without_kept_units(&mut self, peer: &Peer) -> Start {
        if self.gop.last == Unit::Whole {
            return Start::AtOnce;
        }
        self.ask_owner(peer.is_own_or_root());
        Start::join()
    }

    /// Sends kept units to the reader that joined last, if it is still there.
    pub fn send_kept_units(&mut self, id: u64, packets: &[Packet]) {
        if packets.is_empty() {
            return;
        }
        self.each_link(|link| {
            if link.info.id == id {
                link.leases.note_kept_units();
                packets.iter().try_for_each(|packet| link.send_packet(packet))?;
            }
            Ok(())
        });
    }

    /// Handles a reader's request for a key unit. One that still reads kept units needs none.
    pub fn request_key_unit(&mut self, id: u64) {
        let Some(index) = self.links.iter().position(|link| link.info.id == id) else { return };
        let link = &mut self.links[index];
        match link.leases.reads_kept_units() {
            Ok(true) => {}
            Ok(false) => {
                let is_own = link.peer().is_own_or_root();
                self.ask_owner(is_own);
            }
            Err(ending) => self.drop_link(index, &ending),
        }
    }

    /// Has every reader wait for a key unit: the first unit of the stream depends on units before
    /// it, which no reader has got. One with a backlog gets every unit.
    fn await_key_unit(&mut self) {
        let mut is_own = false;
        for link in self.links.iter_mut().filter(|link| link.backlog().is_empty()) {
            link.leases.start().await_key();
            is_own |= link.peer().is_own_or_root();
        }
        self.ask_owner(is_own);
    }

    /// Asks the owner for a key unit of an encoded stream, at most once in [`BETWEEN_REQUESTS`].
    fn ask_owner(&mut self, is_own: bool) {
        let now = Instant::now();
        let recent = self.gop.requested.is_some_and(|at| now.duration_since(at) < BETWEEN_REQUESTS);
        if is_own && !recent && self.gop.last != Unit::Whole {
            self.gop.requested = Some(now);
            self.reports.tell(Notice::KeyUnitWanted);
        }
    }
}
