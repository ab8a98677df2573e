// SPDX-License-Identifier: MIT OR Apache-2.0

//! Log of all reports.

use super::{process::Process, proof::Promise};
use crate::report::{Exporter, Frame, Preview, Reader, Report};
use std::collections::BTreeMap;

#[derive(Default)]
pub struct Log {
    /// Checksums of the decoded frames.
    decoded: BTreeMap<u64, u64>,
    pub exporter: Exporter,
    pub readers: [ReaderLog; 3],
    /// Small copy of a recent frame.
    pub preview: Option<Preview>,
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
    fn clear(&mut self) {
        if let Some(now) = &mut self.now {
            (now.held, now.lag) = (0, 0);
        }
    }
}

impl Log {
    /// Registers a process.
    pub fn register(&mut self, process: Process, pid: u32) {
        if let Some(reader) = self.reader(process) {
            reader.pid = pid;
        }
    }

    pub fn note(&mut self, process: Process, report: Report) {
        match report {
            Report::Decoded { sequence, sum } => {
                self.decoded.insert(sequence, sum);
            }
            Report::Read(frame) => {
                self.reader(process).into_iter().for_each(|reader| reader.frames.push(frame))
            }
            Report::Preview(preview) => self.preview = Some(preview),
            Report::Finished { copies } => {
                if let Some(reader) = self.reader(process) {
                    reader.copies = Some(copies);
                    reader.clear();
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
    pub fn fail(&mut self, process: Process, how: String) {
        if let Some(reader) = self.reader(process) {
            reader.failure = Some(how);
            reader.clear();
        }
    }

    pub fn has_failed(&self, process: Process) -> bool {
        self.processes().any(|(reader, _, log)| reader == process && log.failure.is_some())
    }

    /// Returns the checksums of the published frames. The last decoded frame may not have been
    /// published.
    pub fn published(&self) -> BTreeMap<u64, u64> {
        self.decoded.range(..=self.exporter.published).map(|(sequence, sum)| (*sequence, *sum)).collect()
    }

    /// Returns the readers of the demo with their delivery guarantees.
    pub fn processes(&self) -> impl Iterator<Item = (Process, Promise, &ReaderLog)> {
        let promise = |process| match process {
            Process::Motion => Promise::NewestFrames,
            _ => Promise::Everything,
        };
        Process::READERS
            .into_iter()
            .zip(&self.readers)
            .map(move |(process, reader)| (process, promise(process), reader))
    }

    fn reader(&mut self, process: Process) -> Option<&mut ReaderLog> {
        let index = Process::READERS.iter().position(|reader| *reader == process)?;
        self.readers.get_mut(index)
    }
}
