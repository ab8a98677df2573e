// SPDX-License-Identifier: MIT OR Apache-2.0

//! The property of both elements that selects the kind of fence.

use frameshare::FenceKind;

/// The kind of fence that orders GPU work of both sides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, glib::Enum)]
#[enum_type(name = "GstFrameshareFence")]
#[non_exhaustive]
pub enum FrameshareFence {
    /// Timeline values if both sides can, else events.
    #[default]
    #[enum_value(name = "Timeline words where both sides can, else events", nick = "auto")]
    Auto,
    /// CUDA's interprocess events.
    #[enum_value(name = "CUDA's interprocess events", nick = "event")]
    Event,
    /// Values in shared memory that GPUs write and wait for.
    #[enum_value(name = "Words in shared memory that GPUs write and wait for", nick = "timeline")]
    Timeline,
}

crate::properties::enums!(FrameshareFence);

impl FrameshareFence {
    /// The selected kind, if one is.
    pub(crate) fn kind(self) -> Option<FenceKind> {
        match self {
            Self::Auto => None,
            Self::Event => Some(FenceKind::Event),
            Self::Timeline => Some(FenceKind::Timeline),
        }
    }
}
