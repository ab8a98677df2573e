// SPDX-License-Identifier: MIT OR Apache-2.0

//! State of the stream's opening downstream.

use crate::{events::StreamStart, sync::lock};
use gst::prelude::*;
use std::{collections::VecDeque, sync::Mutex};

/// Maximum number of events held for caps; an exporter of this project sends a handful.
const MAX_HELD: usize = 64;

/// Events of a stream that is not open downstream yet. Owned by the streaming thread.
#[derive(Default)]
pub(super) struct Opening {
    /// Stream-start received from the exporter and not pushed yet.
    pub(super) start: Option<StreamStart>,
    /// Events that must follow the caps, in order.
    pub(super) held: VecDeque<gst::Event>,
    /// The stream is new even if its id is the same.
    pub(super) is_switch: bool,
    /// The segment follows with the first frame, whose time it depends on: the exporter's.
    pub(super) lacks_segment: bool,
}

impl Opening {
    /// The opening of a stream that replaces another one; `start` is for exporters that send none.
    pub fn of_switch(start: StreamStart) -> Self {
        Self { start: Some(start), is_switch: true, ..Self::default() }
    }

    /// Holds an event until the stream is open.
    pub fn hold(&mut self, event: gst::Event) {
        self.held.truncate(MAX_HELD - 1);
        self.held.push_back(event);
    }

    /// Returns whether a stream-start is waiting for its caps, or these for their segment.
    pub fn is_pending(&self) -> bool {
        self.start.is_some() || self.lacks_segment
    }
}

/// Sequence number of the stream-start and segment that this element pushed last, for the probe on
/// the source pad; none before the first. A leaf lock, held for a copy.
#[derive(Debug, Default)]
pub(super) struct Opened(Mutex<Option<gst::Seqnum>>);

impl Opened {
    pub fn reset(&self) {
        self.set(None);
    }

    pub fn set(&self, seqnum: Option<gst::Seqnum>) {
        *lock(&self.0) = seqnum;
    }

    /// Returns whether an event on the source pad may go downstream.
    pub fn admits(&self, pad: &gst::Pad, event: &gst::EventRef) -> bool {
        if *lock(&self.0) == Some(event.seqnum()) {
            return true;
        }
        match event.view() {
            gst::EventView::StreamStart(_) => false,
            // A peer that was linked later has no segment yet, and gets this one.
            gst::EventView::Segment(segment) => !peer_has(pad, segment.segment()),
            _ => true,
        }
    }
}

/// Returns whether the peer has the same segment, apart from the position, which `GstBaseSrc`
/// advances.
fn peer_has(pad: &gst::Pad, segment: &gst::Segment) -> bool {
    let Some(known) = pad.peer().and_then(|peer| peer.sticky_event::<gst::event::Segment>(0)) else {
        return false;
    };
    let (Some(known), Some(segment)) =
        (known.segment().downcast_ref::<gst::ClockTime>(), segment.downcast_ref::<gst::ClockTime>())
    else {
        return false;
    };
    let mut segment = segment.clone();
    segment.set_position(known.position());
    segment == *known
}
