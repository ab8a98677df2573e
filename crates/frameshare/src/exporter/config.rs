// SPDX-License-Identifier: MIT OR Apache-2.0

//! Configuration of an exporter: its limits and its permissions.

use super::error::{ConfigError, MIN_SLOTS};
use crate::{
    Endpoint, Interrupt,
    options::options,
    sys::{Peer, is_overflow_gid, is_overflow_uid},
};
use frameshare_core::exporter::limits::{Limits, SlowReaders};
use frameshare_cuda::{context::Context, device::Device};
use frameshare_protocol::{
    FenceKind, MemoryKind,
    limits::{MAX_CREDIT, MAX_PAYLOAD, MAX_SLOTS},
};
use std::{fmt, str::FromStr, sync::Arc, time::Duration};

/// Readers that may ask the exporter to wait for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LosslessReaders {
    /// No reader.
    None,
    /// Processes of the exporter's own user, and root's.
    #[default]
    OwnUid,
    /// Every reader of the stream.
    All,
}

/// Frames that are kept for readers that join later. As text it is their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum History {
    /// The number of frames of the present format that are kept, 0 or 1. With 0, the default, a
    /// reader waits for the next frame. With 1 the exporter keeps the last frame, which takes one
    /// slot, for readers that join when no other frame has followed it for 200 ms. Frames in
    /// adopted memory are not kept.
    Frames(u32),
}

impl Default for History {
    fn default() -> Self {
        Self::Frames(0)
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Frames(frames) = self;
        write!(f, "{frames}")
    }
}

impl FromStr for History {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let history = text.parse().map(Self::Frames).map_err(|_| ConfigError::History(text.to_owned()))?;
        history.check()?;
        Ok(history)
    }
}

impl History {
    pub(super) fn check(self) -> Result<(), ConfigError> {
        let Self::Frames(frames) = self;
        if frames > 1 { Err(ConfigError::History(frames.to_string())) } else { Ok(()) }
    }

    /// Returns whether a frame is kept.
    pub(super) fn keeps_frames(self) -> bool {
        self != Self::Frames(0)
    }
}

/// Maximum of [`Config::max_gop_bytes`]: the units are sent in one file.
pub const MAX_GOP_BYTES: u64 = MAX_PAYLOAD;

/// The mode of a socket that only the exporter's user may connect to.
const PRIVATE: u32 = 0o600;

options! {
    /// The limits of a stream, and the users that may read it: [`Config::default`] and its setters.
    ///
    /// ```
    /// # use frameshare::exporter::Config;
    /// let config = Config::default().max_slots(16).allowed_uids(vec![1000]).socket_mode(0o666);
    /// ```
    pub struct Config {
        /// Users besides the exporter's own and root that may read. They need a socket at a path of
        /// the caller's choice ([`Endpoint::at`]), in a folder that they may enter, with a mode
        /// that lets them connect; or an abstract socket. A user that has no number in this user
        /// namespace cannot be named.
        pub allowed_uids: Vec<u32> = Vec::new(),
        /// Groups whose members may read, on the same conditions.
        pub allowed_gids: Vec<u32> = Vec::new(),
        /// The mode of the socket, 0600 by default: a user that may write to it may connect. That
        /// alone does not admit a reader: the kernel reports the connecting user, and users that
        /// are not allowed are refused.
        pub socket_mode: u32 = PRIVATE,
        /// Maximum number of slots, 4 to 1024. It covers the readers' credits and two more, besides
        /// the slots that upstream holds. A quarter is reserved for readers of the exporter's own
        /// user.
        pub max_slots: u32 = 512,
        /// Maximum number of leases of one reader, 1 to 64.
        pub max_held_limit: u32 = 16,
        /// Readers that may be lossless.
        pub lossless_readers: LosslessReaders = LosslessReaders::default(),
        /// Maximum time that a lossless reader may hold the stream back before it is evicted.
        pub reader_timeout: Duration = Duration::from_secs(5),
        /// The treatment of lossless readers without credit.
        pub slow_readers: SlowReaders = SlowReaders::default(),
        /// Frames that are kept for readers that join later.
        pub history: History = History::default(),
        /// Maximum bytes of slots and of oversized metadata in the backlogs of all readers
        /// together; 256 MiB by default. The slots also count against `max_slots`.
        pub max_queued_bytes: u64 = 256 << 20,
        /// Maximum age of a frame in a backlog; 2 s by default.
        pub max_queued_time: Duration = Duration::from_secs(2),
        /// Whether readers of other users have a backlog, too; false by default.
        pub queue_for_other_users: bool = false,
        /// The CUDA context that frames are written in; `None` for host memory only.
        pub gpu: Option<Arc<Context>> = None,
        /// The kind of memory for frames; `None` selects the best one of the machine.
        pub memory: Option<MemoryKind> = None,
        /// The kind of fence for readers on a GPU; `None` selects, for each reader, the best one of
        /// both sides.
        pub fence: Option<FenceKind> = None,
        /// Users besides the exporter's own that get GPU memory. No kind of it can prevent an
        /// importer from writing. They have no account
        /// ([`max_retired_bytes`](Self#structfield.max_retired_bytes)).
        pub trusted_uids: Vec<u32> = Vec::new(),
        /// Admits readers of other users even where the kernel lets them write into shared memory
        /// through `/dev/udmabuf`; false by default. Kernels without the fix of Linux 6.13, which
        /// was backported, ignore `F_SEAL_FUTURE_WRITE` there. If other users may read, the device
        /// is probed once per process. If it accepts memory that is sealed like a slot, readers of
        /// other users are refused with
        /// [`Reason::PermissionDenied`](crate::Reason::PermissionDenied) and the owner gets
        /// [`Notice::OthersCouldWrite`](super::Notice::OthersCouldWrite). If it exists and cannot
        /// be probed, for example because the exporter's user may not open it, the owner gets the
        /// notice only.
        pub allow_udmabuf: bool = false,
        /// Maximum time that a reader's GPU work on a frame may continue after the reader has
        /// released it.
        pub fence_timeout: Duration = Duration::from_secs(2),
        /// Maximum memory in bytes of retired generations and slots that one reader may keep from
        /// being freed; 2 GiB by default. Also the maximum of a user's account: the memory that
        /// readers of a user other than the exporter's own, root and
        /// [`trusted_uids`](Self#structfield.trusted_uids) were given and that the stream does not
        /// need any more. It is kept and used again, since such a user may have it mapped for good.
        /// Beyond the limit its readers get no further memory, and end with
        /// [`Reason::LimitExceeded`](crate::Reason::LimitExceeded).
        pub max_retired_bytes: u64 = 2 << 30,
        /// Maximum memory in bytes of the units of an encoded stream that are kept for joining
        /// readers, from the last key unit on, up to 64 MiB; 32 MiB by default, 0 keeps none. If
        /// they exceed it, nothing is kept until the next key unit. Readers of other users get none
        /// of them, unless they are among [`trusted_uids`](Self#structfield.trusted_uids): a reader
        /// could keep the memory of each copy that it gets.
        pub max_gop_bytes: u64 = 32 << 20,
        /// Ends waits of the exporter's calls; `None` makes one ([`Exporter::interrupt`]). One
        /// [`Interrupt`] can end the waits of several exporters and readers.
        ///
        /// [`Exporter::interrupt`]: super::Exporter::interrupt
        pub interrupt: Option<Interrupt> = None,
    }
    hidden {
        /// Silence of the stream after which a joining reader gets the kept frame: a constant, but
        /// for tests.
        pub history_pause: Duration = Duration::from_millis(200),
    }
}

impl Config {
    /// Sets [`gpu`](Self#structfield.gpu) to the primary context of a device, in which programs of
    /// CUDA's runtime API run, PyTorch's too.
    ///
    /// # Errors
    /// Any error that the driver returns.
    pub fn on_gpu(self, device: &Device) -> frameshare_cuda::Result<Self> {
        Ok(self.gpu(Some(Context::primary(device)?)))
    }
}

impl Config {
    pub(super) fn check(&self, endpoint: &Endpoint) -> Result<(), ConfigError> {
        if !(MIN_SLOTS..=MAX_SLOTS).contains(&self.max_slots) {
            return Err(ConfigError::MaxSlots(self.max_slots));
        }
        if !(1..=MAX_CREDIT).contains(&self.max_held_limit) {
            return Err(ConfigError::MaxHeldLimit(self.max_held_limit));
        }
        if self.max_gop_bytes > MAX_GOP_BYTES {
            return Err(ConfigError::MaxGopBytes(self.max_gop_bytes));
        }
        self.history.check()?;
        self.check_ids()?;
        let (mode, allows) = (self.socket_mode, self.lets_others_read());
        if mode > 0o777 {
            return Err(ConfigError::SocketMode(mode));
        }
        if endpoint.is_named() && (allows || mode != PRIVATE) {
            return Err(ConfigError::NamedForOthers);
        }
        if endpoint.is_abstract() {
            return if mode == PRIVATE { Ok(()) } else { Err(ConfigError::AbstractMode(mode)) };
        }
        if allows && mode & 0o022 == 0 {
            return Err(ConfigError::OthersKeptOut(mode));
        }
        Ok(())
    }

    /// Refuses numbers that would admit every user without one.
    fn check_ids(&self) -> Result<(), ConfigError> {
        let unmapped = |field, ids: &[u32], is_overflow: fn(u32) -> bool| {
            let found = ids.iter().copied().find(|id| is_overflow(*id));
            found.map_or(Ok(()), |id| Err(ConfigError::Unmapped { field, id }))
        };
        unmapped("allowed_uids", &self.allowed_uids, is_overflow_uid)?;
        unmapped("allowed_gids", &self.allowed_gids, is_overflow_gid)?;
        unmapped("trusted_uids", &self.trusted_uids, is_overflow_uid)
    }

    /// Returns whether some users besides the exporter's own and root may read.
    pub(super) fn lets_others_read(&self) -> bool {
        !self.allowed_uids.is_empty() || !self.allowed_gids.is_empty()
    }

    pub(super) fn may_read(&self, peer: &Peer) -> bool {
        peer.is_own_or_root()
            || self.allowed_uids.contains(&peer.uid)
            || self.allowed_gids.iter().any(|gid| peer.gids.contains(gid))
    }

    pub(super) fn may_have_gpu_memory(&self, peer: &Peer) -> bool {
        peer.is_own() || self.trusted_uids.contains(&peer.uid)
    }

    /// The limits of the stream.
    pub(super) fn limits(&self) -> Limits {
        Limits {
            max_slots: self.max_slots,
            max_held: self.max_held_limit,
            reader_timeout: self.reader_timeout,
            slow_readers: self.slow_readers,
            keeps_frames: self.history.keeps_frames(),
            history_pause: self.history_pause,
            max_queued_bytes: self.max_queued_bytes,
            max_queued_time: self.max_queued_time,
            fence_timeout: self.fence_timeout,
            max_retired_bytes: self.max_retired_bytes,
            max_gop_bytes: self.max_gop_bytes,
        }
    }

    /// Returns whether a reader is trusted with memory: it can trace the exporter, or the owner has
    /// trusted its user. It gets kept units, and its user is not charged for memory.
    pub(super) fn trusts_with_memory(&self, peer: &Peer) -> bool {
        peer.is_own_or_root() || self.trusted_uids.contains(&peer.uid)
    }

    pub(super) fn may_be_lossless(&self, peer: &Peer) -> bool {
        match self.lossless_readers {
            LosslessReaders::None => false,
            LosslessReaders::OwnUid => peer.is_own_or_root(),
            LosslessReaders::All => true,
        }
    }
}
