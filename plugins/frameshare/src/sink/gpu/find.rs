//! Whether the sink shares frames on a GPU, and on which.

use super::Gpu;
use crate::sink::{caps, imp::FrameshareSink, kinds::Memory, settings::Settings};
use gst::{prelude::*, subclass::prelude::*};

impl FrameshareSink {
    /// The GPU to share frames on, or why there is none; an error if one is asked for.
    pub(in crate::sink) fn find_gpu(
        &self,
        settings: &Settings,
    ) -> Result<Result<Gpu, String>, gst::ErrorMessage> {
        let find = || {
            gst_cuda::load().map_err(|error| error.to_string())?;
            let context = self.context.ensure(&*self.obj(), settings.device());
            let context = context.ok_or_else(|| match settings.device() {
                Some(device) => format!("there is no CUDA context to be had on device {device}"),
                None => "there is no CUDA context to be had".into(),
            })?;
            Gpu::new(context)
        };
        match settings.memory {
            Memory::Host => Ok(Err("host memory is asked for".into())),
            Memory::Auto if !self.upstream_may_send_cuda() => Ok(Err("upstream sends no CUDA memory".into())),
            Memory::Auto => Ok(find()),
            asked => find().map(Ok).map_err(|why| {
                let nick =
                    glib::EnumValue::from_value(&asked.to_value()).map(|(_, value)| value.nick().to_owned());
                let nick = nick.unwrap_or_default();
                gst::error_msg!(gst::ResourceError::NotFound, ("memory={} cannot be had: {}", nick, why))
            }),
        }
    }

    /// Whether the pad's peer, if it has one yet, can send frames in CUDA memory.
    fn upstream_may_send_cuda(&self) -> bool {
        let pad = self.obj().static_pad("sink").filter(|pad| pad.is_linked());
        pad.is_none_or(|pad| {
            let sent = pad.peer_query_caps(None);
            sent.is_any() || caps::is_cuda(&sent)
        })
    }
}
