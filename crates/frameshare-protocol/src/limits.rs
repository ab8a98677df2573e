// SPDX-License-Identifier: MIT OR Apache-2.0

//! Limits on requests and data from a peer.

/// Maximum number of slots of a stream, hence of leases held by all its readers together.
pub const MAX_SLOTS: u32 = 1024;
/// Maximum number of leases granted to one reader; also the number of entries of the largest queue.
pub const MAX_CREDIT: u32 = 64;
/// Maximum number of messages that an exporter queues for a reader that does not receive them.
pub const MAX_BACKLOG: usize = 1024;
/// Maximum size of a control message in bytes; longer payloads are sent as a sealed memfd.
pub const MAX_MESSAGE: usize = 64 * 1024;
/// Maximum size in bytes of a payload sent as a sealed memfd (for example cover art in tags).
pub const MAX_PAYLOAD: u64 = 64 * 1024 * 1024;
/// Maximum number of kept units in one memory file.
pub const MAX_KEPT_UNITS: u32 = 16 * 1024;
/// Maximum number of file descriptors per message; a [`Welcome`](crate::message::Welcome) has up to
/// five.
pub const MAX_FDS: usize = 5;
/// Size in bytes of a metadata area; longer metadata is sent as a message with the frame's sequence
/// number.
pub const METADATA_AREA: usize = 4096;
/// Maximum number of planes of a frame, as in GStreamer's `GST_VIDEO_MAX_PLANES`.
pub const MAX_PLANES: usize = 4;
/// Maximum size of a slot: 1 TiB, larger than any frame and small enough that sizes do not
/// overflow.
pub const MAX_SLOT_SIZE: u64 = 1 << 40;
/// Maximum number of GPUs that a peer can list.
pub const MAX_GPUS: usize = 64;
/// Maximum length in bytes of a reader's name.
pub const MAX_PEER_NAME: usize = 128;
/// Maximum size in bytes of a snapshot for an observer.
pub const MAX_SNAPSHOT: u64 = 4 * 1024 * 1024;
/// Maximum number of generations in a snapshot: the newest ones.
pub const MAX_GENERATIONS: usize = 256;
/// Maximum number of evictions and refusals in a snapshot: the newest ones.
pub const MAX_INCIDENTS: usize = 32;
/// Minimum interval in milliseconds of the snapshots for one observer.
pub const MIN_INTERVAL_MS: u32 = 100;
/// Maximum length in bytes of a human-readable text from a peer; longer texts are truncated.
pub const MAX_TEXT: usize = 1024;
