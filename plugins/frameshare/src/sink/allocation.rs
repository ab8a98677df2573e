// SPDX-License-Identifier: MIT OR Apache-2.0

//! Allocation proposal: the memory that upstream is offered.

use super::{
    cuda::SURFACES,
    imp::FrameshareSink,
    kinds::{Export, Memory},
    log::CAT,
};
use crate::{
    pool::{HostPool, cuda::CudaPool},
    sync::lock,
};
use gst::subclass::prelude::*;

/// Number of surfaces for a decoder whose surfaces are copied and returned at once.
const COPIED_SURFACES: u32 = 4;

impl FrameshareSink {
    /// Answers an allocation query.
    pub(super) fn propose(&self, query: &mut gst::query::Allocation) -> Result<(), gst::LoggableError> {
        let (caps, need_pool) = query.get_owned();
        let caps = caps.ok_or_else(|| gst::loggable_error!(CAT, "allocation query without caps"))?;
        let Some(info) = crate::pool::video_info(&caps) else { return Ok(()) };
        let stream = self.stream();
        let is_cuda = super::caps::is_cuda(&caps);
        // Without it, upstream writes the default layout.
        let is_compact = !is_cuda && stream.as_ref().is_some_and(|stream| stream.is_compact());
        if !is_compact {
            query.add_allocation_meta::<gst_video::VideoMeta>(None);
        }
        let Some(stream) = stream else { return Ok(()) };
        // After this query, too, a decoder may be replaced by another one.
        self.forget_prepared();
        stream.surfaces.end_span(&stream.exporter);
        if !need_pool {
            return Ok(());
        }
        if is_cuda {
            // This query may come before the caps.
            self.begin_gpu(&stream);
        }
        if let (Some(gpu), true) = (stream.gpu(), is_cuda) {
            match CudaPool::new(&stream.slots, &gpu.context, &gpu.stream, &caps) {
                Some(pool) => {
                    let surfaces = if stream.export == Export::Copy { COPIED_SURFACES } else { SURFACES };
                    query.add_allocation_pool(Some(&pool), pool.size(), surfaces, 0);
                }
                None => gst::warning!(CAT, imp = self, "no pool for {caps}: frames will be copied"),
            }
            return Ok(());
        }
        // Uploads can come from any memory.
        if stream.gpu().is_some() && lock(&self.settings).memory != Memory::Auto {
            return Ok(());
        }
        let size = u32::try_from(info.size()).map_err(|_| {
            gst::loggable_error!(CAT, "frames of {} bytes are too big for a pool", info.size())
        })?;
        // No maximum: libav's decoders refuse small ones, and the exporter has one.
        match HostPool::new(&stream.slots, &caps, size, !is_compact) {
            Some(pool) => query.add_allocation_pool(Some(&pool), size, 0, 0),
            None => gst::warning!(CAT, imp = self, "no pool for {caps}: frames will be copied"),
        }
        Ok(())
    }
}
