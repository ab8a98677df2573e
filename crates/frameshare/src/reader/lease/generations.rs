// SPDX-License-Identifier: MIT OR Apache-2.0

//! Generations whose frames may still arrive, and the imports of their slots.

use super::{
    channel::Channel,
    import::{Imported, Imports},
};
use crate::{
    foreign::report,
    memory::{Importer, MemoryError, MemoryFault, Operation, frees_imports_first, importer, same_process},
    reader::{
        config::Config,
        error::{ProtocolViolation, ReadError},
    },
    sys::UntrustedFd,
};
use frameshare_protocol::{Descriptor, MemoryKind, SlotId, limits::MAX_TEXT, message::ToExporter};
use std::{collections::BTreeMap, io, os::fd::AsFd, sync::Arc};

/// Maximum number of generations, and of slots of all of them, that are imported at once: a process
/// has at most some 65,000 mappings.
const MAX_GENERATIONS: usize = 256;
const MAX_IMPORTS: usize = 8192;

/// A new generation, as the exporter announces it.
#[derive(Clone, Copy, Debug)]
pub(in crate::reader) struct Announcement {
    pub generation: u32,
    pub memory: MemoryKind,
    pub slot_size: u64,
    pub adopted: bool,
}

/// The generations of one connection.
#[derive(Debug)]
pub(in crate::reader) struct Generations {
    channel: Arc<Channel>,
    /// The exporter is in this very process.
    is_local: bool,
    /// The exporter has frames in host memory for a reader that cannot import them.
    host_fallback: bool,
    /// The files of host memory stay open.
    keeps_files: bool,
    /// This reader has offered to import dma-bufs.
    takes_dma_bufs: bool,
    entries: BTreeMap<u32, Generation>,
}

#[derive(Debug)]
struct Generation {
    memory: MemoryKind,
    source: Source,
    slots: BTreeMap<u32, Arc<Imported>>,
    imports: Arc<Imports>,
    /// The exporter has other memory if an import fails.
    is_replaceable: bool,
}

/// The origin of a generation's imports.
#[derive(Clone, Debug)]
enum Source {
    /// Memory of another process.
    Importer(Arc<dyn Importer>),
    /// Memory of this process that CUDA cannot import: the exporter's own mapping is used.
    SameProcess,
    /// An import failed: no frame in the generation is taken.
    Unreadable,
}

impl Generations {
    pub fn new(channel: Arc<Channel>, is_local: bool, config: &Config, takes_dma_bufs: bool) -> Self {
        let Config { host_fallback, keep_files: keeps_files, .. } = *config;
        Self { channel, is_local, host_fallback, keeps_files, takes_dma_bufs, entries: BTreeMap::new() }
    }

    /// Adds a generation, with the descriptor for all its slots if its kind has one.
    ///
    /// # Errors
    /// [`ReadError::Memory`] if the generation cannot be imported and the exporter has no other
    /// memory; [`ReadError::Violation`] beyond the limit, or if it exists already.
    pub fn add(&mut self, new: Announcement, fd: Option<&UntrustedFd>) -> Result<(), ReadError> {
        let Announcement { generation, memory, slot_size, adopted } = new;
        if self.entries.len() >= MAX_GENERATIONS {
            return Err(ProtocolViolation::TooManyGenerations { limit: MAX_GENERATIONS }.into());
        }
        let context = self.channel.context();
        let is_replaceable = memory != MemoryKind::Host && (adopted || self.host_fallback);
        if memory == MemoryKind::DmaBuf && !(self.takes_dma_bufs && adopted) {
            let cause = MemoryFault::NotOffered;
            return Err(MemoryError::new(Operation::Import, slot_size, memory, cause).into());
        }
        let (source, failed) = if self.is_local && frees_imports_first(memory) {
            (Source::SameProcess, None)
        } else {
            match importer(memory, context, fd.map(AsFd::as_fd)) {
                Ok(importer) => (Source::Importer(importer), None),
                Err(error) if is_replaceable && context.is_some() => (Source::Unreadable, Some(error)),
                Err(error) => return Err(error.into()),
            }
        };
        let imports = Imports::new(generation, slot_size, self.channel.clone());
        let new = Generation { memory, source, slots: BTreeMap::new(), imports, is_replaceable };
        if self.entries.insert(generation, new).is_some() {
            return Err(ProtocolViolation::DuplicateGeneration { generation }.into());
        }
        if let Some(error) = failed {
            report(&self.channel, generation, &error);
        }
        Ok(())
    }

    /// Imports a slot by its handle, or by its descriptor.
    ///
    /// # Errors
    /// As [`Generations::add`].
    pub fn import(&mut self, slot: SlotId, handle: &[u8], fd: Option<&UntrustedFd>) -> Result<(), ReadError> {
        let imports: usize = self.entries.values().map(|one| one.slots.len()).sum();
        if imports >= MAX_IMPORTS {
            return Err(ProtocolViolation::TooManySlots { limit: MAX_IMPORTS }.into());
        }
        let found = self.entries.get_mut(&slot.generation);
        let found = found.ok_or(ProtocolViolation::SlotOfUnknownGeneration { slot })?;
        let context = self.channel.context();
        let import = match &found.source {
            Source::Importer(importer) => {
                importer.import(found.imports.slot_size(), handle, fd.map(AsFd::as_fd))
            }
            Source::SameProcess => same_process::find((self.channel.session(), slot), found.memory, context),
            Source::Unreadable => return Ok(()),
        };
        let import = match import {
            Ok(import) => import,
            Err(error) if found.is_replaceable && (context.is_some() || is_unmappable(&error)) => {
                found.source = Source::Unreadable;
                report(&self.channel, slot.generation, &error);
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        let kept = fd.filter(|_| self.keeps_files && found.memory == MemoryKind::Host);
        let file = kept.map(|fd| fd.as_fd().try_clone_to_owned()).transpose().map_err(ReadError::Io)?;
        let imported = Imported::new(import, file, slot.index, found.imports.clone());
        match found.slots.insert(slot.index, Arc::new(imported)) {
            Some(_) => Err(ProtocolViolation::DuplicateSlot { slot }.into()),
            None => Ok(()),
        }
    }

    /// Drops the imports of a generation. Held frames keep theirs.
    pub fn retire(&mut self, generation: u32) {
        self.entries.remove(&generation);
    }

    /// Drops the import of a slot, which no frame uses any more.
    ///
    /// # Errors
    /// [`ReadError::Violation`] if there is no such slot.
    pub fn retire_slot(&mut self, slot: SlotId) -> Result<(), ReadError> {
        let found = self.entries.get_mut(&slot.generation);
        let found = found.ok_or(ProtocolViolation::RetiredUnknownSlot { slot })?;
        match (found.slots.remove(&slot.index), &found.source) {
            (Some(imported), _) => imported.retire(),
            // It was not imported.
            (None, Source::Unreadable) => found.imports.acknowledge(&ToExporter::RetiredSlot { slot }),
            (None, _) => return Err(ProtocolViolation::RetiredUnknownSlot { slot }.into()),
        }
        Ok(())
    }

    /// Returns whether an import of the frame's generation failed: the next frames are elsewhere.
    pub fn is_unreadable(&self, descriptor: &Descriptor) -> bool {
        let generation = self.entries.get(&descriptor.slot.generation);
        generation.is_some_and(|generation| matches!(generation.source, Source::Unreadable))
    }

    /// Returns whether the frame's slot is imported.
    pub fn has_imported(&self, descriptor: &Descriptor) -> bool {
        let generation = self.entries.get(&descriptor.slot.generation);
        generation.is_some_and(|generation| generation.slots.contains_key(&descriptor.slot.index))
    }

    /// Returns whether a frame has fences of its connection. Host frames have none: they are
    /// complete when they are published.
    pub fn is_fenced(&self, descriptor: &Descriptor) -> bool {
        let generation = self.entries.get(&descriptor.slot.generation);
        generation.is_none_or(|generation| generation.memory.is_gpu())
    }

    /// Returns the import of a frame's slot, which contains the frame.
    ///
    /// # Errors
    /// The violation if there is no such slot, or the frame is not inside it.
    pub fn find(&self, descriptor: &Descriptor) -> Result<&Arc<Imported>, ProtocolViolation> {
        let &Descriptor { sequence, slot: SlotId { generation, index }, .. } = descriptor;
        let found = self.entries.get(&generation);
        let found = found.ok_or(ProtocolViolation::UnknownGeneration { sequence, generation })?;
        let import =
            found.slots.get(&index).ok_or(ProtocolViolation::UnknownSlot { sequence, slot: index })?;
        descriptor.check_frame(found.imports.slot_size())?;
        Ok(import)
    }
}

/// Returns whether a dma-buf cannot be mapped: a driver need not allow it. A descriptor of another
/// kind or size is the exporter's fault.
fn is_unmappable(error: &MemoryError) -> bool {
    let is_invalid = |error: &io::Error| error.kind() == io::ErrorKind::InvalidData;
    error.kind == MemoryKind::DmaBuf && error.system().is_some_and(|error| !is_invalid(error))
}

/// Reports a generation that cannot be imported. Its published frames are lost.
fn report(channel: &Channel, generation: u32, error: &MemoryError) {
    report!(warn, "the exporter is asked for other memory: {error}");
    let mut text = error.to_string();
    text.truncate(text.floor_char_boundary(MAX_TEXT));
    channel.send(&ToExporter::CannotImport { generation, text });
}
