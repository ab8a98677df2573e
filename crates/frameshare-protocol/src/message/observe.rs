// SPDX-License-Identifier: MIT OR Apache-2.0

//! Observation of a stream: the request of an observer, and snapshots of the exporter's state.

use super::{
    codec::{DecodeError, Malformation, make_printable},
    content::{Format, Reason},
    handshake::GpuUuid,
};
use crate::{
    counters::{Ages, CopyCount, is_copy_reason},
    kind::{FenceKind, MemoryKind, Policy},
    limits::{
        MAX_COPY_REASONS, MAX_GENERATIONS, MAX_INCIDENTS, MAX_PEER_NAME, MAX_SLOTS, MAX_SNAPSHOT, MAX_TEXT,
    },
};
use serde::{Deserialize, Serialize};

/// First message of an observer: it takes no part in the stream, and gets snapshots of its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observe {
    /// Name of the observer, for logs.
    pub name: String,
    /// Interval of the snapshots in milliseconds; 0 for snapshots on request only. The exporter
    /// sends no two within [`MIN_INTERVAL_MS`](crate::limits::MIN_INTERVAL_MS).
    pub interval_ms: u32,
}

/// Answer to [`ToExporter::Disconnect`](super::ToExporter::Disconnect).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Disconnection {
    /// The reader is disconnected.
    Done,
    /// No present reader has this number.
    NoSuchReader,
    /// The observer is neither of the exporter's user nor root.
    PermissionDenied,
}

/// The rights of a reader of the observer's user, by the exporter's decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rights {
    /// The observer's user, in the exporter's user namespace.
    pub uid: u32,
    /// Leases that are left for a reader of this user.
    pub credit: u32,
    /// Whether the reader may be lossless.
    pub may_be_lossless: bool,
    /// Whether the reader may have GPU memory; otherwise its frames are copied to host memory.
    pub may_have_gpu_memory: bool,
}

/// State of a stream at one time. Times are in ns of the exporter's `CLOCK_MONOTONIC`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Time of the snapshot.
    pub time: u64,
    /// The exporter's process.
    pub exporter: ExporterInfo,
    /// Format of the frames, if it is known yet.
    pub format: Option<Format>,
    /// Memory kind of the frames.
    pub memory: MemoryKind,
    /// The reason for the memory kind.
    pub memory_why: String,
    /// GPU of the frames, if they are in GPU memory.
    pub gpu: Option<GpuUuid>,
    /// The generations of slots, oldest first.
    pub generations: Vec<GenerationInfo>,
    /// The limits of the stream.
    pub limits: StreamLimits,
    /// Counters of the stream.
    pub counters: StreamCounters,
    /// The present readers.
    pub readers: Vec<ReaderState>,
    /// The last evictions and refusals, oldest first.
    pub incidents: Vec<Incident>,
}

/// The process of an exporter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExporterInfo {
    /// Its process, in its own PID namespace.
    pub pid: u32,
    /// Its effective user.
    pub uid: u32,
    /// Name of its program.
    pub program: String,
    /// Version of its engine.
    pub engine: String,
    /// Version of its protocol.
    pub protocol: u16,
    /// Identifies this run of the stream.
    pub session: u64,
    /// Time at which the stream was opened.
    pub started: u64,
    /// Whether it uses its GPU as a client of NVIDIA's multi-process service.
    pub is_mps_client: bool,
}

/// A generation of slots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GenerationInfo {
    /// Number of the generation.
    pub generation: u32,
    /// Memory kind of its slots.
    pub memory: MemoryKind,
    /// Size of each slot in bytes.
    pub slot_size: u64,
    /// Number of slots.
    pub slots: u32,
    /// Number of free slots.
    pub free_slots: u32,
    /// Bytes of all its slots.
    pub bytes: u64,
    /// Whether the slots are memory of a third party, such as a decoder.
    pub is_adopted: bool,
    /// Whether the slots are needed for backlogs only.
    pub is_overflow: bool,
    /// Whether readers were asked to drop their imports.
    pub is_retired: bool,
}

/// Limits of a stream. Durations are in ns; `u64::MAX` is no limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamLimits {
    /// Maximum number of slots.
    pub max_slots: u32,
    /// Maximum number of leases of one reader.
    pub max_held_limit: u32,
    /// Readers that may be lossless.
    pub lossless_readers: LosslessAllowed,
    /// Treatment of lossless readers without credit.
    pub slow_readers: SlowTreatment,
    /// Maximum time that a lossless reader may hold the stream back.
    pub reader_timeout: u64,
    /// Maximum bytes of slots in all backlogs together.
    pub max_queued_bytes: u64,
    /// Maximum age of a frame in a backlog.
    pub max_queued_time: u64,
    /// Whether readers of other users have a backlog, too.
    pub queue_for_other_users: bool,
    /// Number of frames that are kept for readers that join later.
    pub history: u32,
    /// Maximum time of a reader's GPU work on a released frame.
    pub fence_timeout: u64,
    /// Maximum bytes of retired generations that one reader may keep from being freed.
    pub max_retired_bytes: u64,
    /// Maximum bytes of kept units of an encoded stream.
    pub max_gop_bytes: u64,
    /// The fence kind that readers on a GPU must use; `None` selects one for each reader.
    pub fence: Option<FenceKind>,
}

/// Readers that may be lossless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum LosslessAllowed {
    /// No reader.
    None,
    /// Processes of the exporter's own user, and root's.
    OwnUid,
    /// Every reader of the stream.
    All,
}

/// Treatment of lossless readers without credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum SlowTreatment {
    /// The stream waits for them.
    Wait,
    /// Frames wait for them in a backlog; beyond its limits the stream waits.
    QueueThenWait,
    /// Frames wait for them in a backlog; beyond its limits they are evicted.
    QueueThenDisconnect,
}

/// Counters of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamCounters {
    /// Frames published.
    pub published: u64,
    /// Time of the last publication; 0 before the first.
    pub last_published: u64,
    /// Time in ns that all published frames together waited in the exporter's process.
    pub waited: u64,
    /// Slots of the present size and memory kind.
    pub slots: u32,
    /// Free slots among them.
    pub free_slots: u32,
    /// Size of such a slot in bytes; 0 before the first.
    pub slot_size: u64,
    /// Bytes of retired generations that are not freed yet.
    pub retired_bytes: u64,
    /// Bytes of slots that hold frames of a backlog.
    pub waiting_bytes: u64,
    /// Kept units of the present group of pictures.
    pub gop_units: u32,
    /// Bytes of these units.
    pub gop_bytes: u64,
    /// Readers admitted so far.
    pub readers_total: u64,
    /// Present observers.
    pub observers: u32,
    /// Whether the stream has ended for now.
    pub ended: bool,
    /// Frames that the exporter or its application copied, by reason.
    pub copies: Vec<CopyCount>,
}

/// State of one reader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReaderState {
    /// Unique among all readers of this exporter, past ones included.
    pub id: u64,
    /// Its process, in the exporter's PID namespace; 0 if it has no number there.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// The name that it gave itself.
    pub name: String,
    /// Its policy.
    pub policy: Policy,
    /// Maximum number of its leases.
    pub credit: u32,
    /// Maximum number of its untaken frames.
    pub max_queued: u32,
    /// Frames taken and not released.
    pub held: u32,
    /// Frames published and not taken.
    pub queued: u32,
    /// Frames that wait for its credit.
    pub waiting: u32,
    /// Frames published to it, revoked ones included.
    pub sent: u64,
    /// Lost frames.
    pub lost: u64,
    /// Distance in frames from its oldest untaken frame to the newest.
    pub lag: u64,
    /// Its fence kind.
    pub fence: FenceKind,
    /// The reason for the fence kind.
    pub fence_why: String,
    /// Memory kind in which it gets frames: host for downloads of GPU frames.
    pub memory: MemoryKind,
    /// The reason why it cannot read adopted memory, if it cannot.
    pub cannot_adopt: Option<String>,
    /// Ages of the frames that it took, by its own count.
    pub ages: Ages,
    /// Frames that its application copied, by reason and its own count.
    pub copies: Vec<CopyCount>,
}

/// An eviction or a refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incident {
    /// Its time.
    pub time: u64,
    /// Number of the evicted reader; `None` for a refusal.
    pub reader: Option<u64>,
    /// The peer's process; 0 if it has no number in the exporter's PID namespace.
    pub pid: u32,
    /// The peer's user.
    pub uid: u32,
    /// The name of an evicted reader; empty for a refusal.
    pub name: String,
    /// The reason.
    pub reason: Reason,
    /// Human-readable reason.
    pub text: String,
}

impl Snapshot {
    /// Encodes the snapshot as the content of a payload.
    pub fn encode(&self) -> Vec<u8> {
        // Serializing plain data into a growing buffer cannot fail.
        postcard::to_extend(self, Vec::with_capacity(2048)).unwrap_or_default()
    }

    /// Decodes and validates the content of a payload from an exporter.
    ///
    /// # Errors
    /// [`DecodeError`] for malformed content, and for more entries than a stream can have.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        const INVALID: DecodeError = DecodeError::Malformed(Malformation::Snapshot);
        if bytes.len() as u64 > MAX_SNAPSHOT {
            return Err(INVALID);
        }
        let Ok((mut snapshot, [])) = postcard::take_from_bytes::<Self>(bytes) else { return Err(INVALID) };
        let fits = snapshot.readers.len() <= MAX_SLOTS as usize
            && snapshot.generations.len() <= MAX_GENERATIONS
            && snapshot.incidents.len() <= MAX_INCIDENTS
            && are_copies_valid(&snapshot.counters.copies)
            && snapshot.readers.iter().all(|reader| are_copies_valid(&reader.copies));
        if !fits {
            return Err(INVALID);
        }
        make_printable(&mut snapshot.exporter.program, MAX_PEER_NAME);
        make_printable(&mut snapshot.exporter.engine, MAX_PEER_NAME);
        make_printable(&mut snapshot.memory_why, MAX_TEXT);
        for reader in &mut snapshot.readers {
            make_printable(&mut reader.name, MAX_PEER_NAME);
            make_printable(&mut reader.fence_why, MAX_TEXT);
            if let Some(why) = &mut reader.cannot_adopt {
                make_printable(why, MAX_TEXT);
            }
        }
        for incident in &mut snapshot.incidents {
            make_printable(&mut incident.name, MAX_PEER_NAME);
            make_printable(&mut incident.text, MAX_TEXT);
        }
        Ok(snapshot)
    }
}

fn are_copies_valid(copies: &[CopyCount]) -> bool {
    copies.len() <= MAX_COPY_REASONS && copies.iter().all(|copies| is_copy_reason(&copies.reason))
}
