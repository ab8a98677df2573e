// SPDX-License-Identifier: MIT OR Apache-2.0

//! Late start of a GPU: an exporter with readers begins to use one.

use crate::{
    exporter::{
        error::UseGpuError,
        resources::LinkFence,
        state::{Shared, Wanting},
    },
    fence::Signals,
    memory,
};
use frameshare_cuda::context::Context;
use std::sync::Arc;

/// Uses a GPU from now on. Called by the publishing thread: no frame is published in between.
pub fn use_gpu(shared: &Shared, gpu: &Arc<Context>) -> Result<(), UseGpuError> {
    let wanted = shared.with(|state| state.config().memory);
    let (memory, signals) = (memory::select::select(wanted, Some(gpu))?, Signals::new(Some(gpu))?);
    shared.note_gpu();
    let Some(wanting) = shared.with(|state| state.use_gpu(gpu, memory, signals)) else {
        return Err(UseGpuError::HasGpu);
    };
    for Wanting { id, entries, fence, local } in wanting {
        // Driver calls, which take long.
        let made = LinkFence::new(&fence, Some(gpu), entries, local, &shared.label);
        shared.with(|state| state.give_fence(id, gpu, fence, made));
    }
    Ok(())
}
