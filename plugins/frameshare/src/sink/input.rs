// SPDX-License-Identifier: MIT OR Apache-2.0

//! State of the sink's streaming thread.

use super::{
    announced::Announced, media::Media, pace::Pace, placed::Prepared, settings::Settings, stream::Stream,
    timing::Timing,
};
use crate::sync::{Cached, Versioned};
use std::sync::Arc;

/// State of the input from READY to READY: changed by buffers, and by events and queries in order
/// with them. The way of a frame takes it once and passes it by reference, so each part is read
/// without a lock. State that other threads read is not in here: see `imp.rs`.
pub(super) struct Input {
    pub(super) stream: Arc<Stream>,
    /// The properties, as of the last time that they were needed.
    pub(super) settings: Cached<Settings>,
    pub(super) media: Media,
    pub(super) timing: Timing,
    pub(super) pace: Pace,
    pub(super) announced: Announced,
    /// The frame that `prepare` placed, until it is due.
    pub(super) prepared: Option<Prepared>,
    /// The next frame follows a discontinuity: upstream flushed, or the delay of the stream ended.
    pub(super) is_discont: bool,
}

impl Input {
    /// The state at the begin of a run, with the present properties.
    pub(super) fn new(stream: Arc<Stream>, settings: &Versioned<Settings>) -> Self {
        Self {
            stream,
            settings: Cached::of(settings),
            media: Media::default(),
            timing: Timing::default(),
            pace: Pace::default(),
            announced: Announced::default(),
            prepared: None,
            is_discont: false,
        }
    }

    /// Applies a flush, which resets the running time or does not. Returns the prepared frame,
    /// which is not published any more.
    pub(super) fn flush(&mut self, resets_time: bool) -> Option<Prepared> {
        self.is_discont = true;
        self.media.end_unit();
        if resets_time {
            self.timing.end_delay(0);
        }
        self.prepared.take()
    }
}
