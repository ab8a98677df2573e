// SPDX-License-Identifier: MIT OR Apache-2.0

//! Commands of a rule to its exporter and reader.

use frameshare::{EntryIndex, FenceKind, MemoryKind, Sequence};
use serde::{Deserialize, Serialize};

/// Number that a process assigned to one of its objects.
pub type Id = usize;

/// A defect of the implementation under test: each breaks one rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Defect {
    /// Fresh memory is not zero.
    Dirty,
    /// An allocation is smaller than requested.
    Short,
    /// The handle of an allocation names another one.
    Misdirected,
    /// The second allocation is the first one again.
    Duplicated,
    /// An allocation can be imported once.
    SingleUse,
    /// An allocation is overwritten when it is dropped.
    Scrubbed,
    /// An import loses its content when the exporter dies.
    Orphaned,
    /// The reader gets private, writable memory.
    Private,
    /// An invalid handle is imported.
    Credulous,
    /// An allocation of any size succeeds.
    Overcommitted,
    /// Every frame counts as ready.
    ReadyEarly,
    /// No frame counts as ready.
    NeverReady,
    /// A frame of an entry counts as ready once an earlier one was.
    ReadyOnce,
    /// No frame of a dead exporter counts as ready.
    NotReadyAfterDeath,
    /// Streams do not wait for the ready fence.
    NoWait,
    /// Every frame counts as released.
    ReleasedEarly,
    /// No frame counts as released.
    NeverReleased,
    /// The exporter mistakes the release of one entry for that of another.
    EntriesSwapped,
    /// Errors of the fence are reported as success.
    ErrorsHidden,
}

/// Memory of a process.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub enum Memory {
    /// An allocation of the exporter.
    Allocation(Id),
    /// An import of the reader.
    Import(Id),
}

/// The content of memory.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub enum Content {
    /// Equal bytes.
    Fill(u8),
    /// Bytes that depend on the seed and their position.
    Pattern(u64),
}

/// A frame: the entry of the reader's queue, and the sequence number.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Frame {
    pub entry: EntryIndex,
    pub sequence: Sequence,
}

/// A command.
#[derive(Debug, Serialize, Deserialize)]
pub enum Command {
    /// Creates an allocator. Returns its descriptor, if its kind has one.
    Allocator { kind: MemoryKind, defect: Option<Defect> },
    /// Allocates.
    Allocate { allocator: Id, size: u64 },
    /// Returns the handle of an allocation.
    Export(Id),
    /// Frees an allocation.
    Free(Id),
    /// Creates an importer, with the allocator's descriptor, for memory of the process `exporter`.
    Importer { kind: MemoryKind, exporter: u32, defect: Option<Defect> },
    /// Imports by a handle.
    Import { importer: Id, size: u64, handle: Vec<u8> },
    /// Ends an import.
    DropImport(Id),
    /// Writes memory and waits until it is written.
    Write { memory: Memory, size: usize, content: Content },
    /// Counts the bytes that differ from a content.
    Differing { memory: Memory, size: usize, content: Content },
    /// Tries to fill an import. Returns whether that was possible.
    TryFill { import: Id, size: usize, value: u8 },

    /// Creates the exporter's side of a fence. Returns the handles and the page for the reader.
    ExporterFence { kind: FenceKind, entries: usize, defect: Option<Defect> },
    /// Creates the reader's side of a fence of the process `exporter`.
    ReaderFence { kind: FenceKind, entries: usize, handles: Vec<u8>, exporter: u32, defect: Option<Defect> },
    /// Stalls the stream of this process until [`Command::Resume`]. Returns whether it has one.
    Stall,
    /// Resumes the stream.
    Resume,
    /// Polls until the stream is idle, up to a time limit.
    Idle { ms: u64 },
    /// Signals the ready fence behind the work of the stream.
    SignalReady(Frame),
    /// Polls the ready fence.
    PollReady(Frame),
    /// Makes the stream wait for the ready fence.
    WaitReady(Frame),
    /// Signals the release fence behind the work of the stream, or of a second one.
    SignalReleased { frame: Frame, second: bool },
    /// Polls the release fence.
    PollReleased(Frame),

    /// Prepares memory for the content of frames.
    Captures { count: usize, size: usize },
    /// Writes a frame in two halves, each after a delay, once the frame `after` is released; then
    /// signals the ready fence.
    Publish { allocation: Id, frame: Frame, after: Option<u64>, size: usize, value: u8, delays_us: [u64; 2] },
    /// Waits for the ready fence and, after a delay, captures the frame; then signals the release
    /// fence.
    Take { import: Id, frame: Frame, size: usize, delay_us: u64 },
    /// Counts the bytes of all captured frames that differ from these values.
    Torn(Vec<u8>),
}

/// The reply to a command.
#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    Done,
    Object(Id),
    Allocated {
        id: Id,
        size: u64,
    },
    Bytes(Vec<u8>),
    Number(u64),
    Answer(bool),
    /// This machine lacks the kind.
    Lacking(String),
    /// The memory's error.
    Refused {
        doing: String,
        kind: MemoryKind,
        text: String,
    },
    /// The fence's error.
    Fault(String),
}
