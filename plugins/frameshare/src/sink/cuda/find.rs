// SPDX-License-Identifier: MIT OR Apache-2.0

//! Selection of the sink's GPU, if it uses one.
//!
//! A context costs some hundred MB of GPU memory. If nothing asks for a GPU, and upstream may send
//! frames in any memory, the sink therefore waits for the first caps with CUDA memory.

use super::{Gpu, NoGpu};
use crate::sink::{caps, imp::FrameshareSink, kinds::Memory, settings::Settings, stream::Stream};
use gst::{prelude::*, subclass::prelude::*};

/// Caps that upstream may send.
enum Upstream {
    /// Some name CUDA memory.
    Cuda,
    /// Any, or not known yet.
    Unknown,
    /// None in CUDA memory.
    NoCuda,
}

impl FrameshareSink {
    /// Returns the GPU to share frames on, or the reason why there is none; an error if one is
    /// asked for.
    pub(in crate::sink) fn find_gpu(
        &self,
        settings: &Settings,
    ) -> Result<Result<Gpu, NoGpu>, gst::ErrorMessage> {
        let never = |why: String| Ok(Err(NoGpu::Never(why)));
        match settings.memory {
            Memory::Host => never("host memory is asked for".into()),
            Memory::Auto => match self.upstream() {
                Upstream::NoCuda => never("upstream sends no CUDA memory".into()),
                Upstream::Unknown if settings.device().is_none() => match gst_cuda::load() {
                    Ok(()) => Ok(Err(NoGpu::NotYet)),
                    Err(missing) => never(missing.to_string()),
                },
                Upstream::Unknown | Upstream::Cuda => Ok(self.open_gpu(settings).map_err(NoGpu::Never)),
            },
            asked => self.open_gpu(settings).map(Ok).map_err(|why| {
                let nick =
                    glib::EnumValue::from_value(&asked.to_value()).map(|(_, value)| value.nick().to_owned());
                let nick = nick.unwrap_or_default();
                gst::error_msg!(gst::ResourceError::NotFound, ("memory={} cannot be had: {}", nick, why))
            }),
        }
    }

    /// Creates or finds a CUDA context.
    fn open_gpu(&self, settings: &Settings) -> Result<Gpu, String> {
        gst_cuda::load().map_err(|error| error.to_string())?;
        let context = self.context.ensure(&*self.obj(), settings.device());
        let context = context.ok_or_else(|| match settings.device() {
            Some(device) => format!("there is no CUDA context to be had on device {device}"),
            None => "there is no CUDA context to be had".into(),
        })?;
        Gpu::new(context)
    }

    /// Makes the stream use a GPU, when frames in CUDA memory arrive. Returns the reason if it
    /// cannot.
    pub(in crate::sink) fn begin_gpu(&self, stream: &Stream) -> Option<String> {
        if !stream.awaits_gpu() {
            return stream.memory_why().map(Into::into);
        }
        let settings = self.settings.read().clone();
        self.open_gpu(&settings).and_then(|gpu| stream.use_gpu(gpu)).err()
    }

    /// Returns whether it has a CUDA context.
    #[cfg(test)]
    pub(crate) fn has_context(&self) -> bool {
        self.context.get().is_some()
    }

    /// Caps of the pad's peer, if it has one yet.
    fn upstream(&self) -> Upstream {
        let Some(pad) = self.obj().static_pad("sink").filter(|pad| pad.is_linked()) else {
            return Upstream::Unknown;
        };
        let sent = pad.peer_query_caps(None);
        // ANY features name none.
        let named = |features: &gst::CapsFeaturesRef| !features.is_any() && caps::names_cuda(features);
        if sent.iter_with_features().any(|(_, features)| named(features)) {
            Upstream::Cuda
        } else if sent.is_any() || caps::is_cuda(&sent) {
            Upstream::Unknown
        } else {
            Upstream::NoCuda
        }
    }
}
