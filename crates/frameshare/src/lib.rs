// SPDX-License-Identifier: MIT OR Apache-2.0

//! Video frames shared between processes without a copy.
//!
//! One process, the **exporter**, has the frames of a video stream in memory that others can
//! import. Any number of **readers** in other processes import each frame's memory once and read it
//! in place. No frame is copied, and while both sides are awake no system call is made for one.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use frameshare::{Wait, exporter::VideoExporter, video::VideoFormat};
//!
//! // In one process:
//! let video = VideoExporter::new("cam0", VideoFormat::new("NV12".parse()?, 1920, 1080).rate(30, 1))?;
//! let mut frame = video.acquire(Wait::Forever)?;
//! frame.plane_mut(0).fill(16); // a slot of the stream, written in place
//! video.publish(&frame, Wait::Forever)?; // waits for lossless readers only
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
//! # On a GPU
//!
//! Frames in GPU memory are written and read on streams; no call waits for the GPU.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use std::sync::Arc;
//! use frameshare::{Wait, cuda::{Device, Stream}, exporter, memory::Address, reader};
//!
//! let device = Device::find("0")?; // a number, or a UUID
//!
//! // In one process:
//! let config = exporter::Config::default().on_gpu(&device)?;
//! let stream = Stream::new(config.gpu.as_ref().ok_or("no GPU")?)?;
//! let endpoint = frameshare::Endpoint::of_text("cam0")?;
//! let exporter = exporter::Exporter::bind(&endpoint, config, |notice| println!("{notice:?}"))?;
//! let slot = exporter.acquire(1920 * 1080, exporter::Purpose::Copy, Wait::Forever)?;
//! let Address::Device(pointer) = slot.address() else { return Err("host memory".into()) };
//! // ... queue work on `stream` that writes to `pointer` ...
//! let written = frameshare::fence::Written::On(&stream);
//! let frame = exporter::Frame::new(&slot, 1920 * 1080, written);
//! exporter.publish(frame, Wait::Forever)?;
//!
//! // In others:
//! let config = reader::Config::default().on_gpu(&device)?;
//! let stream = Arc::new(Stream::new(config.gpu.as_ref().ok_or("no GPU")?)?);
//! for frame in reader::Frames::open("cam0", config)? {
//!     let frame = frame?;
//!     let Address::Device(pointer) = frame.address_on(&stream)? else { continue };
//!     // ... queue work on `stream` that reads from `pointer`: it starts when the frame is written,
//!     // and the frame returns to the exporter behind it ...
//! }
//! # Ok(()) }
//! ```
//!
//! # Guide
//!
//! | topic | here | complete program |
//! | --- | --- | --- |
//! | reading | [`open`], [`reader::Frames`], [`reader::Config`] | `examples/engine-read.rs` |
//! | publishing | [`exporter::VideoExporter`] | `examples/engine-export.rs` |
//! | formats and planes | [`video::VideoFormat`], [`reader::FramePlane`] | |
//! | GPU memory | [`reader::Frame::address_on`], [`fence::Written`], [`cuda::capture`] | `examples/gpu-read.rs`, `gpu-export.rs` |
//! | tags, gaps, custom events | [`event`] | |
//! | many streams in one thread | [`reader::ReaderSet`] | |
//! | event loops, tokio, async-io | [`reader::Reader::wake_fd`] | the crates `frameshare-tokio`, `frameshare-async-io` |
//! | streams of this machine | [`streams()`], [`StreamMonitor`], [`observer`] | the command `frameshare` |
//!
//! # Units, threads, errors
//!
//! - Times of frames are ns of `CLOCK_MONOTONIC` ([`monotonic_ns`]); sizes, offsets and strides are
//!   bytes; timeouts are [`Duration`](std::time::Duration)s.
//! - All objects may go to any thread. A [`reader::Reader`] and a [`reader::Frames`] are used from
//!   one thread at a time, their frames from any. An [`exporter::Exporter`] is used from any
//!   thread.
//! - Only calls that say so wait, an exporter's as long as a [`Wait`] allows; an [`Interrupt`] ends
//!   each wait. Dropping frames, readers and exporters waits for no other process and no GPU;
//!   [`wait_for_deferred_drops`] waits for what is freed later.
//! - Errors are enums; their texts say what failed and what to do. Nothing panics on what other
//!   processes send.
//!
//! # Modules
//!
//! The decisions of exporters and readers are in the crate `frameshare-core`, without I/O, and the
//! queue of a reader is in `frameshare-queue`. The modules here do the I/O.
//!
//! - `service`: the thread that serves all exporters of this process
//! - `foreign`: code of the application that the engine runs
//! - `sys`: Linux - sockets that carry descriptors, sealed memory, mappings, waits, locks
//! - [`memory`]: one trait, and an implementation for each kind of memory
//! - [`fence`]: one trait, and an implementation for each kind of fence
//! - `gpu`: drops that wait until the GPU is done with a resource
//! - [`exporter`]: admission, publication, reclaim, retirement
//! - [`reader`]: connection, delivery, release, reconnection
//! - [`machine`]: abilities of the kernel that streams depend on
//! - [`observer`]: the state of a stream and its readers, without taking part
//! - [`video`]: formats of raw video, and the planes of their frames
//! - [`event`], [`flags`]: events in order with frames; flags of frames

#[cfg(doctest)]
#[doc = include_str!("../../../docs/rust.md")]
struct Guide;

mod endpoint;
pub mod event;
pub mod exporter;
pub mod fence;
pub mod flags;
mod foreign;
mod gpu;
pub mod machine;
pub mod memory;
mod named_folder;
pub mod observer;
mod options;
pub mod reader;
mod service;
mod streams;
mod sys;
pub mod video;
mod wait;

pub use {
    endpoint::{Endpoint, EndpointError},
    event::Event,
    gpu::{DropWhenIdle, drop_behind, wait_for_deferred_drops},
    options::ConfigOption,
    reader::open,
    streams::{StreamChange, StreamFolder, StreamInfo, StreamMonitor, stream_folders, streams},
    sys::{Interrupt, Label, monotonic_ns, process_number},
    wait::Wait,
};

/// Types of CUDA in the signatures of this crate. Copies, events, memory and all else are in the
/// `frameshare_cuda` crate.
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
    message::{Format, Reason, Video, is_printable, make_printable},
};
