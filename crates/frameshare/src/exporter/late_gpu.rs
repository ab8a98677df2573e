// SPDX-License-Identifier: MIT OR Apache-2.0

//! Late start of a GPU: an exporter with readers begins to use one.

use super::{
    admission::{Fence, Way},
    departure::Ending,
    shared::{SetupError, Shared},
    state::State,
};
use crate::{
    fence::Signals,
    memory::{self, select::Selected},
};
use frameshare_cuda::context::Context;
use frameshare_protocol::{FenceKind, MemoryKind, message::Reason};
use std::sync::Arc;

/// A reader that needs a fence.
struct Wanting {
    id: u64,
    entries: usize,
    fence: Selected<FenceKind>,
    local: bool,
}

/// Uses a GPU from now on. Called by the publishing thread: no frame is published in between.
pub(super) fn use_gpu(shared: &Shared, gpu: &Arc<Context>) -> Result<(), SetupError> {
    let wanted = shared.with(|state| state.config.memory);
    let (memory, signals) = (memory::select::select(wanted, Some(gpu))?, Signals::new(Some(gpu))?);
    let Some(wanting) = shared.with(|state| state.use_gpu(gpu, memory, signals)) else {
        return Err("the exporter has a GPU already".into());
    };
    for Wanting { id, entries, fence, local } in wanting {
        // Driver calls, which take long.
        let made = Fence::new(&fence, Some(gpu), entries, local);
        shared.with(|state| {
            let Some(index) = state.links.iter().position(|link| link.info.id == id) else { return };
            let failed = |error: SetupError| {
                Ending::new(Reason::Failed, format!("the exporter cannot serve it on the GPU: {error}"))
            };
            let uuid = gpu.device().uuid().0;
            let given = made.map_err(failed).and_then(|made| state.links[index].use_gpu(uuid, fence, made));
            if let Err(ending) = given {
                state.drop_link(index, &ending);
            }
        });
    }
    Ok(())
}

impl State {
    /// Records the GPU, and decides how the present readers get frames on it. Returns none if there
    /// is one already.
    fn use_gpu(
        &mut self,
        gpu: &Arc<Context>,
        memory: Selected<MemoryKind>,
        signals: Signals,
    ) -> Option<Vec<Wanting>> {
        if self.config.gpu.is_some() {
            return None;
        }
        (self.config.gpu, self.memory, self.signals) = (Some(gpu.clone()), memory, signals);
        self.renew = true;
        let (mut wanting, mut endings) = (Vec::new(), Vec::new());
        for index in 0..self.links.len() {
            // Removed so that the reader is not compared with itself.
            let link = self.links.remove(index);
            match self.way_of(&link.peer, &link.hello) {
                Ok(Way { fence, downloads, cannot_adopt, local }) => {
                    self.links.insert(index, link);
                    let link = &mut self.links[index];
                    (link.downloads, link.cannot_adopt) = (downloads, cannot_adopt);
                    if fence.kind != FenceKind::None {
                        let (id, entries) = (link.info.id, link.info.credit as usize);
                        wanting.push(Wanting { id, entries, fence, local });
                    }
                    continue;
                }
                Err(ending) => endings.push((link.info.id, ending)),
            }
            self.links.insert(index, link);
        }
        for (id, ending) in endings {
            self.end_link_of(id, &ending, false);
        }
        Some(wanting)
    }
}
