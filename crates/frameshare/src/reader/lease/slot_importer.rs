// SPDX-License-Identifier: MIT OR Apache-2.0

//! Imports of slots: of each generation, from the memory that the exporter announces.

use super::{
    channel::Channel,
    import::{Imported, Imports, acknowledge},
};
use crate::{
    foreign::report,
    memory::{Importer, MemoryError, MemoryFault, Operation, frees_imports_first, importer, same_process},
    reader::{config::Config, error::ReadError},
    sys::UntrustedFd,
};
use frameshare_core::reader::{Announcement, Generations, Place};
use frameshare_protocol::{MemoryKind, SlotId, limits::MAX_TEXT, message::ToExporter};
use std::{io, os::fd::AsFd, sync::Arc};

/// Imports the slots of one connection. Which of them there are is known to its [`Generations`].
#[derive(Debug)]
pub(in crate::reader) struct SlotImporter {
    channel: Arc<Channel>,
    /// The exporter is in this very process.
    is_local: bool,
    /// The exporter has frames in host memory for a reader that cannot import them.
    host_fallback: bool,
    /// The files of host memory stay open.
    keeps_files: bool,
    /// This reader has offered to import dma-bufs.
    takes_dma_bufs: bool,
    generations: Generations<Memory, Arc<Imported>>,
}

/// The memory of a generation.
#[derive(Debug)]
pub(in crate::reader) struct Memory {
    source: Source,
    imports: Arc<Imports>,
    /// The exporter has other memory if an import fails.
    is_replaceable: bool,
}

/// The origin of a generation's imports.
#[derive(Debug)]
enum Source {
    /// Memory of another process.
    Importer(Arc<dyn Importer>),
    /// Memory of this process that CUDA cannot import: the exporter's own mapping is used.
    SameProcess,
    /// None: an import failed.
    Unreadable,
}

impl SlotImporter {
    pub fn new(channel: Arc<Channel>, is_local: bool, config: &Config, takes_dma_bufs: bool) -> Self {
        let Config { host_fallback, keep_files: keeps_files, .. } = *config;
        let generations = Generations::default();
        Self { channel, is_local, host_fallback, keeps_files, takes_dma_bufs, generations }
    }

    /// Adds a generation, with the descriptor for all its slots if its kind has one.
    ///
    /// # Errors
    /// [`ReadError::Memory`] if the generation cannot be imported and the exporter has no other
    /// memory; [`ReadError::Violation`] beyond the limit, or if it exists already.
    pub fn add(&mut self, new: Announcement, fd: Option<&UntrustedFd>) -> Result<(), ReadError> {
        let Announcement { generation, memory, slot_size, adopted } = new;
        self.generations.check_room()?;
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
        let imports = Imports::new(generation, self.channel.clone());
        let memory = Memory { source, imports, is_replaceable };
        self.generations.add(new, memory)?;
        if let Some(error) = failed {
            self.fail(generation, &error);
        }
        Ok(())
    }

    /// Imports a slot by its handle, or by its descriptor.
    ///
    /// # Errors
    /// As [`SlotImporter::add`].
    pub fn import(&mut self, slot: SlotId, handle: &[u8], fd: Option<&UntrustedFd>) -> Result<(), ReadError> {
        let begun = self.generations.begin_import(slot)?;
        let Some((kind, size, memory)) = begun else { return Ok(()) };
        let context = self.channel.context();
        let import = match &memory.source {
            Source::Importer(importer) => importer.import(size, handle, fd.map(AsFd::as_fd)),
            Source::SameProcess => same_process::find((self.channel.session(), slot), kind, context),
            Source::Unreadable => return Ok(()),
        };
        let import = match import {
            Ok(import) => import,
            Err(error) if memory.is_replaceable && (context.is_some() || is_unmappable(&error)) => {
                self.fail(slot.generation, &error);
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        let kept = fd.filter(|_| self.keeps_files && kind == MemoryKind::Host);
        let file = kept.map(|fd| fd.as_fd().try_clone_to_owned()).transpose().map_err(ReadError::Io)?;
        let imported = Imported::new(import, file, slot.index, memory.imports.clone());
        self.generations.insert(slot, Arc::new(imported)).map_err(ReadError::from)
    }

    /// Takes no frames of a generation any more, and reports that it cannot be imported. Its
    /// published frames are lost.
    fn fail(&mut self, generation: u32, error: &MemoryError) {
        if let Some(memory) = self.generations.mark_unreadable(generation) {
            memory.source = Source::Unreadable;
        }
        report!(warn, "the exporter is asked for other memory: {error}");
        let mut text = error.to_string();
        text.truncate(text.floor_char_boundary(MAX_TEXT));
        self.channel.send(&ToExporter::CannotImport { generation, text });
    }

    /// Drops the imports of a generation. Held frames keep theirs.
    pub fn retire(&mut self, generation: u32) {
        self.generations.retire(generation);
    }

    /// Drops the import of a slot, which no frame uses any more.
    ///
    /// # Errors
    /// [`ReadError::Violation`] if there is no such slot.
    pub fn retire_slot(&mut self, slot: SlotId) -> Result<(), ReadError> {
        match self.generations.retire_slot(slot)? {
            Some(imported) => imported.retire(),
            None => acknowledge(&self.channel, &ToExporter::RetiredSlot { slot }),
        }
        Ok(())
    }

    /// The place of a frame in this slot.
    pub fn place(&self, slot: SlotId) -> Place<'_, Memory, Arc<Imported>> {
        self.generations.place(slot)
    }
}

/// Returns whether a dma-buf cannot be mapped: a driver need not allow it. A descriptor of another
/// kind or size is the exporter's fault.
fn is_unmappable(error: &MemoryError) -> bool {
    let is_invalid = |error: &io::Error| error.kind() == io::ErrorKind::InvalidData;
    error.kind == MemoryKind::DmaBuf && error.system().is_some_and(|error| !is_invalid(error))
}
