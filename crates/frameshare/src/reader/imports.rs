//! What a reader has imported, as its frames share it with its connection.

use super::session::Session;
use crate::memory::{Address, Import};
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
        if let Ok(packet) = (ToExporter::Retired { generation: self.generation }).encode() {
            // An exporter that is gone does not need to know.
            let _ = self.session.socket.send(&packet, &[]);
        }
    }
}

/// A slot that was imported, and what the application keeps with it.
#[derive(Debug)]
pub(super) struct Imported {
    // Fields are dropped in this order: what is kept may refer to the memory.
    kept: OnceLock<Box<dyn Any + Send + Sync>>,
    memory: Arc<dyn Import>,
}

impl Imported {
    pub fn new(memory: Arc<dyn Import>) -> Self {
        Self { kept: OnceLock::new(), memory }
    }

    pub fn address(&self) -> Address {
        self.memory.address()
    }

    pub fn kept<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Option<&T> {
        self.kept.get_or_init(|| Box::new(make())).downcast_ref()
    }
}
