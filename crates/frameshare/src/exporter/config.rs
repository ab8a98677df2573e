//! What an exporter allows.

use crate::sys::Peer;
use frameshare_protocol::limits::{MAX_CREDIT, MAX_SLOTS};
use std::time::Duration;

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
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_slots: 64,
            max_held_limit: 16,
            lossless_readers: LosslessReaders::default(),
            reader_timeout: Duration::from_secs(5),
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

    pub(super) fn may_be_lossless(&self, peer: &Peer) -> bool {
        match self.lossless_readers {
            LosslessReaders::None => false,
            LosslessReaders::OwnUid => peer.is_own_or_root(),
            LosslessReaders::All => true,
        }
    }
}
