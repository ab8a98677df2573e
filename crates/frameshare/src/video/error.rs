// SPDX-License-Identifier: MIT OR Apache-2.0

//! Errors of formats and layouts.

/// The reason why a format or a plane is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VideoError {
    /// The exporter has not announced a format.
    #[error("the exporter has announced no format: call Exporter::set_format before the first frame")]
    NoFormat,
    /// The stream is not raw video.
    #[error("frames are {media}, not video/x-raw")]
    NotRaw {
        /// The media type of the caps.
        media: String,
    },
    /// The format is not in the table.
    #[error("unknown format {name:?}: frameshare knows those of GStreamer up to 1.26")]
    UnknownFormat {
        /// The name in the caps.
        name: String,
    },
    /// A format whose frames have no planes in their memory, such as `DMA_DRM`.
    #[error("frames of format {name} have no planes")]
    NoPlanes {
        /// Name of the format.
        name: &'static str,
    },
    /// A field of the caps is missing or invalid.
    #[error("missing or invalid {field} in the caps {caps:?}")]
    Caps {
        /// The field.
        field: &'static str,
        /// The caps.
        caps: String,
    },
    /// The image is so large that its size overflows.
    #[error("frames of {width}x{height} are too large")]
    TooLarge {
        /// Width in pixels.
        width: u32,
        /// Height in pixels.
        height: u32,
    },
    /// The frame has another number of planes than its format.
    #[error("the frame has {found} planes, but format {name} has {expected}")]
    PlaneCount {
        /// Planes of the frame.
        found: usize,
        /// Name of the format.
        name: &'static str,
        /// Planes of the format.
        expected: usize,
    },
    /// No plane has this number.
    #[error("no plane {index}: format {name} has {count}")]
    NoSuchPlane {
        /// The number, counted from 0.
        index: usize,
        /// Name of the format.
        name: &'static str,
        /// Planes of the format.
        count: usize,
    },
    /// Rows of a plane are not inside the frame.
    #[error("plane {index} at {offset} with stride {stride} exceeds the frame of {size} bytes")]
    OutOfBounds {
        /// The plane.
        index: usize,
        /// Its offset in bytes.
        offset: u64,
        /// Its stride, as in the descriptor.
        stride: i32,
        /// Size of the frame in bytes.
        size: u64,
    },
    /// Rows of a plane share bytes.
    #[error("rows of plane {index} overlap: their stride is {stride}, but a row has {row_bytes} bytes")]
    OverlappingRows {
        /// The plane.
        index: usize,
        /// Its stride, as in the descriptor.
        stride: i32,
        /// Bytes of a row.
        row_bytes: u64,
    },
    /// The image is a part of the frame's memory, which only the metadata of GStreamer names
    /// ([`CROPPED`](super::CROPPED)).
    #[error("the frame is cropped by a GstVideoCropMeta: put videoconvert before framesharesink")]
    Cropped,
    /// The plane has no rows in host memory: it is in GPU memory, or consists of tiles.
    #[error("plane {index} is {what}")]
    NoRows {
        /// The plane.
        index: usize,
        /// Its memory or arrangement.
        what: &'static str,
    },
    /// The target of a copy is too small for the rows.
    #[error("{len} bytes do not hold {rows} rows of {row_bytes} bytes with stride {stride}")]
    Target {
        /// Bytes of the target.
        len: usize,
        /// Rows of the plane.
        rows: u32,
        /// Bytes of a row.
        row_bytes: usize,
        /// Stride of the target.
        stride: usize,
    },
}
