// SPDX-License-Identifier: MIT OR Apache-2.0

//! Statistics of the present state.

use super::State;
use crate::{
    exporter::{
        link::Link,
        slot::Generation,
        statistics::{ReaderStats, Stats},
        system::System,
    },
    selected::Selected,
};
use std::time::Duration;

impl<S: System> State<S> {
    /// Counts a copy of a frame, and returns the number of those for its reason.
    pub fn count_copy(&mut self, reason: &'static str) -> u64 {
        self.reports.count_copy(reason)
    }

    fn reader_stats(&self, link: &Link<S>) -> ReaderStats {
        let publications = link.leases.areas().filter_map(|area| self.publications.get(area));
        let adopted = publications.filter(|one| self.slots.is_adopted(&one.slot)).count() as u32;
        ReaderStats { adopted, ..link.stats(self.publications.next()) }
    }

    /// Statistics so far.
    pub fn stats(&mut self) -> Stats {
        let retired =
            |one: &Generation<S>| one.retired_slot_bytes() + if one.retired { one.bytes() } else { 0 };
        let retired_bytes =
            self.slots.generations().iter().map(retired).sum::<u64>() + self.system.kept_bytes();
        let kind = self.kind();
        let current = self.slots.newest(kind);
        let (mut slots, mut free_slots, slot_size) = current.map_or((0, 0, 0), |generation| {
            (generation.len(), generation.count_free(), generation.slot_size)
        });
        for overflow in self.slots.generations().iter().filter(|one| one.is_open_overflow(kind, slot_size)) {
            slots += overflow.len();
            free_slots += overflow.count_free();
        }
        let draining = self.readers.draining().iter().filter(|link| !link.leases.is_empty());
        Stats {
            readers: self.readers.present().iter().map(|link| self.reader_stats(link)).collect(),
            draining: draining.map(|link| self.reader_stats(link)).collect(),
            published: self.publications.next().previous().0,
            waited: Duration::from_nanos(self.arrivals.waited()),
            slots,
            free_slots,
            max_slots: self.limits.max_slots,
            slot_size,
            memory: match kind == self.slots.memory().kind {
                true => self.slots.memory().clone(),
                false => Selected { kind, why: "frames arrive in host memory".into() },
            },
            retired_bytes,
            trimmed_slots: self.slots.trimmed(),
            waiting_bytes: self.waiting().bytes,
            gop_units: self.kept.units(),
            gop_bytes: self.kept.bytes(),
            max_gop_bytes: self.limits.max_gop_bytes,
            readers_total: self.readers.total(),
            copies: self.reports.copies(),
            dma_bufs: self.dma_bufs.stats(),
            is_mps_client: self.system.is_mps_client(),
        }
    }
}
