// SPDX-License-Identifier: MIT OR Apache-2.0

//! Control messages from the exporter: received on arrival, and queued until the frames before them
//! are delivered.

use super::{Connection, Generation, Over};
use crate::{
    event::Event,
    memory::{MemoryError, frees_imports_first, importer, same_process},
    reader::{
        ReadError,
        imports::{Imported, Imports},
    },
    sys::{
        Drained, Mapping, Received, SENT_OVER_WAKE, SealedAgainst, Timeout, UntrustedFd, Words, check_memfd,
        is_ready, load_bytes, wait,
    },
};
use frameshare_cuda::device::Uuid;
use frameshare_protocol::{
    MemoryKind,
    limits::MAX_TEXT,
    message::{Format, Payload, ToExporter, ToReader},
};
use rustix::event::{PollFd, PollFlags};
use std::{collections::BTreeMap, io, os::fd::AsFd, sync::Arc, time::Duration};

/// Maximum number of messages that wait for their frames. An exporter that keeps the protocol sends
/// none far ahead of its frames.
const MAX_PENDING: usize = 4096;
/// Maximum number of generations, and of slots of all of them, that are imported at once: a process
/// has at most some 65,000 mappings.
const MAX_GENERATIONS: usize = 256;
const MAX_IMPORTS: usize = 8192;

/// A message that waits for its place among the frames.
#[derive(Debug)]
pub(super) enum Pending {
    Format(MemoryKind, Arc<Format>),
    Event(Event),
    EndOfStream,
    Retire(u32),
    Metadata(Vec<u8>),
}

impl Pending {
    /// Size in bytes of its payload.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Format(_, format) => format.caps.len(),
            Self::Event(event) => event.payload.len(),
            Self::Metadata(bytes) => bytes.len(),
            Self::EndOfStream | Self::Retire(_) => 0,
        }
    }
}

impl Connection {
    /// Receives messages up to the limits.
    pub fn receive(&mut self) -> Result<(), ReadError> {
        // Due messages have been applied before.
        if self.is_overrun() {
            return Err(ReadError::Violation("its messages are for frames that do not come".into()));
        }
        if self.wake_state == Drained::Descriptor {
            return Err(ReadError::Violation(SENT_OVER_WAKE.into()));
        }
        // Checked before the last messages are received.
        let is_gone = self.wake_state == Drained::Closed || self.exporter_is_gone();
        // Bounds one call, against an exporter that never stops sending.
        for _ in 0..MAX_PENDING {
            if self.over.is_some() || self.is_overrun() {
                break;
            }
            let failed = |error: io::Error| match error.kind() {
                io::ErrorKind::InvalidData => ReadError::Violation(error.to_string()),
                _ => ReadError::Io(error),
            };
            match self.session.socket.receive().map_err(failed)? {
                Received::Nothing if is_gone => self.over = Some(Over::HungUp),
                Received::Nothing => break,
                Received::HungUp => self.over = Some(Over::HungUp),
                Received::Packet(packet, fds) => match self.hear(&packet, fds) {
                    // Handles of some kinds are invalid without the exporter.
                    Err(ReadError::Memory(error))
                        if frees_imports_first(error.kind) && self.exporter_is_going() =>
                    {
                        self.over = Some(Over::HungUp);
                    }
                    heard => heard?,
                },
            }
        }
        Ok(())
    }

    /// Returns whether more messages wait than allowed.
    pub(super) fn is_overrun(&self) -> bool {
        self.pending.len() >= MAX_PENDING || self.pending_bytes as u64 >= self.max_metadata_bytes
    }

    /// Returns whether the exporter's process has ended, even if a forked child keeps its socket
    /// open.
    pub(super) fn exporter_is_gone(&self) -> bool {
        let Some(gone) = &self.peer.gone else { return false };
        let mut fds = [PollFd::new(gone, PollFlags::IN)];
        wait(&mut fds, Timeout::after(Some(Duration::ZERO))).is_ok() && is_ready(&fds[0])
    }

    /// Returns whether the exporter is dying: its driver releases its memory shortly before the
    /// kernel reports the process's end.
    fn exporter_is_going(&self) -> bool {
        const GRACE: Duration = Duration::from_millis(500);
        let mut fds = match &self.peer.gone {
            Some(gone) => [PollFd::new(gone, PollFlags::IN)],
            // Only the hang-up is known.
            None => [PollFd::new(&self.session.socket, PollFlags::empty())],
        };
        wait(&mut fds, Timeout::after(Some(GRACE))).is_ok() && is_ready(&fds[0])
    }

    pub(super) fn hear(&mut self, packet: &[u8], fds: Vec<UntrustedFd>) -> Result<(), ReadError> {
        let violation = |text: String| ReadError::Violation(text);
        let message = ToReader::decode(packet).map_err(|error| violation(error.to_string()))?;
        if !message.fds().contains(&fds.len()) {
            return Err(violation("a message came without its descriptor, or with one too many".into()));
        }
        self.messages += u64::from(message.is_ordered());
        let fd = fds.into_iter().next();
        match message {
            ToReader::Gpu { gpu, fence, events } => self.use_gpu(Uuid(gpu), fence, &events, fd)?,
            ToReader::Generation { generation, memory, slot_size, adopted } => {
                if self.generations.len() >= MAX_GENERATIONS {
                    return Err(violation(format!("it has more than {MAX_GENERATIONS} generations")));
                }
                let session = self.session.clone();
                let gpu = self.gpu.as_ref();
                let own = self.local && frees_imports_first(memory);
                let replaceable = memory != MemoryKind::Host && (adopted || self.host_fallback);
                let fd = fd.as_ref().map(AsFd::as_fd);
                let (importer, failed) = match (!own).then(|| importer(memory, gpu, fd)).transpose() {
                    Ok(importer) => (importer, None),
                    Err(error) if replaceable && gpu.is_some() => (None, Some(error)),
                    Err(error) => return Err(error.into()),
                };
                let imports = Arc::new(Imports { generation, slot_size, session });
                let slots = BTreeMap::new();
                let new =
                    Generation { kind: memory, importer, slots, imports, replaceable, is_unreadable: false };
                if self.generations.insert(generation, new).is_some() {
                    return Err(violation(format!("generation {generation} came twice")));
                }
                if let Some(error) = failed {
                    self.give_up_generation(generation, &error);
                }
            }
            ToReader::Slot { generation, slot, handle } => self.import(generation, slot, &handle, fd)?,
            // Many generations are retired while a reader is paused: a retirement waits only for
            // untaken frames. Held frames keep their imports.
            ToReader::Retire { before, generation } => {
                if self.session.consumer.has_published(before) {
                    self.push(before, Pending::Retire(generation));
                } else {
                    self.generations.remove(&generation);
                }
            }
            ToReader::Format { before, memory, format } => {
                self.push(before, Pending::Format(memory, Arc::new(format)));
            }
            ToReader::Event { before, kind, payload } => {
                let payload = self.open(payload, fd)?;
                self.push(before, Pending::Event(Event { kind, sticky: false, payload }));
            }
            ToReader::Metadata { sequence, payload } => {
                let payload = self.open(payload, fd)?;
                self.push(sequence, Pending::Metadata(payload));
            }
            ToReader::EndOfStream { before } => self.push(before, Pending::EndOfStream),
            ToReader::Goodbye { reason, text } => self.over = Some(Over::Goodbye(reason, text)),
            ToReader::Welcome(_) | ToReader::Refused { .. } => {
                return Err(violation("unexpected answer to a Hello".into()));
            }
        }
        Ok(())
    }

    /// Reads a payload within this reader's limit.
    fn open(&self, payload: Payload, fd: Option<UntrustedFd>) -> Result<Vec<u8>, ReadError> {
        let size = match &payload {
            Payload::Inline(bytes) => bytes.len() as u64,
            Payload::Sealed(size) => *size,
        };
        let limit = self.max_metadata_bytes;
        if size > limit {
            return Err(ReadError::TooMuchMetadata { size, limit });
        }
        open(payload, fd).map_err(|error| ReadError::Violation(error.to_string()))
    }

    pub(super) fn push(&mut self, before: u64, pending: Pending) {
        self.pending_bytes += pending.bytes();
        // Late metadata of a frame is queued before messages that follow the frame.
        let place = self.pending.partition_point(|(other, _)| *other <= before);
        self.pending.insert(place, (before, pending));
    }

    /// Reports a generation that cannot be imported. Its published frames are lost.
    fn give_up_generation(&mut self, generation: u32, error: &MemoryError) {
        log::warn!("frames are read elsewhere from now on: {error}");
        let Some(found) = self.generations.get_mut(&generation) else { return };
        found.is_unreadable = true;
        let mut text = error.to_string();
        text.truncate(text.floor_char_boundary(MAX_TEXT));
        if let Ok(packet) = (ToExporter::CannotImport { generation, text }).encode() {
            // It fails if the exporter is dead, which needs no report.
            let _ = self.session.socket.send(&packet, &[]);
        }
    }

    pub(super) fn import(
        &mut self,
        generation: u32,
        slot: u32,
        handle: &[u8],
        fd: Option<UntrustedFd>,
    ) -> Result<(), ReadError> {
        let imports: usize = self.generations.values().map(|one| one.slots.len()).sum();
        if imports >= MAX_IMPORTS {
            return Err(ReadError::Violation(format!("it has more than {MAX_IMPORTS} slots")));
        }
        let found = self.generations.get_mut(&generation);
        let found =
            found.ok_or_else(|| ReadError::Violation(format!("slot {slot} is of an unknown generation")))?;
        if found.is_unreadable {
            return Ok(());
        }
        let import = match &found.importer {
            Some(importer) => importer.import(found.imports.slot_size, handle, fd.as_ref().map(AsFd::as_fd)),
            None => same_process::find((self.session.id, generation, slot), found.kind, self.gpu.as_ref()),
        };
        let import = match import {
            Ok(import) => import,
            Err(error) if found.replaceable && self.gpu.is_some() => {
                self.give_up_generation(generation, &error);
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        match found.slots.insert(slot, Arc::new(Imported::new(import, found.imports.clone()))) {
            Some(_) => Err(ReadError::Violation(format!("slot {slot} came twice"))),
            None => Ok(()),
        }
    }
}

/// Reads a payload, inline or from a file.
fn open(payload: Payload, fd: Option<UntrustedFd>) -> io::Result<Vec<u8>> {
    match (payload, fd) {
        (Payload::Inline(bytes), _) => Ok(bytes),
        (Payload::Sealed(size), Some(fd)) => {
            check_memfd(&fd, size, SealedAgainst::ResizingAndWriting)?;
            let len = usize::try_from(size).map_err(|_| io::ErrorKind::OutOfMemory)?;
            // Whole words are mapped; past the file's end the last page reads as zero.
            let words = Words::from(Mapping::read_only(&fd, len.next_multiple_of(8))?);
            Ok(load_bytes(&words, 0, len))
        }
        (Payload::Sealed(_), None) => Err(io::ErrorKind::InvalidData.into()),
    }
}
