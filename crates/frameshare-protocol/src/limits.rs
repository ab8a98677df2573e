// SPDX-License-Identifier: MIT OR Apache-2.0

//! Limits on requests and data from a peer.

/// Maximum number of slots of a stream, hence of leases held by all its readers together.
pub const MAX_SLOTS: u32 = 1024;
/// Maximum number of leases granted to one reader; also the number of entries of the largest queue.
pub const MAX_CREDIT: u32 = 64;
/// Minimum duration in ns of the frames of [`automatic_queue`]: a live source's usual latency and
/// the processing deadline of GStreamer's sinks, 20 ms each, and some time for jitter.
const BUFFERED_NS: u64 = 48_000_000;
/// The same beside the time by which frames are published ahead. A little less, so that live video
/// of 30 frames per second, which is 53 ms ahead, needs no more credit than other video.
const BUFFERED_BESIDE_LEAD_NS: u64 = 46_000_000;
/// Minimum of [`automatic_queue`].
const MIN_QUEUE: u32 = 2;
/// Duration in ns of a frame of an unknown rate that is published ahead of its presentation time.
const ASSUMED_PERIOD_NS: u64 = 1_000_000_000 / 60;

/// Maximum number of untaken frames of a `latest` reader that leaves it to the exporter
/// ([`max_queued`](crate::message::Hello::max_queued) 0): with the frame that is being read they
/// span the latency of a synchronized sink. `period_ns` is the duration of a frame, if it is known;
/// `lead_ns` the time by which frames are published ahead of their presentation time, at most.
pub fn automatic_queue(period_ns: Option<u64>, lead_ns: u64) -> u32 {
    let assumed = (lead_ns > 0).then_some(ASSUMED_PERIOD_NS);
    let period = period_ns.filter(|period| *period > 0).or(assumed);
    let span = BUFFERED_BESIDE_LEAD_NS.saturating_add(lead_ns).max(BUFFERED_NS);
    let frames = period.map_or(0, |period| span.div_ceil(period));
    let frames = u32::try_from(frames).unwrap_or(u32::MAX);
    frames.saturating_sub(1).clamp(MIN_QUEUE, MAX_CREDIT - 2)
}

/// Credit of a reader that leaves it to the exporter ([`credit`](crate::message::Hello::credit) 0):
/// the untaken frames, one that is read, and one on its way back.
pub fn automatic_credit(period_ns: Option<u64>, lead_ns: u64) -> u32 {
    automatic_queue(period_ns, lead_ns) + 2
}

/// Maximum number of messages that an exporter queues for a reader that does not receive them.
pub const MAX_BACKLOG: usize = 1024;
/// Maximum size of a control message in bytes; longer payloads are sent as a sealed memfd.
pub const MAX_MESSAGE: usize = 64 * 1024;
/// Maximum size in bytes of a payload sent as a sealed memfd (for example cover art in tags).
pub const MAX_PAYLOAD: u64 = 64 * 1024 * 1024;
/// Maximum number of kept units in one memory file.
pub const MAX_KEPT_UNITS: u32 = 16 * 1024;
/// Maximum number of file descriptors per message; a [`Welcome`](crate::message::Welcome) has up to
/// six.
pub const MAX_FDS: usize = 6;
/// Size in bytes of a metadata area. Longer metadata is in a large area or, if the publication has
/// none or exceeds it, in a message with the frame's sequence number.
pub const METADATA_AREA: usize = 4096;
/// Size in bytes of a large metadata area.
pub const LARGE_AREA: usize = 64 * 1024;
/// Maximum number of large metadata areas: those of the publications with the lowest areas.
pub const MAX_LARGE_AREAS: u32 = 64;
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
/// Maximum number of reasons for copies of one stream or reader in a snapshot.
pub const MAX_COPY_REASONS: usize = 32;
/// Minimum interval in milliseconds of the snapshots for one observer.
pub const MIN_INTERVAL_MS: u32 = 100;
/// Maximum length in bytes of a human-readable text from a peer; longer texts are truncated.
pub const MAX_TEXT: usize = 1024;
