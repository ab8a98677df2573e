// SPDX-License-Identifier: MIT OR Apache-2.0

//! Snapshots for observers.

use super::State;
use crate::{
    exporter::{
        config::{Config, History, LosslessReaders},
        resources::Resources,
    },
    sys::{Peer, monotonic_ns},
};
use frameshare_core::exporter::{ending::Ending, link, slot, statistics::ReaderStats};
use frameshare_protocol::{
    MemoryKind,
    limits::{MAX_GENERATIONS, MAX_MESSAGE},
    message::{
        ExporterInfo, GenerationInfo, LosslessAllowed, ReaderState, Reason, Rights, Snapshot, StreamCounters,
        StreamLimits,
    },
};
use std::time::Duration;

type Link = link::Link<Resources>;
type Generation = slot::Generation<Resources>;

impl State {
    /// Returns the reason to refuse an observer, if there is one: users that may not read may not
    /// observe.
    pub fn refusal_of_observer(&self, peer: &Peer) -> Option<Ending> {
        let refusal = self.refusal_of_others.as_ref().filter(|_| !peer.is_own_or_root())?;
        Some(Ending::new(Reason::PermissionDenied, refusal.clone()))
    }

    /// Returns the rights of a reader of a user that may read.
    pub fn rights(&mut self, peer: &Peer) -> Rights {
        self.reclaim();
        Rights {
            uid: peer.uid,
            credit: self.config().max_held_limit.min(self.credit_left(peer.is_own_or_root())),
            may_be_lossless: self.config().may_be_lossless(peer),
            may_have_gpu_memory: self.config().may_have_gpu_memory(peer),
        }
    }

    /// The kind of adopted memory, if there is any.
    fn adopts(&self) -> MemoryKind {
        if self.dma_bufs().are_used() { MemoryKind::DmaBuf } else { MemoryKind::Legacy }
    }

    /// Returns the present state. Copies names and numbers only: a publication may wait for it.
    pub fn snapshot(&mut self, exporter: ExporterInfo, observers: u32) -> Snapshot {
        let stats = self.stats();
        let skipped = self.slots().generations().len().saturating_sub(MAX_GENERATIONS);
        let kind = self.kind();
        let readers = self.readers().present().iter().zip(stats.readers);
        Snapshot {
            time: monotonic_ns(),
            exporter: ExporterInfo {
                session: self.system().session(),
                is_mps_client: stats.is_mps_client,
                ..exporter
            },
            // Longer caps fit into no message for readers either.
            format: self.announcement().format().filter(|format| format.caps.len() < MAX_MESSAGE).cloned(),
            memory: kind,
            memory_why: stats.memory.why,
            gpu: self.gpu().filter(|_| kind != MemoryKind::Host).map(|gpu| gpu.device().uuid().0),
            limits: limits(self.config()),
            counters: StreamCounters {
                published: stats.published,
                last_published: self.publications().last_at(),
                waited: u64::try_from(stats.waited.as_nanos()).unwrap_or(u64::MAX),
                slots: stats.slots,
                free_slots: stats.free_slots,
                slot_size: stats.slot_size,
                retired_bytes: stats.retired_bytes,
                waiting_bytes: stats.waiting_bytes,
                gop_units: stats.gop_units,
                gop_bytes: stats.gop_bytes,
                readers_total: stats.readers_total,
                observers,
                ended: self.announcement().has_ended(),
                copies: stats.copies,
            },
            readers: readers.map(|(link, stats)| reader(link, stats, kind, self.adopts())).collect(),
            generations: self.slots().generations().iter().skip(skipped).map(generation).collect(),
            incidents: self.reports().incidents(),
        }
    }
}

/// `adopts` is the kind of adopted memory.
fn reader(link: &Link, stats: ReaderStats, kind: MemoryKind, adopts: MemoryKind) -> ReaderState {
    ReaderState {
        id: stats.info.id,
        pid: stats.info.pid,
        uid: stats.info.uid,
        name: stats.info.name,
        policy: stats.info.policy,
        credit: stats.info.credit,
        max_queued: stats.info.max_queued,
        held: stats.held,
        queued: stats.queued,
        waiting: stats.waiting,
        sent: stats.sent,
        lost: stats.lost,
        lag: stats.lag,
        fence: stats.fence.kind,
        fence_why: stats.fence.why,
        memory: link.memory_of_frames(kind),
        cannot_adopt: link.cannot_adopt(adopts).map(Into::into),
        ages: stats.ages,
        copies: stats.copies,
    }
}

fn generation(generation: &Generation) -> GenerationInfo {
    GenerationInfo {
        generation: generation.id,
        memory: generation.kind,
        slot_size: generation.slot_size,
        slots: generation.len(),
        free_slots: generation.count_free(),
        bytes: generation.bytes(),
        is_adopted: generation.is_adopted(),
        is_overflow: generation.is_overflow(),
        is_retired: generation.retired,
    }
}

fn limits(config: &Config) -> StreamLimits {
    let ns = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    StreamLimits {
        max_slots: config.max_slots,
        max_held_limit: config.max_held_limit,
        lossless_readers: match config.lossless_readers {
            LosslessReaders::None => LosslessAllowed::None,
            LosslessReaders::OwnUid => LosslessAllowed::OwnUid,
            LosslessReaders::All => LosslessAllowed::All,
        },
        slow_readers: config.slow_readers.into(),
        reader_timeout: ns(config.reader_timeout),
        max_queued_bytes: config.max_queued_bytes,
        max_queued_time: ns(config.max_queued_time),
        queue_for_other_users: config.queue_for_other_users,
        history: {
            let History::Frames(frames) = config.history;
            frames
        },
        fence_timeout: ns(config.fence_timeout),
        max_retired_bytes: config.max_retired_bytes,
        max_gop_bytes: config.max_gop_bytes,
        fence: config.fence,
    }
}
