//! What an exporter allows.

use crate::sys::Peer;
use frameshare_cuda::context::Context;
use frameshare_protocol::{
    FenceKind, MemoryKind,
    limits::{MAX_CREDIT, MAX_SLOTS},
};
use std::{sync::Arc, time::Duration};

/// Who may ask the exporter to wait for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LosslessReaders {
    /// Nobody.
    None,
    /// Processes of the exporter's own user, and root's.
    #[default]
    OwnUid,
    /// Whoever may read the stream.
    All,
}

/// The limits of a stream.
#[derive(Clone, Debug)]
pub struct Config {
    /// Most slots, 4 to 1024. Readers' credits and two more come out of it, besides what upstream holds.
    pub max_slots: u32,
    /// Most leases that one reader may hold, 1 to 64.
    pub max_held_limit: u32,
    /// Who may be lossless.
    pub lossless_readers: LosslessReaders,
    /// How long a lossless reader may hold the stream back before it is cut off.
    pub reader_timeout: Duration,
    /// The CUDA context that frames are written in; `None` for host memory alone.
    pub gpu: Option<Arc<Context>>,
    /// The kind of memory for frames; `None` is the best that the machine has.
    pub memory: Option<MemoryKind>,
    /// The kind of fence for readers on a GPU; `None` is, for each, the best that both sides have.
    pub fence: Option<FenceKind>,
    /// Users besides the exporter's own that get GPU memory. No kind of it can keep an importer from writing.
    pub trusted_uids: Vec<u32>,
    /// How long a reader's GPU work on a frame may go on after the reader has released it.
    pub fence_timeout: Duration,
    /// How much memory of retired generations one reader may keep from being freed, in bytes.
    pub max_retired_bytes: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_slots: 64,
            max_held_limit: 16,
            lossless_readers: LosslessReaders::default(),
            reader_timeout: Duration::from_secs(5),
            gpu: None,
            memory: None,
            fence: None,
            trusted_uids: Vec::new(),
            fence_timeout: Duration::from_secs(2),
            max_retired_bytes: 2 << 30,
        }
    }
}

impl Config {
    pub(super) fn check(&self) -> Result<(), String> {
        if !(4..=MAX_SLOTS).contains(&self.max_slots) {
            return Err(format!("max-slots is {}, but must be 4 to {MAX_SLOTS}", self.max_slots));
        }
        if !(1..=MAX_CREDIT).contains(&self.max_held_limit) {
            return Err(format!("max-held-limit is {}, but must be 1 to {MAX_CREDIT}", self.max_held_limit));
        }
        Ok(())
    }

    pub(super) fn may_have_gpu_memory(&self, peer: &Peer) -> bool {
        peer.is_own() || self.trusted_uids.contains(&peer.uid)
    }

    pub(super) fn may_be_lossless(&self, peer: &Peer) -> bool {
        match self.lossless_readers {
            LosslessReaders::None => false,
            LosslessReaders::OwnUid => peer.is_own_or_root(),
            LosslessReaders::All => true,
        }
    }
}
