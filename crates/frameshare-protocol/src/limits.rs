//! The numbers that bound what a peer may ask for or send.

/// Most slots that a stream can have, and so most leases that all its readers can hold together.
pub const MAX_SLOTS: u32 = 1024;
/// Most leases that one reader can be granted; also the number of entries of the largest queue.
pub const MAX_CREDIT: u32 = 64;
/// Most messages that an exporter keeps for a reader that leaves others unread.
pub const MAX_BACKLOG: usize = 1024;
/// Most bytes of a control message; longer payloads travel as a sealed memfd.
pub const MAX_MESSAGE: usize = 64 * 1024;
/// Most bytes of a payload that travels as a sealed memfd (cover art in tags, say).
pub const MAX_PAYLOAD: u64 = 64 * 1024 * 1024;
/// Most file descriptors that come with a message; a [`Welcome`](crate::message::Welcome) has up to five.
pub const MAX_FDS: usize = 5;
/// Bytes of metadata that fit beside a frame; more travels as a message bound to its sequence number.
pub const METADATA_AREA: usize = 4096;
/// Planes of a frame, as in GStreamer's `GST_VIDEO_MAX_PLANES`.
pub const MAX_PLANES: usize = 4;
/// Most bytes of a slot: 1 TiB, far above any frame and far below where sizes overflow.
pub const MAX_SLOT_SIZE: u64 = 1 << 40;
/// Most GPUs that a peer can name.
pub const MAX_GPUS: usize = 64;
/// Most bytes of the name by which a reader calls itself.
pub const MAX_PEER_NAME: usize = 128;
/// Most bytes of a text that one side writes for a person on the other to read; the rest is cut off.
pub const MAX_TEXT: usize = 1024;
