// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory of this very process, of kinds that CUDA cannot import there: a reader in the exporter's
//! own process uses the exporter's pointer.

use super::{Address, Allocation, Import, MemoryError, MemoryFault, Operation};
use crate::sys::PerProcess;
use frameshare_cuda::context::Context;
use frameshare_protocol::{MemoryKind, SlotId};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

/// Session and slot.
type Key = (u64, SlotId);

struct Entry {
    memory: Weak<dyn Allocation>,
    /// The context of the allocation.
    context: Option<usize>,
}

static LOCAL: PerProcess<Mutex<HashMap<Key, Entry>>> = PerProcess::new(Mutex::default);

fn local() -> MutexGuard<'static, HashMap<Key, Entry>> {
    LOCAL.lock().unwrap_or_else(PoisonError::into_inner)
}

fn identity(context: Option<&Arc<Context>>) -> Option<usize> {
    context.map(|context| context.as_raw() as usize)
}

/// Registers an allocation of an exporter of this process.
pub(crate) fn note(key: Key, memory: &Arc<dyn Allocation>, context: Option<&Arc<Context>>) {
    let mut local = local();
    local.retain(|_, entry| entry.memory.strong_count() > 0);
    local.insert(key, Entry { memory: Arc::downgrade(memory), context: identity(context) });
}

/// Finds an allocation of an exporter of this process, for a reader in `context`.
pub(crate) fn find(
    key: Key,
    kind: MemoryKind,
    context: Option<&Arc<Context>>,
) -> Result<Arc<dyn Import>, MemoryError> {
    let failed = MemoryError::of(Operation::Import, None, kind);
    let local = local();
    let entry = local.get(&key).ok_or_else(|| failed(MemoryFault::Freed))?;
    if entry.context != identity(context) {
        return Err(failed(MemoryFault::OtherContext));
    }
    let memory = entry.memory.upgrade().ok_or_else(|| failed(MemoryFault::Freed))?;
    Ok(Arc::new(Local(memory)))
}

/// Holds the allocation itself.
#[derive(Debug)]
struct Local(Arc<dyn Allocation>);

impl Import for Local {
    fn address(&self) -> Address {
        self.0.address()
    }
}
