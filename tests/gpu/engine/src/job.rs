// SPDX-License-Identifier: MIT OR Apache-2.0

//! Commands of a case to its peers, and their reports.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use frameshare::{FenceKind, MemoryKind, Policy};
use serde::{Deserialize, Serialize};

/// A command. A peer executes one command at a time, in order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Command {
    /// Opens an exporter.
    Bind(Bind),
    /// Opens a reader.
    Connect(Connect),
    /// Opens a reader that violates the protocol; see [`crate::rogue`].
    Rogue(Connect),
    /// Records again the events that the exporter shared, on a stalled stream.
    RecordOver {
        us: u64,
    },
    /// Acknowledges a retirement without releasing the imports.
    AcknowledgeAndKeep {
        ms: u64,
    },
    /// Opens a hostile exporter at a path.
    Harmer {
        path: String,
    },
    /// Prepares a hostile reader for the exporter at a path.
    Intruder {
        path: String,
    },
    /// Runs the attack of this name; see [`crate::hostile`].
    Harm {
        attack: String,
    },
    /// Waits until the GPU has completed all work of this process, and what waited for it is freed.
    AwaitIdle {
        ms: u64,
    },
    /// Creates interprocess events and keeps them.
    TakeEvents {
        count: usize,
    },
    /// Starts a thread that captures a stream of the peer's context, again and again.
    Capture(CaptureLoop),
    /// Ends that thread. Reports [`Captured`].
    EndCapture,

    // Commands to an exporter.
    /// Waits until the exporter has this many readers.
    AwaitReaders {
        count: usize,
        ms: u64,
    },
    Publish(Publish),
    /// Fills memory of this kind with a pattern and frees it, so that later allocations may contain
    /// the pattern.
    Soil {
        kind: MemoryKind,
    },
    /// Holds as many slots as an upstream pool may. Reports their number.
    HoldSlots {
        size: u64,
    },
    /// Stalls the writing stream until [`Command::Resume`], or for this time.
    Stall {
        us: u64,
    },
    Format {
        caps: String,
    },
    EndOfStream,
    /// Waits until lossless readers have released all frames.
    Drain {
        ms: u64,
    },
    ExporterStats,
    /// Reports all notices of the exporter so far.
    Notices,
    /// Drops the exporter; the process lives on. Reports the duration in ms.
    Unbind,
    /// Publishes one frame in a new foreign allocation by adopting it. Reports its address.
    Adopt {
        size: u64,
        slow: Slow,
    },
    /// Adopts so many foreign allocations and publishes frames in them in turns, as a decoder does:
    /// waits for the return of a frame before it writes its allocation again. Reports
    /// [`Circulated`].
    Circulate(Circulate),
    /// Passes user data that calls the exporter when it is dropped to `drop_after`, while the
    /// writing stream is captured.
    DropAfterInCapture,
    /// Drops host memory that is registered with the driver, behind a stream that stalls for this
    /// time.
    DropRegistered {
        us: u64,
    },
    /// Copies from so many sources in turns, each when the one before has come back, with a delay
    /// of the stream before each; publishes the copies unless the exporter has no GPU. Reports the
    /// duration in ms.
    DropAfter {
        sources: u64,
        us: u64,
    },
    /// Places further frames in host memory, or in GPU memory again.
    HostMemory {
        yes: bool,
    },
    /// Publishes one of the slots that [`Command::HoldSlots`] has taken.
    PublishHeld,
    /// Lets the process open no further file, or again as many as before.
    LimitFiles {
        limited: bool,
    },
    /// Registers so many host slots of this size with the driver, which then refuses to register
    /// them for the engine.
    RegisterHostSlots {
        size: u64,
        count: usize,
    },
    /// Retires adopted memory. Reports how many owners were notified within this time.
    RetireAdopted {
        ms: u64,
    },
    /// Drops the exporter, if it exists, and waits up to this time until none of its resources is
    /// left. Reports how many owners of adopted memory were notified.
    UnbindAdopted {
        ms: u64,
    },
    /// Reports how many adopted frames their owners may write again.
    Returned,
    /// Opens a reader in the exporter's own process.
    ConnectHere(Connect),

    // Commands to a reader.
    Read(Read),
    /// Takes a frame while the reading stream is captured, which fails, and releases it there.
    /// Reports the errors.
    ReadInCapture,
    /// Releases frames that [`Read::hold`] kept.
    ReleaseHeld {
        count: usize,
    },
    /// Reads the held frames again.
    CheckHeld,
    /// Drops the reader; held frames remain valid.
    Disconnect,
    /// Stalls the reading stream until [`Command::Resume`], or for this time.
    StallReading {
        us: u64,
    },

    // Commands to a process with many readers or exporters.
    /// Opens so many readers, each of which reads on a stream of its own.
    Crowd {
        connect: Connect,
        readers: usize,
    },
    /// Each reader takes a frame, if it comes within this time. Reports [`Crowded`].
    TakeEach {
        ms: u64,
    },
    /// Waits for the downloads of the frames. Reports how many are wrong or do not complete.
    SettleCrowd,
    /// Drops the readers. Reports the duration in ms.
    EndCrowd,
    /// Opens an exporter at each path, a link of a ring.
    Rings {
        paths: Vec<String>,
    },
    /// Copies the frames of the links before, so many times in each ring. Reports how many were
    /// wrong.
    Relay {
        befores: Vec<String>,
        begins: bool,
        rounds: u64,
        seed: u64,
    },

    // Commands to either.
    /// Resumes the stalled streams.
    Resume,
    /// Queues kernels of this duration on the reading stream.
    LongKernels {
        ms: u64,
        count: u32,
    },
    /// Loses the CUDA context, in the way that this driver allows.
    LoseContext,
}

/// The result of a command.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Reply {
    Done,
    /// The kernel refused a descriptor on the sender's side: the attack did not take place.
    Refused,
    Number(u64),
    Texts(Vec<String>),
    Connected {
        credit: u32,
        ms: u64,
    },
    Published(Published),
    Read(Box<WasRead>),
    Stats(Stats),
    Captured(Captured),
    Circulated(Circulated),
    Crowded(Crowded),
}

/// Figures of the readers of one process.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Crowded {
    pub frames: u64,
    /// Frames that came when they were written for the bound of waits, so far.
    pub limited: u64,
    pub torn: u64,
    pub lost: u64,
    /// A stream that waits for no frame was held back.
    pub is_held_back: bool,
}

/// Parameters of a capturing thread.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CaptureLoop {
    /// CUstreamCaptureMode.
    pub mode: i32,
    /// Announces each capture to the engine.
    pub announced: bool,
    /// Captures a stream that synchronizes with the NULL stream.
    pub blocking: bool,
}

/// Counts of a capturing thread.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Captured {
    pub graphs: u64,
    /// Captures that a call of other code invalidated.
    pub broken: u64,
}

/// Parameters of frames in adopted allocations.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Circulate {
    pub buffers: usize,
    pub frames: u64,
    /// Time from the start of one frame to the start of the next.
    pub pace_us: u64,
    /// Time that the producer works on a frame once it has the allocation.
    pub work_us: u64,
    /// Makes a copy every 30 ms while the last frames come back.
    pub beside_copies: bool,
}

/// Figures of a run of [`Command::Circulate`], the return of all frames included.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Circulated {
    pub ms: f64,
    /// Number of times that the exporter's service threads slept.
    pub sleeps: u64,
}

/// Configuration of an exporter. `None` selects the engine's default, except that timeouts default
/// to [`frameshare_gpu_harness::GIVEN_UP`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Bind {
    pub path: String,
    pub device: usize,
    /// The exporter has no GPU, but its owner has.
    pub in_host: bool,
    pub memory: Option<MemoryKind>,
    pub fence: Option<FenceKind>,
    pub max_slots: Option<u32>,
    pub max_held_limit: Option<u32>,
    pub fence_timeout_ms: Option<u64>,
    pub reader_timeout_ms: Option<u64>,
    pub max_retired_bytes: Option<u64>,
    pub trusted_uids: Vec<u32>,
    /// Frames wait for paused lossless readers.
    pub queues: bool,
    /// The last frame is kept for joining readers.
    pub keeps_last: bool,
    pub seed: u64,
}

/// Configuration of a reader, with the defaults of [`Bind`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Connect {
    pub path: String,
    pub device: usize,
    /// Reads without a GPU.
    pub host: bool,
    /// Takes frames in host memory if it cannot read those on the GPU.
    pub host_fallback: bool,
    pub fence: Option<FenceKind>,
    pub policy: Policy,
    pub max_held: Option<u32>,
    pub spin: u32,
    /// Frames come when they are written only.
    pub written_only: bool,
    pub connection_timeout_ms: Option<u64>,
    pub reconnect: bool,
    pub fence_timeout_ms: Option<u64>,
    /// The user that the exporter runs as, if it differs from the reader's.
    pub exporter_uid: Option<u32>,
    pub seed: u64,
}

/// Delay of a stream before it reaches the frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Slow {
    #[default]
    Never,
    /// About every eighth frame, by a random time below this many µs.
    Sometimes(u64),
    /// Every frame, by this many µs.
    Always(u64),
}

/// The stream that a publication names as the writer of the frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Says {
    /// The actual writer's stream.
    #[default]
    Truth,
    /// The first writer's stream, even if the second wrote the frame.
    First,
    /// Any stream of the context.
    Somewhere,
    /// A stream of the other GPU, which waits for the writer's.
    OtherDevice,
}

/// Fate of a frame whose slot was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fate {
    #[default]
    Published,
    /// It is published too late for any `latest` reader.
    Late,
    /// Its publication fails.
    Refused,
    /// It is dropped behind the writer's stream without a publication.
    Discarded,
    /// It is dropped without a publication, and without the name of a stream.
    Dropped,
    /// Its publication names a stream that was destroyed, and fails since a capture is announced.
    Stale,
}

/// Parameters of a publication run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Publish {
    pub frames: u64,
    pub size: u64,
    /// Time from the start of one frame to the start of the next.
    pub pace_us: u64,
    pub slow: Slow,
    /// Lets a second writer, with its own stream and this delay, write every other frame.
    pub second: Option<Slow>,
    /// The second writer's stream is of another context.
    #[serde(default)]
    pub second_elsewhere: bool,
    /// Fate of the second writer's frames.
    #[serde(default)]
    pub second_fate: Fate,
    pub says: Says,
    /// Writes nothing: each frame keeps the previous content of its slot.
    pub unwritten: bool,
    /// Copies each frame from scratch memory instead of filling it.
    pub copy: bool,
    /// Keeps the GPU busy before each frame by filling scratch memory this many times, without CPU
    /// involvement.
    pub load: u64,
    /// Waits at the end until lossless readers have released all frames.
    pub drain: bool,
    /// Attaches metadata that repeats the sequence number this many times.
    pub metadata: usize,
    /// Counts calls and CPU time from this frame on.
    pub count_from: u64,
}

/// Result of a publication run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Published {
    pub frames: u64,
    pub ms: f64,
    /// Longest interval between consecutive frames.
    pub longest_gap_ms: f64,
    pub steady: Steady,
}

/// Steady-state counters, from [`Publish::count_from`] or [`Read::count_from`] on.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Steady {
    pub frames: u64,
    pub cpu_us: f64,
    pub us: f64,
    pub calls: BTreeMap<String, u64>,
}

/// CUDA context in which a reader processes frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Where {
    /// The reader's own context.
    #[default]
    Own,
    /// The reader's own context, on one stream; frames are released in stream order.
    OwnInOrder,
    /// Another context; the reader names its stream (`used_on_stream`).
    Elsewhere,
    /// Another context, on one stream; frames are released in stream order.
    ElsewhereInOrder,
    /// Another context, whose use is not declared to the engine.
    ElsewhereUnnamed,
}

/// Use of a stream that the reader destroys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Temporary {
    /// Names it, and ends the use of the frame on it (`done_on`).
    Done,
    /// Ends the use before it queues the work.
    DoneEarly,
    /// Names it alone, against the contract.
    Named,
}

/// Processing of each frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Use {
    /// Downloads the frame and checks every byte.
    #[default]
    Check,
    /// Copies a few bytes on the device.
    Touch,
    /// As `Touch`; in addition the CPU polls for completion of the copy.
    Watch,
}

/// Parameters of a read run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Read {
    /// Ends after this many frames; `None` reads to the end of the stream.
    pub frames: Option<u64>,
    /// Ends when no frame arrives within this time.
    pub patience_ms: u64,
    /// Waits on the reader's file descriptor, as an event loop does.
    pub by_descriptor: bool,
    /// Holds each frame for this time before its stream waits for the ready fence.
    pub sit_ms: u64,
    /// Gets the address of each frame for the stream that reads it, instead of a plain one.
    pub named: bool,
    /// Omits the wait for the ready fence.
    pub without_wait: bool,
    /// Expects all bytes to be zero, as in slots that were never written.
    pub zero: bool,
    pub on: Where,
    /// Reads each frame on a stream of its own, which is destroyed before the frame is released.
    pub temporary: Option<Temporary>,
    pub slow: Slow,
    /// Processing of each frame.
    pub what: Use,
    /// Number of frames to hold.
    pub hold: usize,
    /// Drops the reader before waiting for pending downloads, or after an error.
    pub leave: bool,
    /// Waits for each download before the next frame, up to this time, as an app does that needs
    /// the bytes at once.
    pub at_once_ms: Option<u64>,
    /// Waits up to this time for pending downloads at the end, and reports the number of stuck ones
    /// instead of failing.
    pub settle_ms: Option<u64>,
    pub count_from: u64,
}

/// Reason why a read run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    Enough,
    /// End of stream.
    Stream,
    Nothing,
    Error {
        kind: String,
        torn: u64,
        lost: u64,
        text: String,
    },
}

/// Result of a read run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WasRead {
    pub frames: u64,
    pub lost: u64,
    /// Bytes of metadata received, all of them correct.
    pub metadata: usize,
    /// Number of frames with a wrong byte.
    pub wrong: u64,
    /// Description of the first such frame.
    pub first_wrong: Option<String>,
    pub end: End,
    /// Time of the end, in ns of `CLOCK_MONOTONIC`.
    pub ended_at: u64,
    /// Longest interval between consecutive frames.
    pub longest_gap_ms: f64,
    /// Time from the end until the stream was idle.
    pub settled_ms: u64,
    /// Number of downloads still pending then.
    pub stuck: usize,
    pub reconnects: u64,
    pub steady: Steady,
    /// From publication until the reader receives the frame.
    pub wake_us: Percentiles,
    /// From publication until the CPU observes completion of the reader's GPU copy.
    pub done_us: Percentiles,
}

/// Percentiles of a measurement.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Percentiles {
    pub p50: f64,
    pub p99: f64,
}

/// Statistics of an exporter.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Stats {
    pub published: u64,
    pub slots: u32,
    pub free_slots: u32,
    pub slot_size: u64,
    pub retired_bytes: u64,
    pub memory: String,
    /// Copies by reason.
    pub copies: BTreeMap<String, u64>,
    pub is_mps_client: bool,
    pub readers: Vec<ReaderStats>,
}

/// Statistics of one reader.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReaderStats {
    pub pid: u32,
    pub held: u32,
    pub queued: u32,
    pub waiting: u32,
    pub sent: u64,
    pub lost: u64,
    pub fence: String,
}

/// Rejects a command that does not apply to the role of the peer.
pub fn misplaced(command: &Command) -> Result<Reply> {
    bail!("command not supported in this role: {command:?}")
}
