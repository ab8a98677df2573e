//! What travels among the frames besides formats.

/// Something that has its place among the frames, opaque to the engine: tags, segments, gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What it is, in the words of whoever sends it.
    pub kind: u32,
    /// Whether a reader that joins later gets it too: the newest of each kind.
    pub sticky: bool,
    /// Its content.
    pub payload: Vec<u8>,
}

impl Event {
    /// The kind of the event that starts a stream. A joining reader gets the sticky event of this kind before the
    /// format, and those of all other kinds after it.
    pub const STREAM_START: u32 = 0;
}
