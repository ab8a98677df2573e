// SPDX-License-Identifier: MIT OR Apache-2.0

//! Log of all reports.

use crate::report::{Frame, Report};
use frameshare::{
    Policy,
    observer::{ReaderState, Snapshot},
};
use std::collections::BTreeMap;

/// Child processes. The first three are the readers, in the order of [`Log::readers`].
pub const PROCESSES: [&str; 4] = ["checksum", "viewer", "recorder", "exporter"];
pub const RECORDER: usize = 2;
pub const EXPORTER: usize = 3;

#[derive(Default)]
pub struct Log {
    /// Checksums of the decoded frames.
    decoded: BTreeMap<u64, u64>,
    /// Number of the current loop of the video, from 1.
    pub current_loop: u32,
    /// Frames that were published, of them copied; known at the end.
    pub exported: (u64, u64),
    /// Last state of the stream and all its readers.
    pub snapshot: Option<Snapshot>,
    pub readers: [Reader; 3],
    /// Small copy of a recent frame.
    pub preview: Vec<u32>,
}

/// Reports of a reader of the demo.
#[derive(Default)]
pub struct Reader {
    pub pid: u32,
    pub frames: Vec<Frame>,
    /// Frames that the reader's element had to copy; known at the end.
    pub copies: Option<u64>,
    /// Failure, if any: "failed (signal: 9 (SIGKILL))".
    pub failure: Option<String>,
}

impl Log {
    /// Returns the readers with their names and policies.
    pub fn readers(&self) -> impl Iterator<Item = (&'static str, Policy, &Reader)> {
        let policies = [Policy::Lossless, Policy::Latest, Policy::Lossless];
        let named = PROCESSES.into_iter().zip(policies).zip(&self.readers);
        named.map(|((name, policy), reader)| (name, policy, reader))
    }

    pub fn note(&mut self, process: usize, report: Report) {
        match (report, self.readers.get_mut(process)) {
            (Report::Loop(number), _) => self.current_loop = number,
            (Report::Decoded { sequence, sum }, _) => drop(self.decoded.insert(sequence, sum)),
            (Report::Exported { published, copies }, _) => self.exported = (published, copies),
            (Report::Read(frame), Some(reader)) => reader.frames.push(frame),
            (Report::Finished { copies }, Some(reader)) => reader.copies = Some(copies),
            (Report::Preview(preview), _) => self.preview = preview,
            _ => {}
        }
    }

    /// Returns the checksums of the published frames. The last decoded frame may not have been
    /// published.
    pub fn published(&self) -> BTreeMap<u64, u64> {
        self.decoded.range(..=self.exported.0).map(|(sequence, sum)| (*sequence, *sum)).collect()
    }

    /// Returns the last states of all readers, by the exporter's account.
    pub fn states(&self) -> &[ReaderState] {
        self.snapshot.as_ref().map_or(&[], |snapshot| &snapshot.readers)
    }
}
