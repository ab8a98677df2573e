// SPDX-License-Identifier: MIT OR Apache-2.0

//! Imports of a reader, shared by its frames and its connection.

use super::session::Session;
use crate::{
    gpu,
    memory::{Address, Import},
};
use frameshare_cuda::context::Context;
use frameshare_protocol::message::ToExporter;
use std::{
    any::Any,
    sync::{Arc, OnceLock},
};

/// The imported slots of a generation. Dropping the last holder sends the acknowledgement.
#[derive(Debug)]
pub(super) struct Imports {
    pub generation: u32,
    pub slot_size: u64,
    pub session: Arc<Session>,
}

impl Drop for Imports {
    fn drop(&mut self) {
        // In a lost context nothing can be freed before the process ends.
        let is_lost = |gpu: &Arc<Context>| gpu.memory_left().is_err_and(|error| error.is_sticky());
        if self.session.context().is_some_and(is_lost) {
            return;
        }
        if let Ok(packet) = (ToExporter::Retired { generation: self.generation }).encode() {
            // It fails if the exporter is dead, which needs no acknowledgement.
            let _ = self.session.socket.send(&packet, &[]);
        }
    }
}

/// An imported slot, and its per-slot user data.
#[derive(Debug)]
pub(super) struct Imported {
    // Fields are dropped in this order: the user data may refer to the memory, and the last field
    // acknowledges.
    kept: OnceLock<Box<dyn Any + Send + Sync>>,
    memory: Arc<dyn Import>,
    imports: Arc<Imports>,
}

impl Imported {
    pub fn new(memory: Arc<dyn Import>, imports: Arc<Imports>) -> Self {
        Self { kept: OnceLock::new(), memory, imports }
    }

    pub fn address(&self) -> Address {
        self.memory.address()
    }

    pub fn kept<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Option<&T> {
        self.kept.get_or_init(|| Box::new(make())).downcast_ref()
    }
}

impl Drop for Imported {
    /// Frees the import once no GPU work of the reader uses it, then acknowledges. Behind a stream
    /// that never completes neither happens, and the exporter keeps the memory.
    fn drop(&mut self) {
        drop(self.kept.take());
        if let Some(gpu) = self.imports.session.context() {
            gpu::drop_when_idle(gpu, (self.memory.clone(), self.imports.clone()));
        }
    }
}
