//! What a reader has imported, as its frames share it with its connection.

use super::session::Session;
use crate::{
    idle,
    memory::{Address, Import},
};
use frameshare_cuda::context::Context;
use frameshare_protocol::message::ToExporter;
use std::{
    any::Any,
    sync::{Arc, OnceLock},
};

/// The slots of a generation that were imported. The last holder's going tells the exporter.
#[derive(Debug)]
pub(super) struct Imports {
    pub generation: u32,
    pub slot_size: u64,
    pub session: Arc<Session>,
}

impl Drop for Imports {
    fn drop(&mut self) {
        // In a context that is lost nothing can be given up before the process ends.
        let is_lost = |gpu: &Arc<Context>| gpu.memory_left().is_err_and(|error| error.is_sticky());
        if self.session.context().is_some_and(is_lost) {
            return;
        }
        if let Ok(packet) = (ToExporter::Retired { generation: self.generation }).encode() {
            // An exporter that is gone does not need to know.
            let _ = self.session.socket.send(&packet, &[]);
        }
    }
}

/// A slot that was imported, and what the application keeps with it.
#[derive(Debug)]
pub(super) struct Imported {
    // Fields are dropped in this order: what is kept may refer to the memory, and the last acknowledges.
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
    /// Gives the memory up when no work of the reader's uses it, and acknowledges it then. Behind a stream that is stuck for
    /// ever neither happens, and the exporter goes on holding what it may not free.
    fn drop(&mut self) {
        drop(self.kept.take());
        if let Some(gpu) = self.imports.session.context() {
            idle::drop_when_idle(gpu, (self.memory.clone(), self.imports.clone()));
        }
    }
}
