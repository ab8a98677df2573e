// SPDX-License-Identifier: MIT OR Apache-2.0

//! Video source that loops with continuous running time.

use anyhow::{Context, Result};
use gst::{PadProbeData, PadProbeReturn, PadProbeType, prelude::*};
use std::{
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
};

/// Message to the pipeline to seek back to the start: see [`wind_back`].
pub const REWIND: &str = "again";

/// Returns an element that decodes a file's video, for any container and codec, and links it to
/// `sink`.
pub fn decoder(video: &Path, sink: &gst::Pad) -> Result<gst::Element> {
    let path = video.canonicalize().with_context(|| format!("cannot open {}", video.display()))?;
    let decoder = gst::ElementFactory::make("uridecodebin")
        .property("uri", glib::filename_to_uri(path, None)?)
        // Hardware decoders use their own memory. The demo shows frames in system memory.
        .property("force-sw-decoders", true)
        .build()?;
    // Audio is neither decoded nor linked.
    decoder.connect("autoplug-continue", false, |arguments| {
        let is_sound = arguments[2].get::<gst::Caps>().is_ok_and(|caps| name_of(&caps).starts_with("audio/"));
        Some((!is_sound).to_value())
    });
    let target = sink.clone();
    decoder.connect_pad_added(move |_, pad| {
        let is_video = pad.current_caps().is_some_and(|caps| name_of(&caps) == "video/x-raw");
        if is_video
            && !target.is_linked()
            && let Err(error) = pad.link(&target)
        {
            eprintln!("cannot link the file's video: {error}");
        }
    });
    let target = sink.clone();
    decoder.connect_no_more_pads(move |decoder| {
        if !target.is_linked() {
            gst::element_error!(decoder, gst::StreamError::WrongType, ("no video in this file"));
        }
    });
    Ok(decoder)
}

fn name_of(caps: &gst::Caps) -> String {
    caps.structure(0).map(|structure| structure.name().to_string()).unwrap_or_default()
}

/// Repeats the video on this pad: drops every end of stream but the last.
///
/// The sink sees one continuous stream, so it continues to count frames and time. Frames decoded
/// after a dropped end are shifted by the running time so far, and the flushes of the seek to the
/// start are dropped, too. This works with every container that supports a seek to the start;
/// segment seeks would do the same with fewer containers, and some of those lack the duration of
/// the last frame.
pub struct Repeats {
    loops: u32,
    current: AtomicU32,
    is_over: AtomicBool,
    /// Running time at the end of the last frame so far.
    end: Mutex<gst::ClockTime>,
}

impl Repeats {
    pub fn new(loops: u32) -> Self {
        Self { loops, current: AtomicU32::new(1), is_over: AtomicBool::new(false), end: Mutex::default() }
    }

    /// Returns the number of the current loop, from 1.
    pub fn current(&self) -> u32 {
        self.current.load(Relaxed)
    }

    /// Ends the video before its next frame.
    pub fn cut(&self) {
        self.is_over.store(true, Relaxed);
    }

    /// Adds the probe. `again` is called when [`wind_back`] is due; the streaming thread at the end
    /// of the video cannot seek itself.
    pub fn watch(self: &Arc<Self>, pad: &gst::Pad, again: impl Fn() + Send + Sync + 'static) {
        let repeats = self.clone();
        let kinds = PadProbeType::BUFFER | PadProbeType::EVENT_DOWNSTREAM | PadProbeType::EVENT_FLUSH;
        pad.add_probe(kinds, move |pad, info| match &info.data {
            // Push the end from the streaming thread: the pad is never free for other threads for
            // long enough.
            Some(PadProbeData::Buffer(_)) if repeats.is_over.load(Relaxed) => {
                pad.send_event(gst::event::Eos::new());
                info.flow_res = Err(gst::FlowError::Eos);
                PadProbeReturn::Handled
            }
            Some(PadProbeData::Buffer(buffer)) => {
                if let Some(end) = end_of(pad, buffer) {
                    *repeats.end.lock().expect("nothing panics with this lock held") = end;
                }
                PadProbeReturn::Ok
            }
            Some(PadProbeData::Event(event)) => match event.type_() {
                gst::EventType::FlushStart | gst::EventType::FlushStop => PadProbeReturn::Handled,
                gst::EventType::Eos
                    if repeats.current() < repeats.loops && !repeats.is_over.load(Relaxed) =>
                {
                    repeats.current.fetch_add(1, Relaxed);
                    let end = *repeats.end.lock().expect("nothing panics with this lock held");
                    pad.set_offset(end.nseconds() as i64);
                    again();
                    PadProbeReturn::Handled
                }
                _ => PadProbeReturn::Ok,
            },
            _ => PadProbeReturn::Ok,
        });
    }
}

/// Seeks the video on this pad back to its start; ends the stream if that is not possible.
pub fn wind_back(pad: &gst::Pad) {
    let start = gst::event::Seek::new(
        1.0,
        gst::SeekFlags::FLUSH,
        gst::SeekType::Set,
        gst::ClockTime::ZERO,
        gst::SeekType::None,
        gst::ClockTime::NONE,
    );
    if !pad.push_event(start) {
        eprintln!("cannot seek to the start of this file; the stream ends here");
        pad.send_event(gst::event::Eos::new());
    }
}

/// Returns the running time at the end of a buffer on this pad.
fn end_of(pad: &gst::Pad, buffer: &gst::BufferRef) -> Option<gst::ClockTime> {
    let segment = pad.sticky_event::<gst::event::Segment>(0)?;
    let segment = segment.segment().downcast_ref::<gst::ClockTime>()?;
    let end = buffer.pts()? + buffer.duration().unwrap_or_default();
    // The last frame may extend beyond the end of the segment.
    segment.to_running_time(end).or_else(|| segment.to_running_time(segment.stop()?))
}
