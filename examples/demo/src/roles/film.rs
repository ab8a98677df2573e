//! A film that is played several times over, with a running time that goes on.

use anyhow::{Context, Result};
use gst::{PadProbeData, PadProbeReturn, PadProbeType, prelude::*};
use std::{
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
};

/// What the pipeline hears when the film is to be wound back: see [`wind_back`].
pub const AGAIN: &str = "again";

/// An element that decodes a file's video, whatever the container and the codec, and links it to `sink`.
pub fn decoder(film: &Path, sink: &gst::Pad) -> Result<gst::Element> {
    let path = film.canonicalize().with_context(|| format!("cannot open {}", film.display()))?;
    let decoder = gst::ElementFactory::make("uridecodebin")
        .property("uri", glib::filename_to_uri(path, None)?)
        // Hardware decoders have memory of their own. The demo is about frames in system memory.
        .property("force-sw-decoders", true)
        .build()?;
    // Sound stays as it is and goes nowhere.
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
            eprintln!("the film's video cannot be linked: {error}");
        }
    });
    let target = sink.clone();
    decoder.connect_no_more_pads(move |decoder| {
        if !target.is_linked() {
            gst::element_error!(decoder, gst::StreamError::WrongType, ("there is no video in this file"));
        }
    });
    Ok(decoder)
}

fn name_of(caps: &gst::Caps) -> String {
    caps.structure(0).map(|structure| structure.name().to_string()).unwrap_or_default()
}

/// Has the film on this pad come again and again: all ends but the last are kept from the sink.
///
/// The sink shall not notice anything, so that it goes on counting frames and time. What is decoded after an end is
/// shifted by the time that the film has run by then, and the flushes of the seek that winds it back are kept away,
/// too. That works with every container in which one can seek to the start; segment seeks would do the same with
/// fewer containers, and some of these do not know how long their last frame is shown.
pub struct Repeats {
    plays: u32,
    play: AtomicU32,
    is_over: AtomicBool,
    /// The running time at which the last frame so far ends.
    end: Mutex<gst::ClockTime>,
}

impl Repeats {
    pub fn new(plays: u32) -> Self {
        Self { plays, play: AtomicU32::new(1), is_over: AtomicBool::new(false), end: Mutex::default() }
    }

    /// Which play it is, from 1.
    pub fn play(&self) -> u32 {
        self.play.load(Relaxed)
    }

    /// Has the film end in front of its next frame.
    pub fn cut(&self) {
        self.is_over.store(true, Relaxed);
    }

    /// Starts. `again` is called when [`wind_back`] is to be called, which cannot be done where the film ends.
    pub fn watch(self: &Arc<Self>, pad: &gst::Pad, again: impl Fn() + Send + Sync + 'static) {
        let repeats = self.clone();
        let kinds = PadProbeType::BUFFER | PadProbeType::EVENT_DOWNSTREAM | PadProbeType::EVENT_FLUSH;
        pad.add_probe(kinds, move |pad, info| match &info.data {
            // It is ended here, where it is played: the pad is never free for others for long enough.
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
                gst::EventType::Eos if repeats.play() < repeats.plays && !repeats.is_over.load(Relaxed) => {
                    repeats.play.fetch_add(1, Relaxed);
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

/// Starts the film that ended on this pad anew; ends it where that cannot be done.
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
        eprintln!("this file cannot be wound back, and is played no more");
        pad.send_event(gst::event::Eos::new());
    }
}

/// The running time at which a buffer on this pad ends.
fn end_of(pad: &gst::Pad, buffer: &gst::BufferRef) -> Option<gst::ClockTime> {
    let segment = pad.sticky_event::<gst::event::Segment>(0)?;
    let segment = segment.segment().downcast_ref::<gst::ClockTime>()?;
    let end = buffer.pts()? + buffer.duration().unwrap_or_default();
    // The last frame may be shown beyond the segment's end.
    segment.to_running_time(end).or_else(|| segment.to_running_time(segment.stop()?))
}
