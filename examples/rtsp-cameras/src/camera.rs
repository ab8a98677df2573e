// SPDX-License-Identifier: MIT OR Apache-2.0

//! Media of a camera: one loop of its clip for all clients.

use crate::{Codec, VIEWER, clip::Clip};
use gst::{ClockTime, prelude::*};
use gst_rtsp_server::{RTSPMediaFactory, prelude::*};
use std::{thread, time::Duration};

/// Makes the factory of a camera.
pub fn factory(clip: Clip, codec: Codec, has_audio: bool, is_protected: bool) -> RTSPMediaFactory {
    let video =
        format!("appsrc name=source is-live=true format=time max-buffers=8 ! rtp{codec}pay name=pay0 pt=96");
    let audio = if has_audio {
        "audiotestsrc is-live=true wave=ticks ! audioconvert ! audioresample ! audio/x-raw,rate=48000,channels=1 \
         ! avenc_aac ! aacparse ! rtpmp4gpay name=pay1 pt=97"
    } else {
        ""
    };
    let factory = RTSPMediaFactory::new();
    factory.set_launch(&format!("( {video} {audio} )"));
    factory.set_shared(true);
    if is_protected {
        let role = gst::Structure::builder(VIEWER)
            .field("media.factory.access", true)
            .field("media.factory.construct", true)
            .build();
        factory.add_role_from_structure(&role);
    }
    factory.connect_media_configure(move |_, media| {
        let bin = media.element().downcast::<gst::Bin>();
        let source = bin.ok().and_then(|bin| bin.by_name("source"));
        let Some(source) = source.and_then(|source| source.downcast::<gst_app::AppSrc>().ok()) else {
            return;
        };
        source.set_caps(Some(&clip.caps));
        let clip = clip.clone();
        thread::spawn(move || feed(&source, &clip));
    });
    factory
}

/// Returns the running time of an element that plays. While media preroll, there is none, and while
/// they begin to play, they have a clock already and the base time of before.
fn position(element: &gst::Element) -> Option<ClockTime> {
    let is_playing = element.current_state() == gst::State::Playing;
    is_playing.then(|| element.current_running_time()).flatten()
}

/// Pushes units at their times until the media ends.
fn feed(source: &gst_app::AppSrc, clip: &Clip) {
    let mut next = None;
    for number in 0.. {
        let Some(unit) = clip.units.get(number % clip.units.len()) else { return };
        let now = position(source.upcast_ref());
        let due = next.unwrap_or_else(|| now.unwrap_or(ClockTime::ZERO));
        if let Some(early) = now.and_then(|now| due.checked_sub(now)) {
            thread::sleep(Duration::from_nanos(early.nseconds()));
        } else if now.is_none() {
            thread::sleep(Duration::from_nanos(clip.period.nseconds()));
        }
        let mut unit = unit.copy();
        let period = if clip.is_variable && number % 5 == 0 { clip.period * 5 } else { clip.period };
        if let Some(unit) = unit.get_mut() {
            // A unit that others precede in order of display is shown later than it is decoded.
            let ahead =
                unit.pts().zip(unit.dts()).map_or(ClockTime::ZERO, |(pts, dts)| pts.saturating_sub(dts));
            unit.set_pts(due + ahead);
            unit.set_dts(due);
            unit.set_duration(period);
        }
        if source.push_buffer(unit).is_err() {
            return;
        }
        next = Some(due + period);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_begins_with_playing() {
        gst::init().unwrap();
        let pipeline = gst::parse::launch("fakesrc name=source is-live=true ! fakesink").unwrap();
        let source = pipeline.downcast_ref::<gst::Bin>().unwrap().by_name("source").unwrap();
        source.set_clock(Some(&gst::SystemClock::obtain())).unwrap();
        // The time since the machine's start.
        assert!(source.current_running_time().is_some());
        assert_eq!(position(&source), None);
        pipeline.set_state(gst::State::Playing).unwrap();
        pipeline.state(None).0.unwrap();
        assert!(position(&source).unwrap() < ClockTime::from_seconds(60));
        pipeline.set_state(gst::State::Null).unwrap();
    }
}
