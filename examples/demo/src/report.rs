// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reports of the jobs to the supervisor: one line of JSON on standard output per event.

use serde::{Deserialize, Serialize};
use std::io::Write;

/// Content of a line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Report {
    /// A frame was decoded; if published, it gets this number.
    Decoded { sequence: u64, sum: u64 },
    /// A reader received a frame.
    Read(Frame),
    /// A small copy of a frame, for the terminal.
    Preview(Preview),
    /// Statistics of the exporter.
    Exporter(Exporter),
    /// The last line of every reader.
    Finished {
        /// Frames that the reader's element had to copy.
        copies: u64,
    },
    /// The last line of the playback of a recording.
    PlayedBack { frames: u64 },
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
    /// Change of the image since the previous frame, 0 to 1.
    pub motion: Option<f64>,
}

/// Small copy of a frame: rows of pixels, from the top.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Preview {
    pub width: usize,
    /// Red, green and blue, 8 bits each.
    pub pixels: Vec<u32>,
}

/// Statistics of `framesharesink`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Exporter {
    /// Number of the current loop of the video, from 1.
    pub current_loop: u32,
    pub published: u64,
    pub copies: u64,
    /// Reasons and numbers of copies.
    pub reasons: Vec<(String, u64)>,
    pub slots: u32,
    pub free_slots: u32,
    pub max_slots: u32,
    pub readers: Vec<Reader>,
}

/// Statistics of a reader in `framesharesink`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reader {
    pub pid: u32,
    pub policy: String,
    pub held: u32,
    pub queued: u32,
    pub sent: u64,
    pub lost: u64,
    pub lag: u64,
}

/// Writes a line. Errors are ignored: if the supervisor has exited, the end of standard input stops
/// the job.
pub fn send(report: &Report) {
    let mut line = serde_json::to_vec(report).expect("reports are plain data");
    line.push(b'\n');
    let _ = std::io::stdout().lock().write_all(&line);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_is_one_line() {
        let frame = Frame { sequence: 1, lost_before: 0, sum: u64::MAX, delay: 5, motion: Some(0.25) };
        let report = Report::Read(frame);
        let line = serde_json::to_string(&report).unwrap();
        assert!(!line.contains('\n'));
        assert_eq!(serde_json::from_str::<Report>(&line).unwrap(), report);
    }
}
