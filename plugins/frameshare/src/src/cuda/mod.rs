// SPDX-License-Identifier: MIT OR Apache-2.0

//! CUDA reading: negotiation with downstream, and the context and stream for frames in CUDA memory.

mod copier;
mod frames;
mod layout;

use super::{FrameshareSrc, log::CAT};
use crate::ffi::cuda::{engine_context, engine_stream};
use copier::Copier;
pub(super) use frames::{CudaError, to_buffer};
use frameshare::reader::{ConnectError, Reader};
use gst_cuda::context::ElementContext;
use std::sync::Arc;

/// Kinds of memory that downstream accepts for raw video.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Takes {
    System,
    Both,
    Cuda,
}

impl Takes {
    /// Returns the kinds of memory in these caps. Caps that accept anything get system memory,
    /// which every element can read; CUDA memory must be named.
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

/// Returns these caps with the feature of the memory that the frames are in; only raw video
/// changes.
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

/// Prepares to read in CUDA memory if downstream accepts it. Fails only if downstream accepts
/// nothing else or a device was requested.
///
/// # Errors
///
/// The reason why CUDA memory cannot be used.
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
            Some(device) => format!("the driver provides no context on GPU {device}: correct cuda-device-id"),
            None => "the driver provides no context on any GPU".into(),
        })?;
        Cuda::new(context)
    });
    match opened {
        Ok(cuda) => Ok(Some(cuda)),
        Err(error) if takes == Takes::Both && device.is_none() => {
            gst::info!(CAT, obj = element, "Reading frames in system memory: {error}");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Prepares to read on another device than the first; none if the driver provides no context there.
pub(super) fn open_on(shared: &ElementContext, device: u32) -> Option<Cuda> {
    Cuda::new(shared.replace(device)?).ok()
}

/// CUDA stream, as GStreamer's object and as the engine's.
struct Line {
    gst: gst_cuda::Stream,
    engine: frameshare_cuda::stream::Stream,
}

impl Line {
    fn new(gst: gst_cuda::Stream, context: &Arc<frameshare_cuda::context::Context>) -> Self {
        Self { engine: engine_stream(context, &gst), gst }
    }
}

/// CUDA state of a connection. Owned by the streaming thread.
pub(super) struct Cuda {
    context: gst_cuda::Context,
    /// The same context, as the engine's object.
    engine: Arc<frameshare_cuda::context::Context>,
    /// Used if downstream proposes no stream.
    own: gst_cuda::Stream,
    /// Stream in use.
    line: Line,
    copier: Copier,
    /// Negative control of the context-wide record: releases wait only for the memory's own stream.
    #[cfg(test)]
    pub releases_in_order: bool,
}

impl Cuda {
    /// Prepares to read in a context that the pipeline shares.
    fn new(context: gst_cuda::Context) -> Result<Self, String> {
        let engine = engine_context(&context).map_err(|error| error.to_string())?;
        let own = gst_cuda::Stream::new(&context).ok_or("the driver provides no stream")?;
        let line = Line::new(own.clone(), &engine);
        Ok(Self {
            copier: Copier::new(&engine),
            context,
            engine,
            own,
            line,
            #[cfg(test)]
            releases_in_order: false,
        })
    }

    /// Returns the context as the engine's object.
    pub fn engine(&self) -> &Arc<frameshare_cuda::context::Context> {
        &self.engine
    }

    /// Returns the ordinal of the exporter's GPU if it differs from this context's GPU and is
    /// visible to this process.
    pub fn device_of_exporter(&self, connected: &Result<Reader, ConnectError>) -> Option<u32> {
        let theirs = match connected {
            Ok(reader) => reader.exporter_gpu()?,
            Err(ConnectError::GpuNotVisible { gpu } | ConnectError::GpuOutOfReach { gpu, .. }) => *gpu,
            Err(_) => return None,
        };
        let is_another = self.engine.device().uuid() != theirs;
        let device =
            frameshare_cuda::device::Device::with_uuid(theirs).ok().flatten().filter(|_| is_another)?;
        u32::try_from(device.ordinal()).ok()
    }

    /// Makes frames wait on downstream's stream from now on, if it proposes one of this context.
    /// Downstream's work on that stream is then ordered behind the frames without a CPU wait.
    pub fn adopt(&mut self, proposed: Option<&gst_cuda::Stream>) {
        let stream = proposed.filter(|stream| stream.context() == self.context).unwrap_or(&self.own);
        if *stream != self.line.gst {
            self.line = Line::new(stream.clone(), &self.engine);
        }
    }
}

#[cfg(test)]
mod tests;
