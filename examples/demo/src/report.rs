//! What the roles tell the director: a line of JSON on standard output for each thing that happens.

use serde::{Deserialize, Serialize};
use std::io::Write;

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Report {
    /// The decoder made a frame; published, it will have this number.
    Decoded { sequence: u64, sum: u64 },
    /// A reader has a frame.
    Read(Frame),
    /// How the exporter is doing.
    Exporter(Exporter),
    /// The last line of a reader of whichever kind.
    Finished {
        /// Frames of which the reader's element had to make a copy.
        copies: u64,
    },
    /// The last line of whoever plays a recording back.
    PlayedBack { frames: u64 },
}

/// A frame as a reader got it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Frame {
    pub sequence: u64,
    /// Frames that the reader lost since the one before.
    pub lost_before: u64,
    pub sum: u64,
    /// From publication until the reader's application had it, in ns.
    pub delay: u64,
    /// How much the picture changed since the frame before, 0 to 1.
    pub motion: Option<f64>,
}

/// The figures of `framesharesink`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Exporter {
    pub play: u32,
    pub published: u64,
    pub copies: u64,
    /// Why there were copies, and how many.
    pub reasons: Vec<(String, u64)>,
    pub slots: u32,
    pub free_slots: u32,
    pub max_slots: u32,
    pub readers: Vec<Reader>,
}

/// What `framesharesink` knows of a reader.
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

/// Writes a line. When nobody listens any more, the director is gone, and the role is about to be told to end.
pub fn send(report: &Report) {
    let mut line = serde_json::to_vec(report).expect("reports are plain data");
    line.push(b'\n');
    let _ = std::io::stdout().lock().write_all(&line);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_one_line() {
        let frame = Frame { sequence: 1, lost_before: 0, sum: u64::MAX, delay: 5, motion: Some(0.25) };
        let report = Report::Read(frame);
        let line = serde_json::to_string(&report).unwrap();
        assert!(!line.contains('\n'));
        assert_eq!(serde_json::from_str::<Report>(&line).unwrap(), report);
    }
}
