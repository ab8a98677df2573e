//! The cases, by suite. What each shows stands above its function.

mod crashes;
mod devices;
mod faults;
mod fences;
mod isolation;
mod limits;
mod memory;

use anyhow::Result;
use frameshare_gpu_harness::{Case, Failed, Needs, Skip};

use crate::command::{Command, Id, Source};
use crate::peer::{Peer, Token};

/// Every case there is.
pub static ALL: &[&[Case]] = &[
    memory::CASES,
    fences::CASES,
    crashes::CASES,
    limits::CASES,
    isolation::CASES,
    devices::CASES,
    faults::CASES,
];

/// A stream that has nothing to wait for is idle sooner, on a busy machine too.
const PATIENCE_MS: u64 = 10_000;

/// A case that needs no more than a GPU and little time.
const fn case(suite: &'static str, name: &'static str, conduct: fn(u64) -> Result<String>) -> Case {
    Case { suite, name, seconds: 30, needs: Needs::Nothing, conduct }
}

/// Ends the case as skipped where the device of `peer` lacks a kind of memory or fence.
fn require(peer: &Peer, kind: &str) -> Result<()> {
    match peer.tell(Command::Supports(kind.to_owned())) {
        Err(error) => match error.downcast::<Failed>() {
            Ok(failed) if failed.code.is_none() => Err(Skip(failed.text).into()),
            Ok(failed) => Err(failed.into()),
            Err(other) => Err(other),
        },
        Ok(()) => Ok(()),
    }
}

/// Memory of one kind, exported by one peer to others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Vmm,
    Pool,
    Legacy,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Vmm, Kind::Pool, Kind::Legacy];

    fn name(self) -> &'static str {
        match self {
            Kind::Vmm => "vmm",
            Kind::Pool => "pool",
            Kind::Legacy => "legacy",
        }
    }

    /// Allocates memory of this kind, zeroed.
    fn share(self, exporter: &Peer, size: usize) -> Result<Shared> {
        require(exporter, self.name())?;
        let source = match self {
            Kind::Vmm => Source::Vmm,
            Kind::Pool => Source::Pool(exporter.pool()?),
            Kind::Legacy => Source::Legacy,
        };
        let memory = exporter.allocate(source, size)?;
        exporter.fill(memory, 0, size, 0, 0)?;
        exporter.finish(0)?;
        let token = exporter.export(memory)?;
        Ok(Shared { source, memory, token, size })
    }
}

/// Memory that an exporter shares.
struct Shared {
    source: Source,
    memory: Id,
    token: Token,
    size: usize,
}

impl Shared {
    /// Where and with which rights a reader maps it. Memory of pools and legacy memory can always be written.
    fn import(&self, exporter: &Peer, reader: &Peer, write: bool) -> Result<Id> {
        let source = match self.source {
            Source::Pool(pool) => Source::Pool(reader.import_pool(exporter, pool)?),
            other => other,
        };
        reader.import(source, &self.token, self.import_size()?, write)
    }

    /// What the importer must give as the size; for `vmm` the exporter says so.
    fn import_size(&self) -> Result<usize> {
        match self.source {
            Source::Vmm => Ok(usize::from_le_bytes(self.token.bytes.as_slice().try_into()?)),
            _ => Ok(self.size),
        }
    }

    /// Gives the memory back, in CUDA's order: the reader, its fence, the exporter's look at it, the exporter.
    fn retire(&self, exporter: &Peer, reader: &Peer, import: Id) -> Result<()> {
        if matches!(self.source, Source::Pool(_)) {
            reader.tell(Command::Free { memory: import, stream: 0 })?;
            reader.finish(0)?;
            exporter.tell(Command::Free { memory: self.memory, stream: 0 })?;
            exporter.finish(0)
        } else {
            reader.drop_memory(import)?;
            exporter.drop_memory(self.memory)
        }
    }
}
