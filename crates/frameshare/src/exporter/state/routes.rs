// SPDX-License-Identifier: MIT OR Apache-2.0

//! The routes of present readers when the exporter begins to use a GPU.

use super::{Route, State};
use crate::{
    exporter::{
        error::SetupError,
        resources::{Attachment, LinkFence},
    },
    fence::Signals,
};
use frameshare_core::{exporter::ending::Ending, selected::Selected};
use frameshare_cuda::context::Context;
use frameshare_protocol::{FenceKind, MemoryKind, message::Reason};
use std::sync::Arc;

/// A reader that needs a fence.
pub struct Wanting {
    pub id: u64,
    pub entries: usize,
    pub fence: Selected<FenceKind>,
    pub local: bool,
}

impl State {
    /// Records the GPU, and decides how the present readers get frames on it. Returns none if there
    /// is one already.
    pub fn use_gpu(
        &mut self,
        gpu: &Arc<Context>,
        memory: Selected<MemoryKind>,
        signals: Signals,
    ) -> Option<Vec<Wanting>> {
        if self.gpu().is_some() {
            return None;
        }
        self.system_mut().use_gpu(gpu);
        *self.signals_mut() = signals;
        self.slots_mut().select(memory);
        let (mut wanting, mut endings) = (Vec::new(), Vec::new());
        for index in 0..self.readers().present().len() {
            // Removed so that the reader is not compared with itself.
            let link = self.readers_mut().remove(index);
            match self.route_of(link.connection().peer(), link.hello()) {
                Ok(Route { fence, downloads, cannot_adopt, local }) => {
                    self.readers_mut().put_back(index, link);
                    let link = &mut self.readers_mut()[index];
                    link.set_route(downloads, cannot_adopt);
                    if fence.kind != FenceKind::None {
                        let (id, entries) = (link.info.id, link.info.credit as usize);
                        wanting.push(Wanting { id, entries, fence, local });
                    }
                    continue;
                }
                Err(ending) => endings.push((link.info.id, ending)),
            }
            self.readers_mut().put_back(index, link);
        }
        for (id, ending) in endings {
            self.end_link_of(id, &ending, false);
        }
        Some(wanting)
    }

    /// Gives a present reader its fence for this GPU, or ends its link.
    pub fn give_fence(
        &mut self,
        reader: u64,
        gpu: &Context,
        choice: Selected<FenceKind>,
        made: Result<LinkFence, SetupError>,
    ) {
        let Some(index) = self.readers().position(reader) else { return };
        let failed = |error: SetupError| {
            Ending::new(Reason::Failed, format!("the exporter cannot serve it on the GPU: {error}"))
        };
        let uuid = gpu.device().uuid().0;
        let given = match made {
            Err(error) if self.readers()[index].hello().host_fallback => {
                self.download_for(index, &error.to_string())
            }
            made => made.map_err(failed).and_then(|made| {
                let LinkFence { fence, events, timeline_fd } = made;
                let timeline = timeline_fd.map(|fd| Attachment::File(Arc::new(fd)));
                self.readers_mut()[index].use_gpu(uuid, choice, fence, events, timeline)
            }),
        };
        if let Err(ending) = given {
            self.drop_link(index, &ending);
        }
    }
}
