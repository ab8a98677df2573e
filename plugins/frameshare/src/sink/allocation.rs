// SPDX-License-Identifier: MIT OR Apache-2.0

//! Allocation proposal: the memory that upstream is offered.

use super::{
    cuda::SURFACES,
    imp::FrameshareSink,
    kinds::{Export, Memory},
    log::CAT,
};
use crate::{
    drm,
    pool::{HostPool, cuda::CudaPool},
};
use gst::{prelude::*, subclass::prelude::*};

/// Number of surfaces for a decoder whose surfaces are copied and returned at once.
const COPIED_SURFACES: u32 = 4;

impl FrameshareSink {
    /// Answers an allocation query.
    pub(super) fn propose(&self, query: &mut gst::query::Allocation) -> Result<(), gst::LoggableError> {
        let (caps, need_pool) = query.get_owned();
        let caps = caps.ok_or_else(|| gst::loggable_error!(CAT, "allocation query without caps"))?;
        if drm::is_drm(&caps) {
            // Its buffers are the device's.
            query.add_allocation_meta::<gst_video::VideoMeta>(None);
            return Ok(());
        }
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
        stream.end_span();
        if !need_pool {
            return Ok(());
        }
        if is_cuda {
            // This query may come before the caps.
            self.begin_gpu(&stream);
        }
        if let (Some(gpu), true) = (stream.gpu(), is_cuda) {
            let pad = self.obj().static_pad("sink");
            if let Some(pad) = &pad {
                stream.listen_to_decoder(pad);
            }
            let theirs = pad.and_then(|pad| gst_cuda::Context::of_peer(&pad));
            if theirs.is_some_and(|theirs| theirs.handle() != gpu.context.handle()) {
                // NVIDIA's decoders take the stream of any pool, and fail with this one's.
                gst::info!(CAT, imp = self, "upstream is in another CUDA context: frames will be copied");
                return Ok(());
            }
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
        if stream.gpu().is_some() && self.settings.read().memory != Memory::Auto {
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

#[cfg(test)]
mod tests {
    use gst::prelude::*;
    use gst_cuda::context::ElementContext;
    use std::{io::Write as _, sync::Arc};

    /// Returns an upstream pad that tells its context.
    fn upstream(context: &Arc<ElementContext>) -> gst::Pad {
        let (context, element) = (context.clone(), gst::ElementFactory::make("identity").build().unwrap());
        gst::Pad::builder(gst::PadDirection::Src)
            .query_function(move |pad, parent, query| match query.type_() {
                gst::QueryType::Context => context.query(&element, query),
                _ => gst::Pad::query_default(pad, parent, query),
            })
            .build()
    }

    /// NVIDIA's decoders take the stream of any pool, and fail with one of another context.
    #[test]
    fn upstream_in_another_context_is_offered_no_pool() {
        gst::init().unwrap();
        if let Err(missing) = gst_cuda::load() {
            let line = format!("SKIP framesharesink/other-context-no-pool: {missing}\n");
            std::io::stdout().write_all(line.as_bytes()).unwrap();
            return;
        }
        crate::plugin_register_static().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let sink = gst::ElementFactory::make("framesharesink")
            .property("socket-path", folder.path().join("s").to_str().unwrap())
            .property("async", false)
            .build()
            .unwrap();
        let context = Arc::new(ElementContext::default());
        context.replace(0).unwrap();
        let pad = upstream(&context);
        pad.set_active(true).unwrap();
        pad.link(&sink.static_pad("sink").unwrap()).unwrap();
        sink.set_state(gst::State::Playing).unwrap();
        let caps = "video/x-raw(memory:CUDAMemory),format=NV12,width=320,height=240,framerate=30/1";
        let caps: gst::Caps = caps.parse().unwrap();
        assert!(pad.push_event(gst::event::StreamStart::new("test")));
        assert!(pad.push_event(gst::event::Caps::new(&caps)));
        let pools = || {
            let mut query = gst::query::Allocation::new(Some(&caps), true);
            assert!(pad.peer_query(&mut query));
            query.allocation_pools().len()
        };
        assert_eq!(pools(), 1);
        // Another decoder takes the place of the first one.
        context.replace(0).unwrap();
        assert_eq!(pools(), 0);
        sink.set_state(gst::State::Null).unwrap();
    }
}
