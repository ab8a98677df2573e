// SPDX-License-Identifier: MIT OR Apache-2.0

//! The two sides of a rule, each a process of its own.

use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use anyhow::{Result, bail};
use frameshare::{EntryIndex, FenceKind, MemoryKind, Sequence};
use frameshare_gpu_harness::{Skip, Start};

use super::Subject;
use super::command::{Command, Content, Defect, Frame, Id, Memory, Reply};
use crate::command as peer;
use crate::peer::Peer;

/// Number of entries of a fence.
pub const ENTRIES: usize = 4;

/// An error of memory under test.
#[derive(Debug)]
pub struct Refusal {
    pub doing: String,
    pub kind: MemoryKind,
    pub text: String,
}

/// Handle of an allocation.
pub struct Handle {
    pub bytes: Vec<u8>,
    pub fd: Option<OwnedFd>,
}

/// A process of a rule.
pub struct Side(Peer);

impl Deref for Side {
    type Target = Peer;

    fn deref(&self) -> &Peer {
        &self.0
    }
}

impl DerefMut for Side {
    fn deref_mut(&mut self) -> &mut Peer {
        &mut self.0
    }
}

impl Side {
    /// Starts a process that has not initialized CUDA.
    pub fn new() -> Result<Side> {
        Ok(Side(Peer::start(Start::default())?))
    }

    fn ask(&self, command: Command, fd: Option<BorrowedFd<'_>>) -> Result<(Reply, Option<OwnedFd>)> {
        let fds: Vec<_> = fd.into_iter().collect();
        match self.0.ask_with(peer::Command::Conformance(command), &fds)? {
            (peer::Reply::Conformance(Reply::Lacking(lacking)), _) => Err(Skip(lacking).into()),
            (peer::Reply::Conformance(reply), fds) => Ok((reply, fds.into_iter().next())),
            (other, _) => bail!("unexpected reply {other:?}"),
        }
    }

    /// Executes a command that returns no data.
    pub fn execute(&self, command: Command) -> Result<()> {
        match self.ask(command, None)?.0 {
            Reply::Done => Ok(()),
            other => bail!("unexpected reply {other:?}"),
        }
    }

    /// Executes a command that returns yes or no.
    pub fn answer(&self, command: Command) -> Result<bool> {
        match self.ask(command, None)?.0 {
            Reply::Answer(answer) => Ok(answer),
            other => bail!("unexpected reply {other:?}"),
        }
    }

    /// Executes a command of a fence; returns the error of the fence, if it fails.
    pub fn fault(&self, command: Command) -> Result<Option<String>> {
        Ok(match self.ask(command, None)?.0 {
            Reply::Fault(text) => Some(text),
            _ => None,
        })
    }

    /// Executes a command that returns a number.
    pub fn number(&self, command: Command) -> Result<u64> {
        match self.ask(command, None)?.0 {
            Reply::Number(number) => Ok(number),
            other => bail!("unexpected reply {other:?}"),
        }
    }

    /// Creates an allocator of the subject's kind.
    pub fn allocator(&self, subject: Subject<MemoryKind>) -> Result<Allocator<'_>> {
        let Subject { kind, defect, .. } = subject;
        match self.ask(Command::Allocator { kind, defect }, None)? {
            (Reply::Object(id), fd) => Ok(Allocator { side: self, id, fd }),
            (other, _) => bail!("unexpected reply {other:?}"),
        }
    }

    /// Creates an importer for the memory of an allocator in another process.
    pub fn importer(&self, subject: Subject<MemoryKind>, allocator: &Allocator<'_>) -> Result<Importer<'_>> {
        let exporter = allocator.side.pid();
        let command = Command::Importer { kind: subject.kind, exporter, defect: subject.defect };
        match self.ask(command, allocator.fd.as_ref().map(OwnedFd::as_fd))?.0 {
            Reply::Object(id) => Ok(Importer { side: self, id }),
            other => bail!("unexpected reply {other:?}"),
        }
    }

    /// Writes memory and waits until it is written.
    pub fn write(&self, memory: Memory, size: u64, content: Content) -> Result<()> {
        self.execute(Command::Write { memory, size: size as usize, content })
    }

    /// Counts the bytes that differ from a content.
    pub fn differing(&self, memory: Memory, size: u64, content: Content) -> Result<u64> {
        self.number(Command::Differing { memory, size: size as usize, content })
    }
}

/// Allocates memory of one generation.
pub struct Allocator<'a> {
    side: &'a Side,
    id: Id,
    fd: Option<OwnedFd>,
}

impl Allocator<'_> {
    /// Allocates; returns the number of the allocation, and its size.
    pub fn try_allocate(&self, size: u64) -> Result<Result<(Id, u64), Refusal>> {
        match self.side.ask(Command::Allocate { allocator: self.id, size }, None)?.0 {
            Reply::Allocated { id, size } => Ok(Ok((id, size))),
            Reply::Refused { doing, kind, text } => Ok(Err(Refusal { doing, kind, text })),
            other => bail!("unexpected reply {other:?}"),
        }
    }

    /// Allocates; returns the number of the allocation, its size and its handle.
    pub fn allocate(&self, size: u64) -> Result<(Id, u64, Handle)> {
        match self.try_allocate(size)? {
            Ok((id, size)) => match self.side.ask(Command::Export(id), None)? {
                (Reply::Bytes(bytes), fd) => Ok((id, size, Handle { bytes, fd })),
                (other, _) => bail!("unexpected reply {other:?}"),
            },
            Err(refusal) => bail!("{}", refusal.text),
        }
    }
}

/// Imports memory of one generation.
pub struct Importer<'a> {
    side: &'a Side,
    id: Id,
}

impl Importer<'_> {
    /// Imports; returns the number of the import.
    pub fn try_import(&self, size: u64, handle: &Handle) -> Result<Result<Id, Refusal>> {
        let command = Command::Import { importer: self.id, size, handle: handle.bytes.clone() };
        match self.side.ask(command, handle.fd.as_ref().map(OwnedFd::as_fd))?.0 {
            Reply::Object(id) => Ok(Ok(id)),
            Reply::Refused { doing, kind, text } => Ok(Err(Refusal { doing, kind, text })),
            other => bail!("unexpected reply {other:?}"),
        }
    }

    /// Imports; returns the number of the import.
    pub fn import(&self, size: u64, handle: &Handle) -> Result<Id> {
        self.try_import(size, handle)?.map_err(|refusal| anyhow::anyhow!(refusal.text))
    }
}

/// Creates both sides of a fence with [`ENTRIES`] entries.
pub fn connect(kind: FenceKind, defect: Option<Defect>, exporter: &Side, reader: &Side) -> Result<()> {
    let (reply, page) = exporter.ask(Command::ExporterFence { kind, entries: ENTRIES, defect }, None)?;
    let Reply::Bytes(handles) = reply else { bail!("unexpected reply {reply:?}") };
    let exporter = exporter.pid();
    let command = Command::ReaderFence { kind, entries: ENTRIES, handles, exporter, defect };
    match reader.ask(command, page.as_ref().map(OwnedFd::as_fd))?.0 {
        Reply::Done => Ok(()),
        other => bail!("unexpected reply {other:?}"),
    }
}

/// Returns the frame of an entry.
pub fn frame(entry: EntryIndex, sequence: Sequence) -> Frame {
    Frame { entry, sequence }
}
