//! What a case has its peers do, and what they report.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Command {
    /// Makes a pipeline with an element `sink`, the framesharesink, and pauses it: readers can connect.
    Play { pipeline: String },
    /// Has it play.
    Go,
    /// Pauses it again.
    Pause,
    /// Takes what is left of the GPU's memory.
    TakeMemory,
    /// Gives it back.
    GiveMemoryBack,
    /// Waits until the pipeline has come to its end.
    AwaitEnd { ms: u64 },
    /// Stops the pipeline: how it was doing.
    Stop,
    /// How the pipeline is doing.
    Stats,
    /// Sends the pipeline's element `source`, an appsrc, frames as a decoder would.
    Decode(Decode),
    /// Ends the stream of the pipeline's element `source`.
    EndOfStream,
    /// Lets the decoder go: how many of its instances still have their surfaces when this long has passed, at most.
    EndDecoder { ms: u64 },
    /// Asks the element before the sink to negotiate again, and with it for an allocation.
    Renegotiate,
    /// Whether there is an element of this name: 0 or 1.
    HasElement { name: String },
    /// Sends the pipeline's sink an allocation query.
    AskForAllocation,
    /// The checksums of what a pipeline delivers to its element `out`, an appsink.
    Checksums { pipeline: String },
    /// Reads streams with GStreamer, to their end.
    Receive(Receive),
    /// Reads a stream with GStreamer, on a stream of the GPU's that the pipeline knows nothing of.
    ReadApart(ReadApart),
    /// Reads a stream without GStreamer.
    Connect(Connect),
    /// Reads.
    Read(Read),
    /// Lets all frames go that are held.
    LetGo,
    /// Ends the reading.
    Disconnect,
    /// Becomes a user without rights.
    BecomeNobody,
}

/// Frames of a decoder.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Decode {
    pub frames: u64,
    /// How many output surfaces it has; for a new instance.
    pub surfaces: u32,
    pub width: u32,
    pub height: u32,
    /// Another instance takes over before the first of these frames.
    pub anew: bool,
    /// Each writing takes at least so long on the GPU, in µs.
    pub slow_us: u64,
    /// Its memories name another stream than the one that it writes on.
    pub stale: bool,
}

/// A pipeline that reads, with an appsink `out`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Receive {
    pub pipeline: String,
    /// How many of the first frames are kept.
    pub hold: usize,
    /// Between which frames calls of the driver are counted.
    pub counted: Option<(u64, u64)>,
}

/// The first frames of a pipeline with an appsink `out`, each of which is let go with the reading of it still queued.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReadApart {
    pub pipeline: String,
    pub frames: u64,
    /// Each reading is delayed so long on the GPU, in µs.
    pub slow_us: u64,
    pub side: Side,
}

/// Which CUDA context is read in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Side {
    /// The pipeline's.
    Same,
    /// Another, whose stream is named for each frame.
    OtherNamed,
    /// Another, and nobody is told.
    OtherHidden,
}

/// How to read.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Connect {
    pub path: String,
    /// Without a GPU.
    pub host: bool,
    pub lossless: bool,
    pub max_held: Option<u32>,
}

/// What to read.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Read {
    /// How many frames; to the end of the stream without.
    pub frames: Option<u64>,
    /// How many of the first frames are kept.
    pub hold: usize,
    /// Each reading is delayed so long on the GPU, in µs.
    pub slow_us: u64,
}

/// A report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Reply {
    Done,
    Number(u64),
    Numbers(Vec<u64>),
    Stats(Stats),
    Read(WasRead),
    Received(Received),
}

/// How a sink is doing.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Stats {
    pub published: u64,
    /// When the first frame came to the sink, in ns of `CLOCK_MONOTONIC`.
    pub first_frame_at: Option<u64>,
    pub paths: BTreeMap<String, u64>,
    pub reasons: BTreeMap<String, u64>,
    pub surfaces_held: u64,
    pub private: u64,
    pub memory: String,
    pub fences: Vec<String>,
    /// How often this process has made each call of the driver, itself and not GStreamer.
    pub calls: BTreeMap<String, u64>,
}

impl Stats {
    pub fn path(&self, name: &str) -> u64 {
        self.paths.get(name).copied().unwrap_or(0)
    }

    pub fn reason(&self, name: &str) -> u64 {
        self.reasons.get(name).copied().unwrap_or(0)
    }
}

/// What was read.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct WasRead {
    /// Sequence number and checksum of each frame.
    pub frames: Vec<(u64, u64)>,
    pub lost: u64,
    /// How many frames came in memory of the GPU.
    pub on_gpu: u64,
    /// Why there was no more; empty at the end of the stream, or when it was enough.
    pub error: String,
}

/// What came out of a pipeline that reads.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Received {
    /// Sequence number and checksum of each frame.
    pub frames: Vec<(u64, u64)>,
    /// Where in them those of each exporter begin.
    pub seams: Vec<Seam>,
    /// How many frames came in memory of the GPU.
    pub on_gpu: u64,
    /// How many frames each of its sources got.
    pub received: Vec<u64>,
    /// What its sources copied, and lost.
    pub copied: u64,
    pub lost: u64,
    /// How often this process has made each call of the driver, itself and not GStreamer.
    pub calls: BTreeMap<String, u64>,
    /// Empty at the end of the stream.
    pub error: String,
}

/// The first frame of an exporter.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Seam {
    /// How many frames of others came before it.
    pub index: usize,
    /// When it came, in ns of `CLOCK_MONOTONIC`.
    pub at: u64,
    /// Whether it says that something may be missing before it.
    pub discont: bool,
}
