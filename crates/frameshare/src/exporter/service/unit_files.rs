// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory files of kept units, for a joining reader.
//!
//! The file of the units so far is built with the state unlocked. Those that are published
//! meanwhile follow in a second file, built when the reader is admitted.

use crate::{
    exporter::{
        resources::Attachment,
        state::{Shared, State},
    },
    sys::{Label, Mapping, Peer, SealedAgainst, Words, memfd, store_bytes},
};
use frameshare_core::exporter::{link::Packet, parts::KeptUnits, shortage::Unsendable};
use frameshare_protocol::{
    Sequence,
    kept::KeptUnit,
    message::{Hello, ToReader},
};
use std::{
    io,
    os::fd::OwnedFd,
    sync::{Arc, atomic::Ordering},
};

/// Maximum bytes of units that are copied with the state locked.
const MAX_LOCKED: u64 = 1 << 20;

/// Kept units in a sealed memory file.
#[derive(Debug)]
struct UnitFile {
    fd: Arc<OwnedFd>,
    count: u32,
    size: u64,
    first: Sequence,
    last: Sequence,
}

/// Kept units for a joining reader, prepared with the state unlocked.
#[derive(Debug, Default)]
pub struct Prepared(Option<UnitFile>);

/// The outcome of [`Prepared::finish`].
#[derive(Debug)]
pub enum Finished {
    /// Messages with all units from the last key unit to the next frame; none if the reader gets
    /// no kept units.
    Units(Vec<Packet<Attachment>>),
    /// Too much was published meanwhile.
    Again,
}

impl Prepared {
    /// Builds the file of the units that are kept now. Without memory for it there is none.
    pub fn new(shared: &Shared, peer: &Peer, hello: &Hello) -> Self {
        let units = shared.with(|state| {
            let from = state.kept_from(trusts(state, peer), hello.max_gop_bytes);
            from.map(|from| state.kept_units(from)).unwrap_or_default()
        });
        Self(UnitFile::new(&units, &shared.label).ok().flatten())
    }

    /// Completes the units, with the state locked.
    pub fn finish(self, state: &State, peer: &Peer, hello: &Hello) -> Finished {
        let from = state.kept_from(trusts(state, peer), hello.max_gop_bytes);
        let Some(from) = from else { return Finished::Units(Vec::new()) };
        // Of another GOP, if a key unit was published meanwhile.
        let prepared = self.0.filter(|file| file.first == from);
        let next = prepared.as_ref().map_or(from, |file| file.last.next());
        let units = state.kept_units(next);
        if units.iter().map(|unit| unit.content.size()).sum::<u64>() > MAX_LOCKED {
            return Finished::Again;
        }
        let Ok(rest) = UnitFile::new(&units, state.label()) else { return Finished::Units(Vec::new()) };
        let before = state.next_sequence();
        let files = prepared.into_iter().chain(rest);
        let packets = files.map(|file| file.packet(before)).collect::<Result<_, _>>();
        Finished::Units(packets.unwrap_or_default())
    }
}

/// Returns whether a reader's user is trusted with memory.
fn trusts(state: &State, peer: &Peer) -> bool {
    state.config().trusts_with_memory(peer)
}

impl UnitFile {
    /// Writes units to a file; `None` if there are none.
    fn new(units: &KeptUnits, label: &Label) -> io::Result<Option<Self>> {
        let (Some(first), Some(last)) = (units.first(), units.last()) else { return Ok(None) };
        let mut at = 0;
        let mut laid_out = Vec::with_capacity(units.len());
        for unit in units {
            let place = KeptUnit::new(unit.descriptor.clone(), unit.content.metadata.len(), at)
                .ok_or(io::ErrorKind::FileTooLarge)?;
            at = place.next;
            laid_out.push(place);
        }
        let size = 8 * at as u64;
        let fd = memfd(&label.file("units"), size)?;
        let words = Words::from(Mapping::writable(&fd, 8 * at)?);
        let mut record_at = 0;
        for (unit, place) in units.iter().zip(&laid_out) {
            for (word, value) in words[record_at..].iter().zip(place.encode()) {
                word.store(value, Ordering::Relaxed);
            }
            store_bytes(&words, place.metadata_at, &unit.content.metadata);
            store_bytes(&words, (place.descriptor.offset / 8) as usize, &unit.content.bytes);
            record_at = place.next;
        }
        drop(words);
        SealedAgainst::ResizingAndWriting.seal(&fd)?;
        Ok(Some(Self {
            fd: Arc::new(fd),
            count: units.len() as u32,
            size,
            first: first.descriptor.sequence,
            last: last.descriptor.sequence,
        }))
    }

    fn packet(self, before: Sequence) -> Result<Packet<Attachment>, Unsendable> {
        let message = ToReader::KeptUnits { before, count: self.count, size: self.size };
        Packet::with_file(&message, Attachment::File(self.fd), self.size)
    }
}
