// SPDX-License-Identifier: MIT OR Apache-2.0

//! Commands of a case to its peers.

use serde::{Deserialize, Serialize};

use crate::{conformance, raw};

/// Number that a peer assigned to one of its objects.
pub type Id = usize;

/// A kind of memory, with the pool where it applies.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub enum Source {
    /// Virtual memory management.
    Vmm,
    /// The pool that was created or imported under this number.
    Pool(Id),
    /// Legacy handles.
    Legacy,
}

/// A command. Objects are created in the context opened or selected last.
#[derive(Debug, Serialize, Deserialize)]
pub enum Command {
    /// A command of a conformance rule.
    Conformance(conformance::Command),
    /// Opens a device's primary context, or a new context that is handled as if it were another
    /// library's.
    Open {
        device: usize,
        primary: bool,
    },
    /// Selects one of the opened contexts.
    Choose(Id),
    /// Returns whether a kind of memory or fence, given by name, is supported.
    Supports(String),
    /// Returns the driver calls since the last such command, as `name count, …`.
    Calls,
    /// Describes the peer's environment.
    Surroundings,
    /// Loses the context: writes to memory that is mapped for reading, once the stream is resumed.
    /// Returns the kind of write.
    Spoil {
        memory: Id,
        stream: Id,
    },
    /// Exits while this many threads are calling the driver, and sends no reply.
    Exit {
        threads: usize,
    },

    /// Creates a stream.
    Stream,
    /// Polls until a stream is idle, up to a time limit.
    Await {
        stream: Id,
        ms: u64,
    },
    /// Adds a stream of another kind.
    OtherStream(raw::Kind),
    DropStream(Id),
    /// Returns the handle of a stream.
    Handle(Id),
    /// Returns whether the stream with a handle is captured. The handle may be stale.
    IsCapturing(u64),
    /// Queues a sleeping host function on a stream.
    Sleep {
        stream: Id,
        us: u64,
    },
    /// Stalls a stream until [`Command::Resume`].
    Hold(Id),
    /// The same by a node of a graph.
    HoldInGraph(Id),
    /// The same with the default stream of a thread, which then ends. Returns whether the stream
    /// was idle before.
    HoldOnThread,
    /// Resumes all stalled streams.
    Resume,
    /// Queues GPU-only work of about this duration on a stream.
    Load {
        stream: Id,
        us: u64,
    },

    /// Creates a pool.
    Pool,
    /// Returns a pool's descriptor.
    ExportPool(Id),
    /// Imports a pool from the descriptor sent with the command.
    ImportPool,
    Allocate {
        source: Source,
        size: usize,
        stream: Id,
    },
    /// Returns an allocation's handle, with a descriptor for `vmm`.
    Export(Id),
    /// The same for adopted memory, from an address inside it.
    ExportAdopted {
        memory: Id,
        offset: usize,
    },
    /// Maps memory of another process from its exported handle and descriptor.
    Import {
        source: Source,
        token: Vec<u8>,
        size: usize,
        write: bool,
    },
    /// Returns an address, to detect its reuse.
    Address(Id),
    /// Frees memory by dropping it.
    DropMemory(Id),
    /// Frees memory on another thread, and does not wait for it.
    DropMemoryAside(Id),
    /// Frees pool memory in the order of a stream.
    Free {
        memory: Id,
        stream: Id,
    },

    /// Sets bytes to one value.
    Fill {
        memory: Id,
        offset: usize,
        size: usize,
        value: u8,
        stream: Id,
    },
    /// Writes a pattern in which every byte depends on its position.
    Write {
        memory: Id,
        offset: usize,
        size: usize,
        seed: u64,
        stream: Id,
    },
    /// Copies a rectangle between two allocations.
    CopyRows {
        to: Id,
        to_pitch: usize,
        from: Id,
        from_pitch: usize,
        width: usize,
        height: usize,
        stream: Id,
    },
    /// Writes the first bytes of memory by a kernel, which the first such command in a context
    /// loads.
    Launch {
        memory: Id,
        stream: Id,
    },
    /// Starts copying memory to the host.
    Capture {
        memory: Id,
        offset: usize,
        size: usize,
        stream: Id,
    },
    /// Returns how many bytes of a completed capture differ from one value. Frees the capture.
    DiffersFromFill {
        capture: Id,
        value: u8,
    },
    /// Returns how many bytes of a completed capture differ from a pattern, from position `from` of
    /// the pattern on. Frees the capture.
    DiffersFromPattern {
        capture: Id,
        seed: u64,
        from: usize,
    },

    /// Allocates host memory; returns its address.
    AllocateHost(usize),
    /// Frees host memory.
    FreeHost(u64),

    /// Creates an event, private or interprocess.
    Event {
        shared: bool,
    },
    /// Creates as many interprocess events as possible, up to this number. Returns the number and
    /// the error that ended it.
    ManyEvents(usize),
    /// Destroys the events of [`Command::ManyEvents`] or [`Command::OpenMany`].
    DropMany,
    /// Opens one event this many times.
    OpenMany {
        handle: Vec<u8>,
        times: usize,
    },
    ExportEvent(Id),
    OpenEvent(Vec<u8>),
    Record {
        event: Id,
        stream: Id,
    },
    RecordContext {
        event: Id,
        stream: Id,
    },
    Wait {
        stream: Id,
        event: Id,
    },
    QueryEvent(Id),
    DropEvent(Id),

    /// Maps the memfd sent with the command and registers it.
    Page {
        words: usize,
        write: bool,
    },
    WriteWord {
        page: Id,
        word: usize,
        value: u64,
        stream: Id,
    },
    WriteWords {
        page: Id,
        values: Vec<(usize, u64)>,
        stream: Id,
    },
    WaitWord {
        page: Id,
        word: usize,
        value: u64,
        stream: Id,
    },
    /// Drops a page; returns the duration in µs.
    DropPage(Id),
}

/// Result of a command.
#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    /// The reply to a command of a conformance rule.
    Conformance(conformance::Reply),
    Done,
    Object(Id),
    Number(u64),
    Text(String),
    Bytes(Vec<u8>),
    /// Whether the queried work is complete; otherwise it is pending.
    Ready(bool),
    Adopted {
        buffer_id: u64,
        handle: Vec<u8>,
        offset: usize,
        size: usize,
    },
}
