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
