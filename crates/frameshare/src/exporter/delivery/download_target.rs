// SPDX-License-Identifier: MIT OR Apache-2.0

//! Host slots that downloads are copied into.
//!
//! # Safety
//!
//! A slot is registered with the GPU while its memory is held.
#![allow(unsafe_code)]

use crate::{
    exporter::{
        slot::{Slot, Vacancy},
        state::Shared,
    },
    gpu::DropWhenIdle,
};
use frameshare_cuda::{
    context::Context,
    host::{Access, Registration},
};
use std::{ptr::NonNull, sync::Arc};

/// Returns a host slot for a frame of `size` bytes. Must not be called with the state locked:
/// allocation and registration with the GPU take long.
pub fn target(shared: &Shared, size: u64) -> Option<Slot> {
    let gpu = shared.with(|state| state.gpu().cloned())?;
    let slot = allocate(shared, size)?;
    if slot.0.registered.get().is_none() {
        // No other thread uses the slot.
        let _ = slot.0.registered.set(register(&gpu, &slot, slot.as_ptr()?).ok()?);
    }
    Some(slot)
}

/// Returns a host slot that nothing else uses.
pub fn allocate(shared: &Shared, size: u64) -> Option<Slot> {
    match shared.with(|state| state.place_host(size))? {
        Vacancy::Free(slot) => Some(slot),
        Vacancy::Unallocated(slot) => {
            let memory = slot.allocate().ok()?;
            shared.with(|state| state.add(&slot, memory.clone(), shared.id))
        }
    }
}

/// Registers a host slot, so that the GPU writes it without the CPU's help.
fn register(
    gpu: &Arc<Context>,
    slot: &Slot,
    start: NonNull<u8>,
) -> frameshare_cuda::Result<DropWhenIdle<Registration>> {
    let length = usize::try_from(slot.size()).unwrap_or(usize::MAX);
    let memory = slot.0.memory.clone();
    // SAFETY: the slot is mapped while its memory is held, which the registration does. It holds
    // plain bytes, written by the GPU alone: it is published after the copy.
    let registration = unsafe { Registration::new(gpu, start, length, Access::ReadWrite, memory) }?;
    Ok(DropWhenIdle::new(gpu, registration))
}
