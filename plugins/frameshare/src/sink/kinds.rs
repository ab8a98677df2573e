// SPDX-License-Identifier: MIT OR Apache-2.0

//! Property types that select the memory of frames and the path to it.

use frameshare::MemoryKind;

/// The memory of frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, glib::Enum)]
#[enum_type(name = "GstFrameshareMemory")]
pub enum Memory {
    /// The memory in which frames arrive: the best kind of the GPU, or host memory.
    #[default]
    #[enum_value(name = "The best kind of the memory that frames arrive in", nick = "auto")]
    Auto,
    /// Memory of the host.
    #[enum_value(name = "Host memory; frames of a GPU are not accepted", nick = "host")]
    Host,
    /// CUDA's virtual memory management.
    #[enum_value(name = "GPU memory of CUDA's virtual memory management", nick = "vmm")]
    Vmm,
    /// CUDA's stream-ordered pools.
    #[enum_value(name = "GPU memory of a stream-ordered CUDA pool", nick = "pool")]
    Pool,
    /// CUDA's first interface for sharing.
    #[enum_value(name = "GPU memory that CUDA shares by legacy handles", nick = "legacy")]
    Legacy,
}

impl Memory {
    /// The selected kind, if one is.
    pub(super) fn kind(self) -> Option<MemoryKind> {
        match self {
            Self::Auto => None,
            Self::Host => Some(MemoryKind::Host),
            Self::Vmm => Some(MemoryKind::Vmm),
            Self::Pool => Some(MemoryKind::Pool),
            Self::Legacy => Some(MemoryKind::Legacy),
        }
    }
}

/// The treatment of lossless readers that do not keep up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, glib::Enum)]
#[enum_type(name = "GstFrameshareSlowReaders")]
pub enum SlowReaders {
    /// Waited for, or disconnected if upstream is live.
    #[default]
    #[enum_value(name = "Waited for, or disconnected if upstream is live", nick = "auto")]
    Auto,
    /// Waited for, at most `reader-timeout`.
    #[enum_value(name = "Waited for, at most reader-timeout", nick = "wait")]
    Wait,
    /// Disconnected.
    #[enum_value(name = "Disconnected as soon as no further frame can wait for it", nick = "disconnect")]
    Disconnect,
}

/// The layout of frames of raw video in system memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, glib::Enum)]
#[enum_type(name = "GstFrameshareLayout")]
pub enum Layout {
    /// Upstream's, until two readers copy each frame because of it.
    #[default]
    #[enum_value(name = "The decoder's, until two readers copy each frame because of it", nick = "auto")]
    Auto,
    /// Upstream's.
    #[enum_value(name = "The decoder's, which may pad rows: no copy here", nick = "decoder")]
    Decoder,
    /// The default layout of the format.
    #[enum_value(name = "The default layout of the format, which every reader takes", nick = "compact")]
    Compact,
}

/// Whether a decoder's own surfaces are shared in place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, glib::Enum)]
#[enum_type(name = "GstFrameshareExport")]
pub enum Export {
    /// In place, while every reader can read them.
    #[default]
    #[enum_value(name = "In place where every reader can read it there, else copied", nick = "auto")]
    Auto,
    /// In place; a surface that cannot be shared is an error.
    #[enum_value(name = "In place; memory that cannot be shared so is an error", nick = "in-place")]
    InPlace,
    /// Copied.
    #[enum_value(name = "Copied, so that the decoder gets its surfaces back at once", nick = "copy")]
    Copy,
}
