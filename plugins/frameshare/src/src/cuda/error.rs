// SPDX-License-Identifier: MIT OR Apache-2.0

//! Failures on the GPU.

use frameshare::fence::FenceError;

/// Error of a frame in GPU memory that cannot be pushed downstream.
#[derive(Debug, thiserror::Error)]
pub(in crate::src) enum CudaError {
    #[error("only raw video is supported in GPU memory")]
    NotVideo,
    #[error(transparent)]
    Fence(#[from] FenceError),
    #[error("GStreamer's CUDA library does not wrap memory of {0}")]
    NotWrapped(gst_video::VideoFormat),
    #[error("copying the frame on the GPU failed: {0}")]
    Copy(String),
    #[error(transparent)]
    Meta(#[from] glib::BoolError),
}
