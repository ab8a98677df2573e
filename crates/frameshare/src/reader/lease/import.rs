// SPDX-License-Identifier: MIT OR Apache-2.0

//! Imported slots, shared by a connection and its frames.

use super::channel::Channel;
use crate::{
    foreign::Foreign,
    gpu,
    memory::{Address, Import, dma_buf::DmaBuf},
};
use frameshare_cuda::{Error, context::Context};
use frameshare_protocol::{SlotId, message::ToExporter};
use std::{
    any::Any,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

/// The imported slots of a generation. Dropping the last holder sends the acknowledgement.
#[derive(Debug)]
pub(super) struct Imports {
    generation: u32,
    channel: Arc<Channel>,
}

impl Imports {
    pub fn new(generation: u32, channel: Arc<Channel>) -> Arc<Self> {
        Arc::new(Self { generation, channel })
    }
}

impl Drop for Imports {
    fn drop(&mut self) {
        acknowledge(&self.channel, &ToExporter::Retired { generation: self.generation });
    }
}

/// Acknowledges that memory was dropped, unless the context is lost or the process exits: then
/// nothing is freed before the process has ended.
pub(super) fn acknowledge(channel: &Channel, message: &ToExporter) {
    let keeps = |error: Error| error.is_sticky() || error.is_deinitialized();
    let keeps_memory = |gpu: &Arc<Context>| gpu.memory_left().is_err_and(keeps);
    if !channel.context().is_some_and(keeps_memory) {
        channel.send(message);
    }
}

/// The imported slot of a generation. Dropping the last holder sends the acknowledgement, if the
/// slot is retired although its generation is not.
#[derive(Debug)]
struct Retirement {
    index: u32,
    is_retired: AtomicBool,
    imports: Arc<Imports>,
}

impl Drop for Retirement {
    fn drop(&mut self) {
        if *self.is_retired.get_mut() {
            let slot = SlotId { generation: self.imports.generation, index: self.index };
            acknowledge(&self.imports.channel, &ToExporter::RetiredSlot { slot });
        }
    }
}

/// An imported slot, and its per-slot user data.
#[derive(Debug)]
pub(in crate::reader) struct Imported {
    // Fields are dropped in this order: the user data may refer to the memory, and the last field
    // acknowledges, for the slot and then for the generation.
    user_data: OnceLock<Foreign<Box<dyn Any + Send + Sync>>>,
    memory: Arc<dyn Import>,
    /// The file of host memory, if it stays open.
    file: Option<OwnedFd>,
    retirement: Arc<Retirement>,
}

impl Imported {
    pub(super) fn new(
        memory: Arc<dyn Import>,
        file: Option<OwnedFd>,
        index: u32,
        imports: Arc<Imports>,
    ) -> Self {
        let retirement = Arc::new(Retirement { index, is_retired: AtomicBool::new(false), imports });
        Self { user_data: OnceLock::new(), memory, file, retirement }
    }

    /// Makes the last holder acknowledge that the import was dropped.
    pub(super) fn retire(&self) {
        self.retirement.is_retired.store(true, Ordering::Relaxed);
    }

    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    pub fn address(&self) -> Address {
        self.memory.address()
    }

    pub fn dma_buf(&self) -> Option<&DmaBuf> {
        self.memory.dma_buf()
    }

    /// Returns the user data, made by `make` on first use; `None` if it is of another type.
    pub fn user_data<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Option<&T> {
        self.user_data.get_or_init(|| Foreign::new(Box::new(make()))).downcast_ref()
    }
}

impl Drop for Imported {
    /// Frees the import once no GPU work of the reader uses it, then acknowledges. Behind a stream
    /// that never completes neither happens, and the exporter keeps the memory.
    fn drop(&mut self) {
        drop(self.user_data.take());
        let channel = &self.retirement.imports.channel;
        if let Some(gpu) = channel.context() {
            gpu::drop_behind(gpu, channel.trail(), (self.memory.clone(), self.retirement.clone()));
        }
    }
}
