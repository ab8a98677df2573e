// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reports of the child processes: one line of JSON on standard output per event.

use serde::{Deserialize, Serialize};
use std::io::Write;

/// Content of a line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Report {
    /// Number of the present loop of the video, from 1.
    Loop(u32),
    /// A frame was decoded; if published, it gets this number.
    Decoded { sequence: u64, sum: u64 },
    /// The last line of the exporter.
    Exported { published: u64, copies: u64 },
    /// A reader received a frame.
    Read(Frame),
    /// A small copy of a frame, for the terminal: red, green and blue of each pixel, 8 bits each.
    Preview(Vec<u32>),
    /// The last line of every reader: frames that its element had to copy.
    Finished { copies: u64 },
    /// A text for people, such as an error.
    Message(String),
}

/// Frame as received by a reader.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Frame {
    pub sequence: u64,
    /// Frames that the reader lost since the one before.
    pub lost_before: u64,
    pub sum: u64,
    /// Time from publication to delivery to the reader's application, in ns.
    pub delay: u64,
}

/// Size of the small copies. Two rows are a line of the terminal.
pub const PREVIEW: (usize, usize) = (48, 28);

/// Writes a line. Errors are ignored: without its parent, a child process ends with the stream.
pub fn send(report: &Report) {
    let mut line = serde_json::to_vec(report).expect("reports are plain data");
    line.push(b'\n');
    let _ = std::io::stdout().lock().write_all(&line);
}
