// SPDX-License-Identifier: MIT OR Apache-2.0

//! The CUDA stream that frames wait on, and the caps of frames in CUDA memory.

use crate::ffi::cuda::engine_stream;
use std::sync::Arc;

/// CUDA stream, as GStreamer's object and as the engine's.
pub(super) struct Line {
    pub gst: gst_cuda::Stream,
    pub engine: frameshare_cuda::stream::Stream,
}

impl Line {
    pub fn new(gst: gst_cuda::Stream, context: &Arc<frameshare_cuda::context::Context>) -> Self {
        Self { engine: engine_stream(context, &gst), gst }
    }
}

/// Returns these caps with the feature of the memory that the frames are in; only raw video
/// changes.
pub(in crate::src) fn caps_in(caps: &gst::Caps, in_cuda_memory: bool) -> gst::Caps {
    let mut caps = caps.clone();
    let is_raw = caps.structure(0).is_some_and(|structure| structure.name() == "video/x-raw");
    let is_cuda = caps.features(0).is_some_and(|features| features.contains(gst_cuda::CAPS_FEATURE));
    if is_raw && is_cuda != in_cuda_memory {
        let caps = caps.make_mut();
        if let Some(features) = caps.features_mut(0) {
            if in_cuda_memory {
                features.remove("memory:SystemMemory");
                features.add(gst_cuda::CAPS_FEATURE);
            } else {
                features.remove(gst_cuda::CAPS_FEATURE);
            }
        }
    }
    caps
}
