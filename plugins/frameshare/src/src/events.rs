//! What the source does with the events that come between frames.

use super::imp::{CAT, FrameshareSrc, Running};
use crate::events::{self, Gap, Incoming, StreamStart};
use gst::{prelude::*, subclass::prelude::*};
use gst_base::prelude::*;
use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

/// Most events that wait for caps; an exporter of ours sends a handful.
const MAX_EARLY: usize = 64;
/// Most groups of streams that are remembered.
const MAX_GROUPS: usize = 64;

/// Events that came before caps, which they may not overtake.
#[derive(Default)]
pub(super) struct Early(VecDeque<gst::Event>);

impl FrameshareSrc {
    pub(super) fn take_event(&self, running: &mut Running, event: &frameshare::Event) {
        let event = match events::decode(event) {
            Ok(Some(Incoming::StreamStart(start))) => return self.start_stream(&start),
            Ok(Some(Incoming::Gap(gap))) => match self.gap(&gap) {
                Some(event) => event,
                None => return,
            },
            Ok(Some(Incoming::Event(event))) => event,
            Ok(None) => {
                gst::debug!(CAT, imp = self, "Nothing to do for an event of kind {}", event.kind);
                return;
            }
            Err(error) => {
                gst::error!(CAT, imp = self, "An event of the exporter is left out: {error}");
                return;
            }
        };
        if self.has_caps() {
            self.push_early(running);
            self.push(event);
        } else {
            running.early.0.truncate(MAX_EARLY - 1);
            running.early.0.push_back(event);
        }
    }

    /// Pushes what waited for caps.
    pub(super) fn push_early(&self, running: &mut Running) {
        std::mem::take(&mut running.early.0).into_iter().for_each(|event| self.push(event));
    }

    /// Gives this pipeline's stream the exporter's name.
    fn start_stream(&self, start: &StreamStart) {
        let pad = self.obj().src_pad().clone();
        let current = pad.sticky_event::<gst::event::StreamStart>(0);
        if current.is_some_and(|current| current.stream_id() == start.id) {
            return;
        }
        let group = start.group.map(|group| self.group(group)).unwrap_or_else(gst::GroupId::next);
        let event = gst::event::StreamStart::builder(&start.id).group_id(group).flags(start.flags()).build();
        // A new stream needs its caps and segment anew; the pad would not send the same events twice.
        let caps = pad.sticky_event::<gst::event::Caps>(0);
        let segment = pad.sticky_event::<gst::event::Segment>(0);
        pad.push_event(event);
        caps.map(|caps| pad.push_event(gst::event::Caps::new(&caps.caps_owned())));
        segment.map(|segment| pad.push_event(gst::event::Segment::new(segment.segment())));
    }

    /// This process's group for the exporter's: streams that one process exports from one pipeline stay together.
    fn group(&self, group: u32) -> gst::GroupId {
        static GROUPS: Mutex<VecDeque<((u32, u32), gst::GroupId)>> = Mutex::new(VecDeque::new());
        let key = (self.exporter(), group);
        let mut groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = groups.iter().find(|(of, _)| *of == key) {
            return *known;
        }
        groups.truncate(MAX_GROUPS - 1);
        let new = gst::GroupId::next();
        groups.push_front((key, new));
        new
    }

    /// A gap in this pipeline's time; nothing for one that was over before this pipeline started.
    fn gap(&self, gap: &Gap) -> Option<gst::Event> {
        let (pts, duration) = self.running_time().clip(gap.pts, gap.duration);
        if gap.duration.is_some() && duration.is_none() {
            return None;
        }
        Some(gst::event::Gap::builder(pts).duration(duration).gap_flags(gap.flags()).build())
    }

    fn push(&self, event: gst::Event) {
        let source = self.obj();
        let pad = source.src_pad();
        gst::debug!(CAT, imp = self, "Pushing {event:?}");
        // GstBaseSrc sends the segment with the first buffer, which may be far.
        if pad.sticky_event::<gst::event::Segment>(0).is_none() {
            pad.push_event(gst::event::Segment::new(&source.segment()));
        }
        pad.push_event(event);
    }
}
