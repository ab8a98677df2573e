// SPDX-License-Identifier: MIT OR Apache-2.0

//! Test cases by suite. Each case is documented at its function.

mod crashes;
mod devices;
mod driver;
mod faults;
mod fences;
mod isolation;
mod limits;
mod memory;

use anyhow::Result;
use frameshare_gpu_harness::{Case, Failed, Needs, Skip};

use crate::command::{Command, Id, Source};
use crate::conformance::RULES;
use crate::peer::{Peer, Token};

/// All cases.
pub static ALL: &[&[Case]] = &joined();

const SUITES: [&[Case]; 8] = [
    memory::CASES,
    fences::CASES,
    crashes::CASES,
    limits::CASES,
    isolation::CASES,
    devices::CASES,
    driver::CASES,
    faults::CASES,
];

/// Joins the suites and the conformance rules.
const fn joined() -> [&'static [Case]; SUITES.len() + RULES.len()] {
    let (first, rest) = (SUITES.len(), RULES.len());
    let mut all: [&[Case]; SUITES.len() + RULES.len()] = [&[]; SUITES.len() + RULES.len()];
    let mut at = 0;
    while at < first + rest {
        all[at] = if at < first { SUITES[at] } else { RULES[at - first] };
        at += 1;
    }
    all
}

/// An unblocked stream is idle sooner, on a busy machine too.
const PATIENCE_MS: u64 = 10_000;

/// Returns a case that needs only a GPU and little time.
const fn case(suite: &'static str, name: &'static str, conduct: fn(u64) -> Result<String>) -> Case {
    Case { suite, name, seconds: 30, needs: Needs::Nothing, conduct }
}

/// Skips the case if the device of `peer` lacks a kind of memory or fence.
fn require(peer: &Peer, kind: &str) -> Result<()> {
    match peer.execute(Command::Supports(kind.to_owned())) {
        Err(error) => match error.downcast::<Failed>() {
            Ok(failed) if failed.code.is_none() => Err(Skip(failed.text).into()),
            Ok(failed) => Err(failed.into()),
            Err(other) => Err(other),
        },
        Ok(()) => Ok(()),
    }
}

/// Kind of memory that one peer exports to others.
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

    /// Allocates zeroed memory of this kind.
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
    /// Imports the memory in a reader. Pool and legacy memory is always writable.
    fn import(&self, exporter: &Peer, reader: &Peer, write: bool) -> Result<Id> {
        let source = match self.source {
            Source::Pool(pool) => Source::Pool(reader.import_pool(exporter, pool)?),
            other => other,
        };
        reader.import(source, &self.token, self.import_size()?, write)
    }

    /// Returns the size that the importer must pass; for `vmm` the exporter reports it.
    fn import_size(&self) -> Result<usize> {
        match self.source {
            Source::Vmm => Ok(usize::from_le_bytes(self.token.bytes.as_slice().try_into()?)),
            _ => Ok(self.size),
        }
    }

    /// Frees the memory in the order that CUDA requires: the reader frees it and signals a fence,
    /// the exporter sees the fence and frees it.
    fn retire(&self, exporter: &Peer, reader: &Peer, import: Id) -> Result<()> {
        if matches!(self.source, Source::Pool(_)) {
            reader.execute(Command::Free { memory: import, stream: 0 })?;
            reader.finish(0)?;
            exporter.execute(Command::Free { memory: self.memory, stream: 0 })?;
            exporter.finish(0)
        } else {
            reader.drop_memory(import)?;
            exporter.drop_memory(self.memory)
        }
    }
}
