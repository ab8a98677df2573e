// SPDX-License-Identifier: MIT OR Apache-2.0

//! Stream opening: stream-start, caps and segment, in this order and once each.
//!
//! `GstBaseSrc` pushes its own stream-start before the first call of `create`, and a segment before
//! the first buffer. A second stream-start means a second stream: decodebin3 of GStreamer 1.22
//! fails on it, that of 1.26 aborts. A probe on the source pad therefore drops the stream-start of
//! `GstBaseSrc`, and its segment if the peer has an equal one. The element pushes its own
//! stream-start, which names the exporter's stream.
//!
//! Exporter events after a stream-start are held until its caps, its first frame, a gap or the end
//! of the stream: downstream would misread a stream-start that still has the caps of the previous
//! stream.

use super::{imp::FrameshareSrc, log::CAT, running::Running};
use crate::{
    events::{StreamStart, start_of_unnamed},
    sync::lock,
};
use gst::{prelude::*, subclass::prelude::*};
use gst_base::prelude::*;
use std::{collections::VecDeque, sync::Mutex};

/// Maximum number of stream groups remembered.
const MAX_GROUPS: usize = 64;

impl FrameshareSrc {
    /// Adds the probe that drops the duplicate events of `GstBaseSrc`.
    pub(super) fn watch_own_events(&self) {
        let source = self.downgrade();
        let probe = move |pad: &gst::Pad, info: &mut gst::PadProbeInfo<'_>| {
            let (Some(source), Some(event)) = (source.upgrade(), info.event()) else {
                return gst::PadProbeReturn::Ok;
            };
            if source.opened.admits(pad, event) {
                gst::PadProbeReturn::Ok
            } else {
                gst::PadProbeReturn::Handled
            }
        };
        self.obj().src_pad().add_probe(gst::PadProbeType::EVENT_DOWNSTREAM, probe);
    }

    /// Stores the exporter's stream-start until the stream opens. Ignores one of the current
    /// stream.
    pub(super) fn take_stream_start(&self, running: &mut Running, start: StreamStart) {
        let current = self.obj().src_pad().sticky_event::<gst::event::StreamStart>(0);
        let is_current = current.is_some_and(|current| current.stream_id() == self.stream_id(&start.id));
        let is_new = running.opening.is_switch || !is_current;
        running.opening.start = is_new.then_some(start);
    }

    /// Pushes the stream-start if the stream is not open yet; returns whether it did.
    ///
    /// An exporter that is not a GStreamer element sends none: the socket's name identifies its
    /// stream.
    pub(super) fn push_stream_start(&self, running: &mut Running) -> bool {
        let start = match running.opening.start.take() {
            Some(start) => start,
            None if running.opened.is_some() => return false,
            None => start_of_unnamed(running.endpoint.to_string()),
        };
        running.opening.is_switch = false;
        let group = start.group.map_or_else(gst::GroupId::next, |group| self.group(group));
        let seqnum = gst::Seqnum::next();
        running.opened = Some(seqnum);
        self.opened.set(Some(seqnum));
        let event = gst::event::StreamStart::builder(&self.stream_id(&start.id))
            .group_id(group)
            .flags(gst::StreamFlags::from_bits_truncate(start.flags))
            .seqnum(seqnum)
            .build();
        self.push_now(event);
        true
    }

    /// Pushes the segment if it still has to follow the caps, and the events that were held for
    /// both.
    pub(super) fn push_segment(&self, running: &mut Running) {
        if std::mem::take(&mut running.opening.lacks_segment) {
            let segment = self.obj().segment();
            let event = gst::event::Segment::builder(&segment).seqnum_if_some(running.opened).build();
            self.push_now(event);
        }
        std::mem::take(&mut running.opening.held).into_iter().for_each(|event| self.push_now(event));
    }

    /// Opens the stream for a frame or an event, with the current caps.
    pub(super) fn open(&self, running: &mut Running) {
        if self.push_stream_start(running) {
            if let Some(caps) = running.negotiated.refresh(&self.negotiated).caps.clone() {
                self.push_now(gst::event::Caps::new(&caps));
            }
            running.opening.lacks_segment = true;
        }
        self.push_segment(running);
    }

    pub(super) fn push_now(&self, event: gst::Event) {
        gst::debug!(CAT, imp = self, "Pushing {event:?}");
        self.obj().src_pad().push_event(event);
    }

    /// Returns the downstream id of the exporter's stream. Two elements of a pipeline may read one
    /// stream, and the stream ids of a pipeline must differ; the same element of the same pipeline
    /// always gives the same id.
    fn stream_id(&self, of_exporter: &str) -> String {
        let mut names = vec![];
        let mut object = self.obj().clone().upcast::<gst::Object>();
        // Skip the name of the pipeline itself, which may differ at each start.
        while let Some(parent) = object.parent() {
            names.push(object.name());
            object = parent;
        }
        if names.is_empty() {
            names.push(object.name());
        }
        names.push(of_exporter.into());
        names.reverse();
        names.join("/")
    }

    /// Returns the local group id of an exporter's group: streams exported by one process from one
    /// pipeline stay together.
    fn group(&self, group: u32) -> gst::GroupId {
        static GROUPS: Mutex<VecDeque<((u32, u32), gst::GroupId)>> = Mutex::new(VecDeque::new());
        let key = (self.exporter(), group);
        let mut groups = lock(&GROUPS);
        if let Some((_, known)) = groups.iter().find(|(of, _)| *of == key) {
            return *known;
        }
        groups.truncate(MAX_GROUPS - 1);
        let new = gst::GroupId::next();
        groups.push_front((key, new));
        new
    }
}
