//! What a case asks of its peers, and what they report.

use std::collections::BTreeMap;

use frameshare::{FenceKind, MemoryKind, Policy};
use serde::{Deserialize, Serialize};

/// One thing to do. A peer does one at a time, in order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Command {
    /// Becomes an exporter.
    Bind(Bind),
    /// Becomes a reader.
    Connect(Connect),
    /// Becomes a user without rights.
    BecomeNobody,
    /// Becomes a reader that breaks rules; see [`crate::rogue`].
    Rogue(Connect),
    /// Records over the events that it was given, on a stream that sleeps.
    RecordOver {
        us: u64,
    },
    /// Acknowledges a retirement and keeps its imports.
    AcknowledgeAndKeep {
        ms: u64,
    },
    /// Becomes an exporter that means harm, at a place.
    Harmer {
        path: String,
    },
    /// Becomes a reader that means harm to the exporter at a place.
    Intruder {
        path: String,
    },
    /// Does it, in the way of this name; see [`crate::hostile`].
    Harm {
        attack: String,
    },
    /// Waits until the GPU is done with all that this process has given it.
    AwaitIdle {
        ms: u64,
    },
    /// Makes events that other processes could open, and holds them.
    TakeEvents {
        count: usize,
    },
    /// How many bytes of the GPU's memory are taken, by whomever.
    TakenMemory,
    /// Takes what is left of the GPU's memory, and holds it. How many bytes that was.
    TakeMemory,
    /// Gives that back.
    GiveMemoryBack,

    // Of an exporter.
    /// Waits until it has so many readers.
    AwaitReaders {
        count: usize,
        ms: u64,
    },
    Publish(Publish),
    /// Leaves something in memory of a kind that the GPU then gives to somebody else.
    Soil {
        kind: MemoryKind,
    },
    /// Holds as many slots as a pool upstream may. How many that are.
    HoldSlots {
        size: u64,
    },
    /// Has the stream that frames are written on stand still until [`Command::Resume`], or for so long.
    Stall {
        us: u64,
    },
    Format {
        caps: String,
    },
    EndOfStream,
    /// Waits until lossless readers have released everything.
    Drain {
        ms: u64,
    },
    ExporterStats,
    /// What it was told of its readers so far.
    Notices,
    /// Drops the exporter; the process lives on. How many ms that took.
    Unbind,
    /// Publishes one frame out of a fresh allocation of its own, by adopting it. Its address.
    Adopt {
        size: u64,
        slow: Slow,
    },
    /// Places the frames to come in host memory, or in the GPU's again.
    HostMemory {
        yes: bool,
    },
    /// Gives adopted memory back: how many owners have been told when this long has passed, at most.
    RetireAdopted {
        ms: u64,
    },
    /// Drops the exporter, if it is there, and waits, at most so long, until nothing of it is left: how many owners of
    /// adopted memory have been told then.
    UnbindAdopted {
        ms: u64,
    },
    /// How many adopted frames' owners may write them again.
    Returned,
    /// Opens a reader of the exporter in this very process.
    ConnectHere(Connect),

    // Of a reader.
    Read(Read),
    /// Lets frames go that [`Read::hold`] kept.
    LetGo {
        count: usize,
    },
    /// Reads the frames that are held once more.
    CheckHeld,
    /// Ends the reader; held frames stay.
    Disconnect,
    /// Has the stream that frames are read on stand still until [`Command::Resume`], or for so long.
    StallReading {
        us: u64,
    },

    // Of either.
    /// Has the streams that stand still go on.
    Resume,
    /// Makes the context fail, in the way that works here.
    LoseContext,
}

/// What came of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Reply {
    Done,
    /// The kernel refused a descriptor where it was sent, so that an attack did not take place.
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
}

/// An exporter; what is `None` stays as the engine has it, but for times, which are [`frameshare_gpu_harness::GIVEN_UP`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Bind {
    pub path: String,
    pub device: usize,
    pub memory: Option<MemoryKind>,
    pub fence: Option<FenceKind>,
    pub max_slots: Option<u32>,
    pub max_held_limit: Option<u32>,
    pub fence_timeout_ms: Option<u64>,
    pub reader_timeout_ms: Option<u64>,
    pub max_retired_bytes: Option<u64>,
    pub trusted_uids: Vec<u32>,
    pub seed: u64,
}

/// A reader; as with [`Bind`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Connect {
    pub path: String,
    pub device: usize,
    /// Without a GPU.
    pub host: bool,
    pub fence: Option<FenceKind>,
    pub policy: Policy,
    pub max_held: Option<u32>,
    pub busy_poll_us: u64,
    pub gpu_wait: Option<bool>,
    pub connection_timeout_ms: Option<u64>,
    pub reconnect: bool,
    pub fence_timeout_ms: Option<u64>,
    /// The user of the exporter, where it is not this one.
    pub exporter_uid: Option<u32>,
    pub seed: u64,
}

/// How a stream is slowed before it gets to the frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Slow {
    #[default]
    Never,
    /// Every eighth frame or so, by less than so many µs.
    Sometimes(u64),
    /// Every frame, by so many µs.
    Always(u64),
}

/// What a publication says of the stream that wrote the frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Says {
    /// Which it was.
    #[default]
    Truth,
    /// That it was the first writer's, whosever it was.
    First,
    /// That it was some stream of the context.
    Somewhere,
}

/// Frames to publish.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Publish {
    pub frames: u64,
    pub size: u64,
    /// From the start of one frame to the next.
    pub pace_us: u64,
    pub slow: Slow,
    /// Has a second writer, with a stream of its own, write every other frame, and slows it like this.
    pub second: Option<Slow>,
    pub says: Says,
    /// Writes nothing: each frame is what its slot holds.
    pub unwritten: bool,
    /// Copies each frame from memory of its own in place of filling it.
    pub copy: bool,
    /// Keeps the GPU busy before each frame by filling so many bytes, without the help of a CPU.
    pub load: u64,
    /// Waits at the end until lossless readers have released everything.
    pub drain: bool,
    /// Metadata that names the frame so many times.
    pub metadata: usize,
    /// Counts calls and CPU time from this frame on.
    pub count_from: u64,
}

/// What publishing took.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Published {
    pub frames: u64,
    pub ms: f64,
    /// The longest time from one frame to the next.
    pub longest_gap_ms: f64,
    pub steady: Steady,
}

/// The steady state: from [`Publish::count_from`] or [`Read::count_from`] on.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Steady {
    pub frames: u64,
    pub cpu_us: f64,
    pub us: f64,
    pub calls: BTreeMap<String, u64>,
}

/// In which context a reader reads frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Where {
    /// In its own.
    #[default]
    Own,
    /// In its own, all on one stream, in whose order it gives them back.
    OwnInOrder,
    /// In another, whose stream it names.
    Elsewhere,
    /// In another, in the order of whose stream it gives them back.
    ElsewhereInOrder,
    /// In another, without a word.
    ElsewhereUnnamed,
}

/// What is done with each frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Use {
    /// Every byte is downloaded and looked at.
    #[default]
    Check,
    /// A few bytes are copied on the device.
    Touch,
    /// As `Touch`, and the CPU watches for when that is done.
    Watch,
}

/// Frames to read.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Read {
    /// Ends after so many frames; `None` reads to the end of the stream.
    pub frames: Option<u64>,
    /// How long to wait for a frame before that ends it.
    pub patience_ms: u64,
    /// Sleeps on the reader's descriptor, as an event loop does.
    pub by_descriptor: bool,
    /// Sits on each frame for so long before its stream is to wait for it.
    pub sit_ms: u64,
    /// Leaves out the waiting for the ready fence.
    pub without_wait: bool,
    /// Frames are to be zero, as those are that nobody has written.
    pub zero: bool,
    pub on: Where,
    pub slow: Slow,
    /// What is done with each.
    pub what: Use,
    /// Keeps this many frames.
    pub hold: usize,
    /// Ends the reader before what is on its way is waited for.
    pub leave: bool,
    /// Waits for each download before the next frame, at most so long, as an app does that needs the bytes at once.
    pub at_once_ms: Option<u64>,
    /// Lets captures be as they are once this is over, and reports how many are stuck, in place of failing.
    pub settle_ms: Option<u64>,
    pub count_from: u64,
}

/// How reading ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    Enough,
    /// The stream did.
    Stream,
    Nothing,
    Error {
        kind: String,
        torn: u64,
        lost: u64,
        text: String,
    },
}

/// What was read.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WasRead {
    pub frames: u64,
    pub lost: u64,
    /// Bytes of metadata that came, each the right one.
    pub metadata: usize,
    /// Frames with a wrong byte.
    pub wrong: u64,
    /// The first of them.
    pub first_wrong: Option<String>,
    pub end: End,
    /// When the end was, in ns of `CLOCK_MONOTONIC`.
    pub ended_at: u64,
    /// The longest time from one frame to the next.
    pub longest_gap_ms: f64,
    /// From the end until the stream had nothing more to do.
    pub settled_ms: u64,
    /// Captures that were not done then.
    pub stuck: usize,
    pub reconnects: u64,
    pub steady: Steady,
    /// From the publication to the reader's having the frame.
    pub wake_us: Percentiles,
    /// From the publication to when the CPU saw the GPU's copy of some bytes done.
    pub done_us: Percentiles,
}

/// Of some measure.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Percentiles {
    pub p50: f64,
    pub p99: f64,
}

/// An exporter's numbers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Stats {
    pub published: u64,
    pub slots: u32,
    pub free_slots: u32,
    pub slot_size: u64,
    pub retired_bytes: u64,
    pub memory: String,
    pub readers: Vec<ReaderStats>,
}

/// One reader's.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReaderStats {
    pub pid: u32,
    pub held: u32,
    pub queued: u32,
    pub sent: u64,
    pub lost: u64,
    pub fence: String,
}
