//! The properties that choose what frames lie in and how they get there.

use frameshare::MemoryKind;

/// The memory that frames lie in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, glib::Enum)]
#[enum_type(name = "GstFrameshareMemory")]
pub enum Memory {
    /// What frames arrive in: the GPU's best kind, or the host's.
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
    /// The one kind that is asked for, if one is.
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

/// Whether a decoder's own surfaces are shared where they lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, glib::Enum)]
#[enum_type(name = "GstFrameshareExport")]
pub enum Export {
    /// They are, as long as every reader can read them.
    #[default]
    #[enum_value(name = "In place where every reader can read it there, else copied", nick = "auto")]
    Auto,
    /// They are; what cannot be is an error.
    #[enum_value(name = "In place; memory that cannot be shared so is an error", nick = "in-place")]
    InPlace,
    /// They are copied.
    #[enum_value(name = "Copied, so that the decoder gets its surfaces back at once", nick = "copy")]
    Copy,
}
