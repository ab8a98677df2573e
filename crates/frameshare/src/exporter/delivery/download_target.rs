// SPDX-License-Identifier: MIT OR Apache-2.0

//! Host slots that downloads are copied into.
//!
//! # Safety
//!
//! A slot is registered with the GPU while its memory is held.
#![allow(unsafe_code)]

use super::backpressure::{Awaited, wait_until};
use crate::{
    Interrupt,
    exporter::{
        frame::PublishError,
        resources::Resources,
        slot::{AcquireError, Slot},
        state::Shared,
    },
    foreign::report,
    gpu::DropWhenIdle,
    sys::Timeout,
};
use frameshare_core::exporter::{slot::Vacancy, state::State};
use frameshare_cuda::{
    context::Context,
    host::{Access, Registration},
};
use std::{ptr::NonNull, sync::Arc};

/// Returns a host slot for a frame of `size` bytes; none once the stream has no GPU. Must not be
/// called with the state locked: allocation and registration with the GPU take long.
///
/// # Errors
/// The reason why there is no slot.
pub fn target(shared: &Shared, size: u64) -> Result<Option<Slot>, AcquireError> {
    let Some(gpu) = shared.with(|state| state.gpu().cloned()) else { return Ok(None) };
    let slot = allocate(shared, size)?;
    // No other thread uses the slot.
    slot.0.registered.get_or_init(|| {
        let registered = slot.as_ptr().map(|start| register(&gpu, &slot, start)).transpose();
        registered.unwrap_or_else(|error| {
            report!(
                warn,
                "downloads into a host slot block a thread, since it cannot be registered: {error}"
            );
            None
        })
    });
    Ok(Some(slot))
}

/// Returns a host slot for the download of a frame. While lossless readers need one, waits for one
/// of those that there are if no further one can be allocated. `None` if the frame is not
/// downloaded: the readers that may not lose it are disconnected then.
pub fn wait_for_target(
    shared: &Shared,
    interrupt: &Interrupt,
    timeout: Timeout,
    size: u64,
) -> Result<Option<Slot>, PublishError> {
    // A slot that is not free long after readers that hold the stream back were evicted never will
    // be.
    let patience = shared.with(|state| state.config().reader_timeout).saturating_mul(2);
    let given_up = Timeout::after(Some(patience));
    loop {
        let why = match target(shared, size) {
            Ok(target) => return Ok(target),
            Err(why) => why,
        };
        let is_free = |state: &mut State<Resources>| {
            let is_free = matches!(state.place_host(size), Ok(Vacancy::Free(_)));
            (is_free || !state.must_download() || !state.has_host_slots()).then_some(is_free)
        };
        match wait_until(shared, interrupt, timeout.min(given_up), Awaited::Slot, is_free)? {
            Some(true) => {}
            None if timeout.is_over() => return Err(PublishError::NoRoom),
            _ => {
                shared.with(|state| state.cannot_download(&why));
                return Ok(None);
            }
        }
    }
}

/// Returns a host slot that nothing else uses.
pub fn allocate(shared: &Shared, size: u64) -> Result<Slot, AcquireError> {
    match shared.with(|state| state.place_host(size))? {
        Vacancy::Free(slot) => Ok(slot),
        Vacancy::Unallocated(slot) => {
            let memory = slot.allocator.allocate(slot.slot_size)?;
            let added = shared.with(|state| state.add(&slot, memory.clone()));
            added.ok_or_else(|| AcquireError::Exhausted {
                max_slots: shared.with(|state| state.config().max_slots),
            })
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
