// SPDX-License-Identifier: MIT OR Apache-2.0

//! Log of all reports.

use super::{child::Part, proof::Promise};
use crate::report::{Exporter, Frame, Picture, Reader, Report};
use std::collections::BTreeMap;

#[derive(Default)]
pub struct Log {
    /// Checksums of the decoded frames.
    decoded: BTreeMap<u64, u64>,
    pub exporter: Exporter,
    pub readers: [ReaderLog; 3],
    /// Small copy of a recent frame.
    pub picture: Option<Picture>,
    /// Number of frames in the playback of the recording.
    pub played_back: Option<u64>,
}

/// Reports of a reader of the demo, and of the exporter about it.
#[derive(Default)]
pub struct ReaderLog {
    pub pid: u32,
    pub frames: Vec<Frame>,
    /// Frames that the reader's element had to copy; known at the end.
    pub copies: Option<u64>,
    /// Failure, if any: "failed (signal: 9 (SIGKILL))".
    pub failure: Option<String>,
    /// Last statistics of the reader from the exporter; none before its connection.
    pub now: Option<Reader>,
}

impl ReaderLog {
    /// Clears the held frames and the lag after the disconnection; the exporter sends no further
    /// statistics.
    fn leave(&mut self) {
        if let Some(now) = &mut self.now {
            (now.held, now.lag) = (0, 0);
        }
    }
}

impl Log {
    /// Registers a process.
    pub fn enter(&mut self, part: Part, pid: u32) {
        if let Some(reader) = self.reader(part) {
            reader.pid = pid;
        }
    }

    pub fn note(&mut self, part: Part, report: Report) {
        match report {
            Report::Decoded { sequence, sum } => {
                self.decoded.insert(sequence, sum);
            }
            Report::Read(frame) => self.reader(part).into_iter().for_each(|reader| reader.frames.push(frame)),
            Report::Picture(picture) => self.picture = Some(picture),
            Report::Finished { copies } => {
                if let Some(reader) = self.reader(part) {
                    reader.copies = Some(copies);
                    reader.leave();
                }
            }
            Report::PlayedBack { frames } => self.played_back = Some(frames),
            Report::Exporter(exporter) => {
                for reader in &mut self.readers {
                    if let Some(now) = exporter.readers.iter().find(|now| now.pid == reader.pid) {
                        reader.now = Some(now.clone());
                    }
                }
                self.exporter = exporter;
            }
        }
    }

    /// Logs the failure of a reader.
    pub fn fail(&mut self, part: Part, how: String) {
        if let Some(reader) = self.reader(part) {
            reader.failure = Some(how);
            reader.leave();
        }
    }

    pub fn has_failed(&self, part: Part) -> bool {
        self.parts().any(|(reader, _, log)| reader == part && log.failure.is_some())
    }

    /// Returns the checksums of the published frames. The last decoded frame may not have been
    /// published.
    pub fn published(&self) -> BTreeMap<u64, u64> {
        self.decoded.range(..=self.exporter.published).map(|(sequence, sum)| (*sequence, *sum)).collect()
    }

    /// Returns the readers of the demo with their delivery guarantees.
    pub fn parts(&self) -> impl Iterator<Item = (Part, Promise, &ReaderLog)> {
        let promise = |part| match part {
            Part::Motion => Promise::NewestFrames,
            _ => Promise::Everything,
        };
        Part::READERS.into_iter().zip(&self.readers).map(move |(part, reader)| (part, promise(part), reader))
    }

    fn reader(&mut self, part: Part) -> Option<&mut ReaderLog> {
        let index = Part::READERS.iter().position(|reader| *reader == part)?;
        self.readers.get_mut(index)
    }
}
