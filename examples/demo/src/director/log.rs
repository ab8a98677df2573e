//! Everything that the roles have reported.

use super::{child::Part, proof::Promise};
use crate::report::{Exporter, Frame, Reader, Report};
use std::collections::BTreeMap;

#[derive(Default)]
pub struct Log {
    /// Checksums of what was decoded.
    decoded: BTreeMap<u64, u64>,
    pub exporter: Exporter,
    pub readers: [ReaderLog; 3],
    /// How many frames of the recording were played back.
    pub played_back: Option<u64>,
}

/// What a reader of the demo reported, and the exporter about it.
#[derive(Default)]
pub struct ReaderLog {
    pub pid: u32,
    pub frames: Vec<Frame>,
    /// Frames that the reader's element had to copy; known at the end.
    pub copies: Option<u64>,
    /// How it failed, if it did: "failed (signal: 9 (SIGKILL))".
    pub failure: Option<String>,
    /// What the exporter said about it last; nothing before it was connected.
    pub now: Option<Reader>,
}

impl ReaderLog {
    /// It is gone, and the exporter says no more about it.
    fn leave(&mut self) {
        if let Some(now) = &mut self.now {
            (now.held, now.lag) = (0, 0);
        }
    }
}

impl Log {
    /// Someone appears.
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

    /// A reader failed: so much was read, and no more will be.
    pub fn fail(&mut self, part: Part, how: String) {
        if let Some(reader) = self.reader(part) {
            reader.failure = Some(how);
            reader.leave();
        }
    }

    pub fn has_failed(&self, part: Part) -> bool {
        self.parts().any(|(reader, _, log)| reader == part && log.failure.is_some())
    }

    /// The checksums of what was published. What was decoded last may have come too late for that.
    pub fn published(&self) -> BTreeMap<u64, u64> {
        self.decoded.range(..=self.exporter.published).map(|(sequence, sum)| (*sequence, *sum)).collect()
    }

    /// The readers of the demo, with their names and what they were promised.
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
