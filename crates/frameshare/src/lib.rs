// SPDX-License-Identifier: MIT OR Apache-2.0

//! Video frames shared between processes without a copy.
//!
//! One process, the **exporter**, has the frames of a video stream in memory that others can
//! import. Any number of **readers** in other processes import each frame's memory once and read it
//! in place. No frame is copied, and while both sides are awake no system call is made for one.
//!
//! ```no_run
//! use frameshare::{Endpoint, Interrupt, exporter, fence::Written, reader};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let cam0 = Endpoint::of_stream(&"cam0".parse()?)?;
//! let interrupt = Interrupt::new()?;
//!
//! // In one process:
//! let exporter = exporter::Exporter::bind(&cam0, exporter::Config::default(), |notice| println!("{notice:?}"))?;
//! let size = 1920 * 1080 * 3 / 2;
//! let slot = exporter.acquire(size, exporter::Purpose::Copy)?;
//! // ... write the frame to slot.as_ptr() ...
//! exporter.publish(exporter::Frame::new(&slot, size, Written::Cpu), &interrupt)?;
//!
//! // In others:
//! let mut reader = reader::Reader::connect(&cam0, reader::Config::default(), &interrupt)?;
//! while let Some(item) = reader.next(None, &interrupt)? {
//!     if let reader::Item::Frame(frame) = item {
//!         println!("frame {} has {} bytes", frame.descriptor().sequence, frame.len());
//!     } // the frame's slot returns to the exporter here
//! }
//! # Ok(()) }
//! ```
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

mod atomic;
pub mod queue;

// Under loom only the queue is built: everything else makes system calls.
#[cfg(not(loom))]
mod endpoint;
#[cfg(not(loom))]
mod event;
#[cfg(not(loom))]
pub mod exporter;
#[cfg(not(loom))]
pub mod fence;
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
    limits::{MAX_CREDIT, MAX_SLOTS},
    message::{Format, Reason, Video},
};
