// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reader that implements the protocol by hand and violates its rules.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use frameshare::{FenceKind, MemoryKind, Policy};
use frameshare_cuda::event::Event;
use frameshare_cuda::memory::{legacy, pool};
use frameshare_protocol::message::{EVENT_HANDLE, Hello, ToExporter, ToReader};
use frameshare_tests::raw::{self, RawReader};

use crate::gpu::{self, Gpu};
use crate::job::Connect;

/// A rogue reader and its resources.
pub struct Rogue {
    reader: RawReader,
    gpu: Gpu,
    events: Vec<Event>,
    pools: Vec<Arc<pool::ImportedPool>>,
    imports: Vec<Kept>,
}

/// An import that is never released.
#[expect(dead_code, reason = "held, not used")]
enum Kept {
    Legacy(legacy::Import),
    Pool(pool::Import),
}

impl Rogue {
    /// Connects as a regular reader does.
    pub fn connect(connect: &Connect) -> Result<Rogue> {
        let gpu = Gpu::open(connect.device)?;
        let hello = Hello {
            nonce: [7; 16],
            name: "rogue".into(),
            memory: vec![MemoryKind::Vmm, MemoryKind::Pool, MemoryKind::Legacy],
            fences: connect.fence.map_or(vec![FenceKind::Timeline, FenceKind::Event], |fence| vec![fence]),
            gpus: vec![gpu.context.device().uuid().0],
            context: 1,
            ..raw::hello(Policy::Latest, connect.max_held.unwrap_or(4))
        };
        let reader = RawReader::join(Path::new(&connect.path), hello)?;
        Ok(Rogue { reader, gpu, events: Vec::new(), pools: Vec::new(), imports: Vec::new() })
    }

    /// Records again all events received from the exporter, ready events included, on a stalled
    /// stream.
    pub fn record_over(&mut self, us: u64) -> Result<()> {
        ensure!(!self.reader.welcome.events.is_empty(), "the exporter shared no events");
        gpu::stall(&self.gpu.stream, us)?;
        let (handles, _) = self.reader.welcome.events.as_chunks::<EVENT_HANDLE>();
        for handle in handles {
            let event = Event::open(&self.gpu.context, handle)?;
            event.record(&self.gpu.stream)?;
            self.events.push(event);
        }
        Ok(())
    }

    /// Imports the received memory, and acknowledges the first retirement without releasing the
    /// imports.
    pub fn acknowledge_and_keep(&mut self, patience: Duration) -> Result<()> {
        let until = Instant::now() + patience;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let (packet, fds) =
                self.reader.channel.receive(left)?.context("the exporter closed the connection")?;
            match ToReader::decode(&packet)? {
                ToReader::Generation { memory: MemoryKind::Pool, .. } => {
                    let fd = fds.first().context("a pool message without a descriptor")?;
                    self.pools.push(pool::ImportedPool::new(&self.gpu.context, fd.as_fd())?);
                }
                ToReader::Slot { handle, .. } => {
                    let token: [u8; 64] = handle.try_into().ok().context("a handle of unexpected length")?;
                    self.imports.push(match self.pools.last() {
                        Some(pool) => Kept::Pool(pool.import(&token)?),
                        None => Kept::Legacy(legacy::Import::new(&self.gpu.context, &token)?),
                    });
                }
                ToReader::Retire { generation, .. } => {
                    ensure!(!self.imports.is_empty(), "retirement before any import");
                    let acknowledgement = ToExporter::Retired { generation }.encode()?;
                    return Ok(self.reader.channel.send(&acknowledgement, &[])?);
                }
                _ => {}
            }
        }
    }
}
