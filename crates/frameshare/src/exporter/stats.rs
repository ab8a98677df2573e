//! Numbers for people who want to know how a stream is doing.

use super::{notice::ReaderInfo, state::State};
use crate::memory::choice::Choice;
use frameshare_protocol::{FenceKind, MemoryKind};

/// One reader's numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReaderStats {
    /// Who it is.
    pub info: ReaderInfo,
    /// Frames that it has taken and not released.
    pub held: u32,
    /// Frames published to it that it has not taken.
    pub queued: u32,
    /// Frames published to it, revoked ones included.
    pub sent: u64,
    /// Frames that it lost.
    pub lost: u64,
    /// The kind of fence between the two, and why.
    pub fence: Choice<FenceKind>,
    /// How many frames the oldest one that it has not taken lies behind the newest; 0 when it has taken all.
    pub lag: u64,
}

/// A stream's numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    /// The readers of now.
    pub readers: Vec<ReaderStats>,
    /// Frames published.
    pub published: u64,
    /// Slots allocated.
    pub slots: u32,
    /// Slots that nobody holds.
    pub free_slots: u32,
    /// Most slots that there may be.
    pub max_slots: u32,
    /// Bytes of a slot; 0 before the first.
    pub slot_size: u64,
    /// The kind of the slots' memory, and why.
    pub memory: Choice<MemoryKind>,
    /// Bytes of retired generations that are not freed yet.
    pub retired_bytes: u64,
    /// Readers admitted so far.
    pub readers_total: u64,
}

impl State {
    pub(super) fn stats(&mut self) -> Stats {
        let next = self.next;
        let retired_bytes = self.generations.iter().filter(|one| one.retired).map(|one| one.bytes()).sum();
        let kind = self.kind();
        let current = self.generations.iter_mut().rfind(|generation| generation.is_own(kind));
        let (slots, free_slots, slot_size) = current.map_or((0, 0, 0), |generation| {
            (generation.len(), generation.count_free(), generation.slot_size)
        });
        Stats {
            readers: self.links.iter().map(|link| link.stats(next)).collect(),
            published: next - 1,
            slots,
            free_slots,
            max_slots: self.config.max_slots,
            slot_size,
            memory: match kind == self.memory.kind {
                true => self.memory.clone(),
                false => Choice { kind, why: "frames arrive in host memory".into() },
            },
            retired_bytes,
            readers_total: self.readers_total,
        }
    }
}
