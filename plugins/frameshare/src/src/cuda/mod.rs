//! Frames in CUDA memory: whether downstream takes them, and in which context and on which stream they are read.

mod copies;
mod frames;
mod place;
mod used;

use super::{FrameshareSrc, imp::CAT};
use crate::gpu::{engine_context, engine_stream};
use copies::Copies;
pub(super) use frames::{CudaError, to_buffer};
use frameshare::{
    cuda,
    reader::{ConnectError, Reader},
};
use gst_cuda::context::ElementContext;
use std::sync::Arc;
pub(super) use used::used_on;

/// Which memory downstream takes raw video in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Takes {
    System,
    Both,
    Cuda,
}

impl Takes {
    /// What these caps say. Who takes anything gets system memory, which nobody has to know anything about: CUDA
    /// memory has to be named.
    pub fn of(caps: &gst::CapsRef) -> Self {
        let names = |features: &gst::CapsFeaturesRef, name| !features.is_any() && features.contains(name);
        let cuda = caps.iter_with_features().any(|(_, features)| names(features, gst_cuda::CAPS_FEATURE));
        let system = caps.is_any()
            || caps.iter_with_features().any(|(_, features)| {
                features.is_any() || features.is_empty() || features.contains("memory:SystemMemory")
            });
        match (cuda, system) {
            (false, _) => Self::System,
            (true, true) => Self::Both,
            (true, false) => Self::Cuda,
        }
    }
}

/// These caps of raw video for the memory that its frames come in.
pub(super) fn caps_in(caps: &gst::Caps, in_cuda_memory: bool) -> gst::Caps {
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

/// Gets ready to read in CUDA memory, where downstream takes that; an error says why it cannot be, and downstream takes
/// nothing else or a device was asked for.
pub(super) fn open(
    element: &FrameshareSrc,
    shared: &ElementContext,
    takes: Takes,
    device: Option<u32>,
) -> Result<Option<Cuda>, String> {
    gst::debug!(CAT, obj = element, "Downstream takes {takes:?}");
    if takes == Takes::System {
        return Ok(None);
    }
    let opened = gst_cuda::load().map_err(|error| error.to_string()).and_then(|()| {
        let context = shared.ensure(element, device).ok_or_else(|| match device {
            Some(device) => format!("the driver gives no context on GPU {device}: correct cuda-device-id"),
            None => "the driver gives no context on any GPU".into(),
        })?;
        Cuda::new(context)
    });
    match opened {
        Ok(cuda) => Ok(Some(cuda)),
        Err(error) if takes == Takes::Both && device.is_none() => {
            gst::info!(CAT, obj = element, "Frames will be read in system memory: {error}");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Gets ready to read on another device than the one that was found first; none where the driver gives no context there.
pub(super) fn open_on(shared: &ElementContext, device: u32) -> Option<Cuda> {
    Cuda::new(shared.replace(device)?).ok()
}

/// A stream, as GStreamer knows it and as the engine does.
struct Line {
    gst: gst_cuda::Stream,
    engine: cuda::stream::Stream,
}

impl Line {
    fn new(gst: gst_cuda::Stream, context: &Arc<cuda::context::Context>) -> Self {
        Self { engine: engine_stream(context, &gst), gst }
    }
}

/// What frames are read with. It belongs to the streaming thread.
pub(super) struct Cuda {
    context: gst_cuda::Context,
    /// The same one, as the engine knows it.
    engine: Arc<cuda::context::Context>,
    /// For whom proposes none.
    own: gst_cuda::Stream,
    /// The one in use.
    line: Line,
    copies: Copies,
    /// Frames go back in the order of their memory's stream alone, to show what the context-wide record is good for.
    #[cfg(test)]
    pub releases_in_order: bool,
}

impl Cuda {
    /// Gets ready to read in a context that the pipeline shares.
    fn new(context: gst_cuda::Context) -> Result<Self, String> {
        let engine = engine_context(&context).map_err(|error| error.to_string())?;
        let own = gst_cuda::Stream::new(&context).ok_or("the driver gives no stream")?;
        let line = Line::new(own.clone(), &engine);
        Ok(Self {
            copies: Copies::new(&engine),
            context,
            engine,
            own,
            line,
            #[cfg(test)]
            releases_in_order: false,
        })
    }

    /// The context, for the engine.
    pub fn engine(&self) -> &Arc<cuda::context::Context> {
        &self.engine
    }

    /// The number of the exporter's GPU, if that is another one than this context's and this process sees it.
    pub fn device_of_exporter(&self, connected: &Result<Reader, ConnectError>) -> Option<u32> {
        let theirs = match connected {
            Ok(reader) => reader.exporter_gpu()?,
            Err(ConnectError::GpuOutOfReach { gpu, .. }) => *gpu,
            Err(_) => return None,
        };
        let is_another = self.engine.device().uuid() != theirs;
        let device = cuda::device::Device::with_uuid(theirs).ok().flatten().filter(|_| is_another)?;
        u32::try_from(device.ordinal()).ok()
    }

    /// Has frames waited for on downstream's stream from now on, if it proposes one of this context: what it does with
    /// them there is in their order without anyone's waiting.
    pub fn adopt(&mut self, proposed: Option<&gst_cuda::Stream>) {
        let stream = proposed.filter(|stream| stream.context() == self.context).unwrap_or(&self.own);
        if *stream != self.line.gst {
            self.line = Line::new(stream.clone(), &self.engine);
        }
    }
}

#[cfg(test)]
mod tests;
