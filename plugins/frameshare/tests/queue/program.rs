// SPDX-License-Identifier: MIT OR Apache-2.0

//! The steps of one program, and its text: one line of JSON for each step.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Milliseconds as GStreamer's time.
pub const MS: u64 = 1_000_000;

/// A kind of media, with its caps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Media {
    Gray,
    Sound,
    H264,
    Images,
    Bytes,
}

/// Sizes of pictures in [`Media::Gray`], and rates of [`Media::Sound`], by their number in `Caps`.
pub const SIZES: [(u32, u32); 3] = [(16, 8), (32, 16), (17, 9)];
pub const RATES: [u32; 3] = [8000, 48000, 44100];

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Step {
    /// The start of a stream with this number.
    Stream(u8),
    Caps(u8),
    Segment(Segment),
    Buffer(Buffer),
    Gap {
        pts: u64,
        duration: Option<u64>,
    },
    Tags {
        is_global: bool,
        title: u8,
    },
    Custom {
        is_sticky: bool,
        number: u8,
    },
    /// A seek that flushes, and the segment behind it.
    Flush(Segment),
    /// The reader connects.
    Join {
        is_live: bool,
        is_lossless: bool,
        consumer: Consumer,
    },
    /// The reader's pipeline stops.
    Leave,
    /// The reader's pipeline pauses.
    Pause,
    /// It goes on, this many ms later.
    Play(u64),
    /// The exporter stops without an end of stream, and the next one starts.
    Restart,
    /// Another exporter starts, and the reader is sent to it.
    Switch,
    /// The reader takes no frames for so many ms.
    Sleep(u64),
    Eos,
}

/// The use that the reader's pipeline makes of the frames, as the source names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Consumer {
    /// The reader is alone in its pipeline.
    Recorder,
    /// A decoder and a sink that waits for the clock are in it.
    Viewer,
    /// Another source is in it.
    Other,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Segment {
    pub rate: f64,
    pub applied_rate: f64,
    pub start: u64,
    pub stop: Option<u64>,
    pub time: u64,
    pub base: u64,
    pub offset: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Buffer {
    /// Seed of the content.
    pub content: u64,
    pub size: usize,
    /// Number of memories.
    pub parts: u8,
    pub pts: Option<u64>,
    pub dts: Option<u64>,
    pub duration: Option<u64>,
    pub offset: Option<u64>,
    pub flags: u32,
    pub metas: Vec<Meta>,
}

impl Buffer {
    pub fn is_key(&self) -> bool {
        self.flags & gst::ffi::GST_BUFFER_FLAG_DELTA_UNIT == 0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Meta {
    Region(u32),
    Reference(u64),
    Custom(u32),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Program {
    pub media: Media,
    pub steps: Vec<Step>,
}

impl Program {
    pub fn parse(text: &str) -> serde_json::Result<Self> {
        let mut lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let media = serde_json::from_str(lines.next().unwrap_or_default())?;
        let steps = lines.map(serde_json::from_str).collect::<Result<_, _>>()?;
        Ok(Self { media, steps })
    }

    /// Returns whether a program without some of its steps is one still: streams begin with their
    /// events, and a reader that pauses goes on.
    pub fn is_whole(&self) -> bool {
        let (mut has_stream, mut has_caps, mut has_segment) = (false, false, false);
        let (mut reads, mut is_paused, mut has_ended) = (false, false, false);
        // A reader that has got no key unit opens no stream before it is sent to another.
        let mut has_units = false;
        for step in &self.steps {
            let is_right = !has_ended
                && match step {
                    Step::Stream(_) => !std::mem::replace(&mut has_stream, true),
                    Step::Caps(_) => {
                        has_caps = true;
                        has_stream
                    }
                    Step::Segment(_) => {
                        has_segment = true;
                        has_caps
                    }
                    Step::Buffer(buffer) => {
                        has_units |= buffer.is_key();
                        has_caps && has_segment
                    }
                    Step::Gap { .. } => has_caps && has_segment,
                    Step::Join { .. } => {
                        has_units = false;
                        !std::mem::replace(&mut reads, true) && has_caps
                    }
                    Step::Leave => std::mem::replace(&mut reads, false) && !is_paused,
                    Step::Pause => reads && !std::mem::replace(&mut is_paused, true),
                    Step::Play(_) => std::mem::replace(&mut is_paused, false),
                    Step::Restart | Step::Switch => {
                        (has_stream, has_caps, has_segment) = (false, false, false);
                        let had_units = std::mem::replace(&mut has_units, false);
                        !is_paused && (had_units || *step == Step::Restart)
                    }
                    Step::Eos => {
                        has_ended = true;
                        has_stream && !is_paused
                    }
                    Step::Tags { .. } | Step::Custom { .. } | Step::Flush(_) => has_stream,
                    Step::Sleep(_) => true,
                };
            if !is_right {
                return false;
            }
        }
        has_ended
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |value: serde_json::Result<String>| value.map_err(|_| fmt::Error);
        writeln!(f, "{}", line(serde_json::to_string(&self.media))?)?;
        self.steps.iter().try_for_each(|step| writeln!(f, "{}", line(serde_json::to_string(step))?))
    }
}
