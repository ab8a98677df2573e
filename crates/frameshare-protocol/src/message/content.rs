// SPDX-License-Identifier: MIT OR Apache-2.0

//! Values that several messages contain: reasons, formats, payloads.

use serde::{Deserialize, Serialize};

/// Reason for rejecting a reader or closing a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Reason {
    /// The peer stopped normally.
    Stopped,
    /// The reader is not allowed to read this stream.
    PermissionDenied,
    /// All credit is granted to other readers.
    NoCreditLeft,
    /// The exporter does not grant this reader the `lossless` policy.
    LosslessNotGranted,
    /// Exporter and reader have no memory kind or fence kind in common.
    NothingInCommon,
    /// The reader blocked a lossless stream for longer than the exporter allows.
    TooSlow,
    /// The reader exceeded a limit of resources or time.
    LimitExceeded,
    /// The peer violated the protocol.
    Violation,
    /// The peer failed and cannot continue.
    Failed,
    /// The exporter was asked to disconnect the reader.
    Disconnected,
}

/// A caps string, and for raw video its format and size, so that applications need not parse the
/// caps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Format {
    /// GStreamer caps as text.
    pub caps: String,
    /// Set for raw video only.
    pub video: Option<Video>,
}

/// Format and size of raw video frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Video {
    /// Pixel format, as named by GStreamer, e.g. `NV12`.
    pub format: String,
    /// Width in pixels.
    pub width: u32,
    /// Height in rows.
    pub height: u32,
}

/// Payload bytes, in the message or, if too large, in a sealed memfd sent with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Payload {
    /// The bytes.
    Inline(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Size of the memfd in bytes.
    Sealed(u64),
}
