//! The property that chooses the kind of fence, which both elements have.

use frameshare::FenceKind;

/// How the two sides tell each other that GPU work on a frame is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, glib::Enum)]
#[enum_type(name = "GstFrameshareFence")]
#[non_exhaustive]
pub enum FrameshareFence {
    /// Timeline words where both sides can, else events.
    #[default]
    #[enum_value(name = "Timeline words where both sides can, else events", nick = "auto")]
    Auto,
    /// CUDA's interprocess events.
    #[enum_value(name = "CUDA's interprocess events", nick = "event")]
    Event,
    /// Words in shared memory that GPUs write and wait for.
    #[enum_value(name = "Words in shared memory that GPUs write and wait for", nick = "timeline")]
    Timeline,
}

impl FrameshareFence {
    /// The one kind that is asked for, if one is.
    pub(crate) fn kind(self) -> Option<FenceKind> {
        match self {
            Self::Auto => None,
            Self::Event => Some(FenceKind::Event),
            Self::Timeline => Some(FenceKind::Timeline),
        }
    }
}
