// SPDX-License-Identifier: MIT OR Apache-2.0

//! The handshake: `Hello` of the reader, `Welcome` of the exporter.

use super::upstream::UpstreamKinds;
use crate::{
    ids::Sequence,
    kind::{FenceKind, MemoryKind, Policy},
};
use serde::{Deserialize, Serialize};

/// A random number drawn once per process: two peers with equal nonces are the same process.
pub type Nonce = [u8; 16];
/// Size in bytes of a CUDA IPC event handle (`CUipcEventHandle`).
pub const EVENT_HANDLE: usize = 64;
/// UUID of a GPU or MIG instance (`cuDeviceGetUuid_v2`).
pub type GpuUuid = [u8; 16];

/// First message, from reader to exporter: the reader's request and capabilities.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Nonce of the reader's process.
    pub nonce: Nonce,
    /// Name of the reader in the exporter's statistics.
    pub name: String,
    /// Requested delivery policy.
    pub policy: Policy,
    /// Requested number of simultaneous leases; 0: as many as suit the frame rate.
    pub credit: u32,
    /// Under `latest`, the maximum number of untaken frames; the exporter revokes older ones. 0: as
    /// many as suit the frame rate.
    pub max_queued: u32,
    /// Memory kinds that the reader can import.
    pub memory: Vec<MemoryKind>,
    /// Fence kinds that the reader supports.
    pub fences: Vec<FenceKind>,
    /// GPUs whose memory the reader's context can read.
    pub gpus: Vec<GpuUuid>,
    /// Identifies the reader's CUDA context within its process; 0 without a context.
    pub context: u64,
    /// Whether the reader accepts frames in host memory if it cannot read the GPU memory.
    pub host_fallback: bool,
    /// Maximum total size in bytes of the kept units that the reader accepts; 0 for none.
    pub max_gop_bytes: u64,
}

/// The exporter's answer to a [`Hello`]. Carries four descriptors: queue page, claims page,
/// metadata areas, wake-up socket. Then follow with timeline fences the timeline page, and the
/// wake-up page if [`wake_word`](Self::wake_word) is set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Nonce of the exporter's process.
    pub nonce: Nonce,
    /// Identifies this run of the stream; earlier and later runs under the same name differ.
    pub session: u64,
    /// The granted policy, equal to the requested one.
    pub policy: Policy,
    /// Number of simultaneous leases granted, at most as requested; also the number of queue
    /// entries.
    pub credit: u32,
    /// Fence kind of the connection.
    pub fence: FenceKind,
    /// With event fences, the event handles: the ready event of each entry, then the release event
    /// of each.
    pub events: Vec<u8>,
    /// GPU of the frames, if they are in GPU memory.
    pub gpu: Option<GpuUuid>,
    /// Number of metadata areas.
    pub areas: u32,
    /// Sequence number of the first frame that the reader may get.
    pub next: Sequence,
    /// Sequence number of the next frame to be published. Frames before it were published before
    /// the reader joined.
    pub live: Sequence,
    /// The upstream events that the reader may send.
    pub upstream: UpstreamKinds,
    /// The word of the wake-up page that the reader may sleep on.
    pub wake_word: Option<u32>,
}
