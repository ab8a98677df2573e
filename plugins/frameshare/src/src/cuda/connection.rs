// SPDX-License-Identifier: MIT OR Apache-2.0

//! The context and stream of one connection.

use super::{copier::Copier, line::Line};
use crate::ffi::cuda::engine_context;
use frameshare::reader::{ConnectError, Reader};
use std::sync::Arc;

/// CUDA state of a connection. Owned by the streaming thread.
pub(in crate::src) struct Cuda {
    pub(super) context: gst_cuda::Context,
    /// The same context, as the engine's object.
    pub(super) engine: Arc<frameshare_cuda::context::Context>,
    /// Used if downstream proposes no stream.
    pub(super) own: gst_cuda::Stream,
    /// Stream in use.
    pub(super) line: Line,
    pub(super) copier: Copier,
    /// Negative control of the context-wide record: releases wait only for the memory's own stream.
    #[cfg(test)]
    pub releases_in_order: bool,
}

impl Cuda {
    /// Prepares to read in a context that the pipeline shares.
    pub(super) fn new(context: gst_cuda::Context) -> Result<Self, String> {
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
