// SPDX-License-Identifier: MIT OR Apache-2.0

//! Video frames shared between processes without a copy.
//!
//! One process, the **exporter**, has the frames of a video stream in memory that others can
//! import. Any number of **readers** in other processes import each frame's memory once and read it
//! in place. No frame is copied, and while both sides are awake no system call is made for one.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use frameshare::{exporter::VideoExporter, video::VideoFormat};
//!
//! // In one process:
//! let video = VideoExporter::new("cam0", VideoFormat::new("NV12".parse()?, 1920, 1080).rate(30, 1))?;
//! let mut frame = video.frame()?;
//! frame.plane_mut(0).fill(16); // a slot of the stream, written in place
//! video.publish(frame)?;
//!
//! // In others:
//! for frame in frameshare::open("cam0")? {
//!     let frame = frame?;
//!     let luma = frame.plane(0)?;
//!     println!("frame {}: {}x{}", frame.descriptor().sequence, luma.width, luma.height);
//! } // each frame's slot returns to the exporter at the end of its round
//! # Ok(()) }
//! ```
//!
//! [`open`] and [`exporter::VideoExporter`] have the defaults of most applications.
//! [`reader::Reader`] and [`exporter::Exporter`] below them do everything else: GPU memory, events,
//! encoded streams, event loops.
//!
//! # Modules
//!
//! - `sys`: Linux - sockets that carry descriptors, sealed memory, mappings, waits, locks
//! - [`memory`]: one trait, and an implementation for each kind of memory
//! - [`fence`]: one trait, and an implementation for each kind of fence
//! - `gpu`: drops that wait until the GPU is done with a resource
//! - [`queue`]: descriptor queues, claims and releases in shared pages
//! - [`exporter`]: admission, publication, reclaim, retirement
//! - [`reader`]: connection, delivery, release, reconnection
//! - [`machine`]: abilities of the kernel that streams depend on
//! - [`observer`]: the state of a stream and its readers, without taking part
//! - [`video`]: formats of raw video, and the planes of their frames

#[cfg(all(doctest, not(loom)))]
#[doc = include_str!("../../../docs/rust.md")]
struct Guide;

mod atomic;
pub mod queue;

// Under loom only the queue is built: everything else makes system calls.
#[cfg(not(loom))]
mod endpoint;
#[cfg(not(loom))]
pub mod event;
#[cfg(not(loom))]
pub mod exporter;
#[cfg(not(loom))]
pub mod fence;
pub mod flags;
#[cfg(not(loom))]
mod gpu;
#[cfg(not(loom))]
pub mod machine;
#[cfg(not(loom))]
pub mod memory;
#[cfg(not(loom))]
mod named_folder;
#[cfg(not(loom))]
pub mod observer;
#[cfg(not(loom))]
pub mod reader;
#[cfg(not(loom))]
mod streams;
#[cfg(not(loom))]
mod sys;
#[cfg(not(loom))]
pub mod video;

#[cfg(not(loom))]
pub use {
    endpoint::{Endpoint, EndpointError},
    event::Event,
    gpu::{DropWhenIdle, wait_for_deferred_drops},
    reader::open,
    streams::{StreamChange, StreamFolder, StreamInfo, StreamMonitor, stream_folders, streams},
    sys::{Interrupt, Label, monotonic_ns},
};

/// Types of CUDA in the signatures of this crate. Copies, events, memory and all else are in the
/// `frameshare_cuda` crate.
#[cfg(not(loom))]
pub mod cuda {
    pub use frameshare_cuda::{
        Error, Result, capture,
        context::Context,
        device::{Device, Uuid},
        stream::Stream,
    };
}

pub use frameshare_protocol::{
    AreaIndex, Descriptor, EntryIndex, FenceKind, MemoryKind, Plane, Policy, Sequence, SlotId, StreamName,
    limits::{MAX_CREDIT, MAX_SLOTS, automatic_credit, automatic_queue},
    message::{Format, Reason, Video},
};
