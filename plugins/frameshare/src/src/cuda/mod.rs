// SPDX-License-Identifier: MIT OR Apache-2.0

//! CUDA reading: negotiation with downstream, and the context and stream for frames in CUDA memory.

mod connection;
mod copier;
mod error;
mod frames;
mod layout;
mod line;

use super::{FrameshareSrc, log::CAT};
pub(super) use connection::Cuda;
pub(super) use error::CudaError;
pub(super) use frames::to_buffer;
use gst_cuda::context::ElementContext;
pub(super) use line::caps_in;

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

#[cfg(test)]
mod tests;
