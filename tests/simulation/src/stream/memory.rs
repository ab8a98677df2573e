// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory of slots: what is in it, and who accesses it.
//!
//! Responsible for the first rule of a stream: nobody writes a slot while somebody else may read or
//! write it, and a frame is read as it was written. Each access takes several steps.

use crate::{Process, task::is_dying};
use frameshare_protocol::MemoryKind;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, Weak},
};

/// One allocation. Clones share it; the memory is freed with the last one.
#[derive(Clone, Debug)]
pub struct Memory(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    kind: MemoryKind,
    size: u64,
    accesses: Mutex<Accesses>,
    careless: Careless,
}

/// Processes that may read what is written meanwhile: they break the rules, or the owner of the
/// stream took the memory from them. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Careless(Arc<Mutex<Vec<Process>>>);

impl Careless {
    /// Adds a process.
    pub fn add(&self, process: Process) {
        self.0.lock().unwrap_or_else(|error| error.into_inner()).push(process);
    }

    fn contains(&self, process: Process) -> bool {
        self.0.lock().unwrap_or_else(|error| error.into_inner()).contains(&process)
    }
}

/// The present accesses.
#[derive(Debug, Default)]
struct Accesses {
    /// The tag of the frame in it; 0 if it is incomplete.
    tag: u64,
    readers: BTreeMap<Process, u32>,
    writers: BTreeMap<Process, u32>,
    /// Number of imports.
    imports: BTreeMap<Process, u32>,
}

impl Memory {
    /// Fresh memory of this kind and size in bytes.
    pub fn new(kind: MemoryKind, size: u64, careless: &Careless) -> Self {
        Self(Arc::new(Inner { kind, size, accesses: Mutex::default(), careless: careless.clone() }))
    }

    /// Its kind.
    pub fn kind(&self) -> MemoryKind {
        self.0.kind
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.0.size
    }

    /// A reference that does not keep it.
    pub fn observe(&self) -> Observed {
        Observed(Arc::downgrade(&self.0))
    }

    fn accesses(&self) -> MutexGuard<'_, Accesses> {
        self.0.accesses.lock().unwrap_or_else(|error| error.into_inner())
    }

    /// Begins to write.
    pub fn begin_write(&self, process: Process) {
        if is_dying() {
            return;
        }
        let mut accesses = self.accesses();
        let reader = accesses.readers.keys().find(|reader| !self.0.careless.contains(**reader));
        assert!(reader.is_none(), "a slot is written while process {reader:?} reads it");
        assert!(accesses.writers.is_empty(), "a slot is written while {:?} write it", accesses.writers);
        accesses.tag = 0;
        *accesses.writers.entry(process).or_default() += 1;
    }

    /// Ends to write a frame with this tag.
    pub fn end_write(&self, process: Process, tag: u64) {
        if is_dying() {
            return;
        }
        let mut accesses = self.accesses();
        accesses.tag = tag;
        end(&mut accesses.writers, process);
    }

    /// Begins to read the frame with this tag.
    pub fn begin_read(&self, process: Process, tag: u64) {
        if is_dying() {
            return;
        }
        let mut accesses = self.accesses();
        if !self.0.careless.contains(process) {
            assert!(accesses.writers.is_empty(), "a frame is read while {:?} write it", accesses.writers);
            assert_eq!(accesses.tag, tag, "another frame is read than the one that was published");
        }
        *accesses.readers.entry(process).or_default() += 1;
    }

    /// Ends to read it.
    pub fn end_read(&self, process: Process, tag: u64) {
        if is_dying() {
            return;
        }
        let mut accesses = self.accesses();
        if !self.0.careless.contains(process) {
            assert_eq!(accesses.tag, tag, "a frame was overwritten while it was read");
        }
        end(&mut accesses.readers, process);
    }

    /// Begins an import.
    pub fn import(&self, process: Process) {
        *self.accesses().imports.entry(process).or_default() += 1;
    }

    /// Ends an import.
    pub fn drop_import(&self, process: Process) {
        end(&mut self.accesses().imports, process);
    }

    /// Returns whether a process imports it that keeps the rules.
    pub fn is_imported(&self) -> bool {
        self.accesses().imports.keys().any(|process| !self.0.careless.contains(*process))
    }
}

fn end(counts: &mut BTreeMap<Process, u32>, process: Process) {
    if let Some(count) = counts.get_mut(&process) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&process);
        }
    }
}

/// A reference that does not keep the memory.
#[derive(Clone, Debug)]
pub struct Observed(Weak<Inner>);

impl Observed {
    /// The memory, while it is allocated.
    pub fn get(&self) -> Option<Memory> {
        self.0.upgrade().map(Memory)
    }

    /// Notes that a process has ended, and with it all its accesses and imports.
    pub fn forget(&self, process: Process) {
        let Some(memory) = self.get() else { return };
        let mut accesses = memory.accesses();
        accesses.readers.remove(&process);
        accesses.writers.remove(&process);
        accesses.imports.remove(&process);
    }
}
