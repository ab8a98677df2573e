// SPDX-License-Identifier: MIT OR Apache-2.0

//! A frame between its check and its readers.

use super::{
    frame::{Frame, PublishError},
    parts::Content,
    slot::Slot,
};
use frameshare_protocol::Descriptor;
use std::sync::Arc;

/// The reason why a frame was not published, in a box: it is passed through the short way of a
/// frame, on which there is none.
pub type NotPublished = Box<PublishError>;

/// A valid frame on its way to the readers.
pub struct Unpublished<'f, 'a> {
    /// Without its user data once it is handed out.
    pub frame: &'f mut Frame<'a>,
    pub descriptor: Descriptor,
    /// The copy of a unit that is kept for joining readers.
    pub content: Option<Arc<Content>>,
    /// The slot for its download, if it is to be downloaded and there is one.
    pub target: Option<Slot>,
    /// A slot for its download was asked for, if it is to be downloaded.
    pub was_target_sought: bool,
    /// The readers that get it have it, or wait for it.
    pub is_handed_out: bool,
}
