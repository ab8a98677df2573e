// SPDX-License-Identifier: MIT OR Apache-2.0

//! Commands of a case to its peers, and their reports.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A command.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Command {
    /// Creates a pipeline with a framesharesink named `sink`, and pauses it: readers can connect.
    Play { pipeline: String },
    /// Sets the pipeline to playing.
    Go,
    /// Pauses the pipeline again.
    Pause,
    /// Waits until the pipeline has reached the end of stream.
    AwaitEnd { ms: u64 },
    /// Stops the pipeline; reports its statistics.
    Stop,
    /// Reports the pipeline's statistics.
    Stats,
    /// Sends frames to the pipeline's appsrc `source`, as a decoder does.
    Decode(Decode),
    /// Ends the stream of the pipeline's element `source`.
    EndOfStream,
    /// Drops the decoder; reports how many of its instances still have their surfaces after this
    /// time.
    EndDecoder { ms: u64 },
    /// Makes the element before the sink renegotiate, including the allocation query.
    Renegotiate,
    /// Reports whether an element of this name exists: 0 or 1.
    HasElement { name: String },
    /// Sends an allocation query to the sink.
    AskForAllocation,
    /// Reports the checksums of the frames that arrive at the pipeline's appsink `out`.
    Checksums { pipeline: String },
    /// Reads streams with GStreamer to their end.
    Receive(Receive),
    /// Reads a stream with GStreamer, on a CUDA stream unknown to the pipeline.
    ReadApart(ReadApart),
    /// Connects a reader without GStreamer.
    Connect(Connect),
    /// Reads frames without GStreamer.
    Read(Read),
    /// Releases all held frames.
    ReleaseHeld,
    /// Drops the reader.
    Disconnect,
}

/// Frames of a decoder.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Decode {
    pub frames: u64,
    /// Number of output surfaces of a new instance.
    pub surfaces: u32,
    pub width: u32,
    pub height: u32,
    /// Replaces the instance before the first of these frames.
    pub anew: bool,
    /// Minimum GPU time of each write, in µs.
    pub slow_us: u64,
    /// The memories name another stream than the one that writes them.
    pub stale: bool,
}

/// A reading pipeline with an appsink `out`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Receive {
    pub pipeline: String,
    /// Number of frames to hold, from the first.
    pub hold: usize,
    /// Range of frames in which driver calls are counted.
    pub counted: Option<(u64, u64)>,
}

/// Reads the first frames of a pipeline with an appsink `out`; each is released while its read is
/// still queued.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReadApart {
    pub pipeline: String,
    pub frames: u64,
    /// Delay of each read on the GPU, in µs.
    pub slow_us: u64,
    pub side: Side,
}

/// CUDA context that reads frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Side {
    /// The pipeline's context.
    Same,
    /// Another context, whose stream is named for each frame.
    OtherNamed,
    /// Another context, whose use is not declared.
    OtherHidden,
}

/// Configuration of a reader.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Connect {
    pub path: String,
    /// Reads without a GPU.
    pub host: bool,
    pub lossless: bool,
    pub max_held: Option<u32>,
}

/// Parameters of a read run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Read {
    /// Number of frames; `None` reads to the end of the stream.
    pub frames: Option<u64>,
    /// Number of frames to hold, from the first.
    pub hold: usize,
    /// Delay of each read on the GPU, in µs.
    pub slow_us: u64,
}

/// Result of a command.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Reply {
    Done,
    Number(u64),
    Numbers(Vec<u64>),
    Stats(Stats),
    Read(WasRead),
    Received(Received),
}

/// Statistics of a sink.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Stats {
    pub published: u64,
    /// Arrival of the first frame at the sink, in ns of `CLOCK_MONOTONIC`.
    pub first_frame_at: Option<u64>,
    pub paths: BTreeMap<String, u64>,
    pub reasons: BTreeMap<String, u64>,
    pub surfaces_held: u64,
    pub private: u64,
    pub memory: String,
    pub fences: Vec<String>,
    /// Number of driver calls of this process by name, without GStreamer's own calls.
    pub calls: BTreeMap<String, u64>,
}

impl Stats {
    pub fn path(&self, name: &str) -> u64 {
        self.paths.get(name).copied().unwrap_or(0)
    }

    pub fn reason(&self, name: &str) -> u64 {
        self.reasons.get(name).copied().unwrap_or(0)
    }

    /// Driver calls since `before`, by name with their number.
    pub fn calls_since<'a>(&'a self, before: &Stats) -> Vec<(&'a str, u64)> {
        let more = |(name, now): (&'a String, &u64)| {
            let more = now - before.calls.get(name).unwrap_or(&0);
            (more > 0).then_some((name.as_str(), more))
        };
        self.calls.iter().filter_map(more).collect()
    }
}

/// Result of a read run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct WasRead {
    /// Sequence number and checksum of each frame.
    pub frames: Vec<(u64, u64)>,
    pub lost: u64,
    /// Number of frames in GPU memory.
    pub on_gpu: u64,
    /// Error that ended reading; empty at the end of the stream or of the requested frames.
    pub error: String,
}

/// Result of a reading pipeline.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Received {
    /// Sequence number and checksum of each frame.
    pub frames: Vec<(u64, u64)>,
    /// First frame of each exporter.
    pub jumps: Vec<Jump>,
    /// Number of frames in GPU memory.
    pub on_gpu: u64,
    /// Number of frames received by each source.
    pub received: Vec<u64>,
    /// Frames copied, and lost, by the sources.
    pub copied: u64,
    pub lost: u64,
    /// Number of driver calls of this process by name, without GStreamer's own calls.
    pub calls: BTreeMap<String, u64>,
    /// Error of the pipeline; empty at the end of the stream.
    pub error: String,
}

/// First frame of an exporter.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Jump {
    /// Number of preceding frames of other exporters.
    pub index: usize,
    /// Arrival, in ns of `CLOCK_MONOTONIC`.
    pub at: u64,
    /// Whether the buffer has the DISCONT flag.
    pub discont: bool,
}
