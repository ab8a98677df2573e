//! What a case can ask of a peer.

use serde::{Deserialize, Serialize};

/// A number that a peer gave to one of its objects.
pub type Id = usize;

/// A kind of memory, and for pools which one.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub enum Source {
    /// Virtual memory management.
    Vmm,
    /// The pool that was made or imported under this number.
    Pool(Id),
    /// Legacy handles.
    Legacy,
}

/// One thing to do. Objects are made in the context opened or chosen last.
#[derive(Debug, Serialize, Deserialize)]
pub enum Command {
    /// Opens a device's primary context, or a new one of our own handed in as if it were another library's.
    Open {
        device: usize,
        primary: bool,
    },
    /// Chooses among the contexts that were opened.
    Choose(Id),
    /// Whether a kind of memory or fence is supported, by name.
    Supports(String),
    /// The calls of the driver since the last time this was asked, as `name count, …`.
    Calls,
    /// What the process sees of the machine around it.
    Surroundings,
    /// Writes to memory that is mapped for reading, once the stream is let go, and so loses the context. Says by what.
    Spoil {
        memory: Id,
        stream: Id,
    },
    /// Exits while so many threads are calling the driver, and does not answer.
    Exit {
        threads: usize,
    },
    /// Blocks until the context has nothing to do.
    SynchronizeContext,

    /// A new stream.
    Stream,
    /// Whether a stream is idle.
    QueryStream(Id),
    /// Polls until a stream is idle, at most this long.
    Await {
        stream: Id,
        ms: u64,
    },
    DropStream(Id),
    /// Puts a host function on a stream that sleeps.
    Sleep {
        stream: Id,
        us: u64,
    },
    /// Holds a stream up until all are let go.
    Hold(Id),
    /// Lets all streams go that are held up.
    LetGo,
    /// Puts work for the GPU alone on a stream, about this much.
    Load {
        stream: Id,
        us: u64,
    },

    /// A new pool.
    Pool,
    /// A pool's descriptor.
    ExportPool(Id),
    /// Imports a pool from the descriptor sent along.
    ImportPool,
    Allocate {
        source: Source,
        size: usize,
        stream: Id,
    },
    /// The bytes that name an allocation, with a descriptor for `vmm`.
    Export(Id),
    /// The same for memory of someone else's, from an address inside it.
    ExportForeign {
        memory: Id,
        offset: usize,
    },
    /// Maps memory of another process; `token` and descriptor as they were exported.
    Import {
        source: Source,
        token: Vec<u8>,
        size: usize,
        write: bool,
    },
    /// An address, to see whether it was given out again.
    Address(Id),
    /// Gives memory back by dropping it.
    DropMemory(Id),
    /// Gives memory of a pool back in the order of a stream.
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
    /// Writes a pattern in which every byte depends on its place.
    Write {
        memory: Id,
        offset: usize,
        size: usize,
        seed: u64,
        stream: Id,
    },
    /// Copies from one memory to another.
    Copy {
        to: Id,
        from: Id,
        size: usize,
        stream: Id,
    },
    /// Copies a rectangle from one memory to another.
    CopyRows {
        to: Id,
        to_pitch: usize,
        from: Id,
        from_pitch: usize,
        width: usize,
        height: usize,
        stream: Id,
    },
    /// Makes room for captures beforehand.
    Prepare {
        captures: usize,
        size: usize,
    },
    /// Starts copying memory to the host.
    Capture {
        memory: Id,
        offset: usize,
        size: usize,
        stream: Id,
    },
    /// How many bytes of a finished capture differ from one value. Ends the capture.
    DiffersFromFill {
        capture: Id,
        value: u8,
    },
    /// How many bytes of a finished capture differ from a pattern. Ends the capture.
    DiffersFromPattern {
        capture: Id,
        seed: u64,
    },

    /// A new event, for this process alone or to be shared.
    Event {
        shared: bool,
    },
    /// As many shared events as there can be, at most this many: how many, and what stopped it.
    ManyEvents(usize),
    /// Destroys what [`Command::ManyEvents`] or [`Command::OpenMany`] made.
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

    /// Maps the memfd sent along and registers it.
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
    /// Gives a page back: how many µs that took.
    DropPage(Id),
}

/// What came of it.
#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    Done,
    Object(Id),
    Number(u64),
    Text(String),
    Bytes(Vec<u8>),
    /// Whether what was asked about is done; if not, it is pending.
    Ready(bool),
    Foreign {
        buffer_id: u64,
        handle: Vec<u8>,
        offset: usize,
        size: usize,
    },
}
