// SPDX-License-Identifier: MIT OR Apache-2.0

//! One session with a camera, or one round of a file.

use super::{
    branch::{self, Media},
    outlet::Outlet,
    timeline::Timeline,
};
use crate::{
    config::{Access, Source},
    roles::pipeline::{End, Pipeline, make},
};
use anyhow::{Context as _, Result, bail};
use gst::prelude::*;
use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

/// Milliseconds by which packets may be late. Packets wait only where the camera left one out: TCP
/// keeps their order. B-frames are late by the time that the frame behind them was sent early. If a
/// packet is later than this, the receiver begins its times anew, and distances are wrong.
const LATENCY: u32 = 1000;
/// Microseconds without an answer after which a connection counts as lost.
const TIMEOUT: u64 = 10_000_000;

/// Streams of a camera. They stay open between sessions.
pub struct Outlets {
    video: Arc<Outlet>,
    /// Name of the audio stream, if audio is shared. It is opened when there is audio.
    audio_name: Option<String>,
    audio: Mutex<Option<Arc<Outlet>>>,
    timeline: Arc<Timeline>,
    access: Access,
}

impl Outlets {
    pub fn open(video: &str, audio: Option<String>, access: &Access) -> Result<Self> {
        let timeline = Arc::<Timeline>::default();
        let video = Arc::new(Outlet::open(video, timeline.clone(), access)?);
        Ok(Self { video, audio_name: audio, audio: Mutex::default(), timeline, access: access.clone() })
    }

    pub fn video(&self) -> &Outlet {
        &self.video
    }

    /// Returns the first error of an exporter.
    pub fn check(&self) -> Result<()> {
        self.video.check()?;
        let audio = self.audio.lock().unwrap_or_else(PoisonError::into_inner).clone();
        audio.map_or(Ok(()), |audio| audio.check())
    }

    /// Returns the outlet of a media; none if it is not shared.
    fn of(&self, media: Media) -> Result<Option<Arc<Outlet>>> {
        let (Media::Audio, Some(name)) = (media, &self.audio_name) else {
            return Ok(Some(self.video.clone()).filter(|_| media == Media::Video));
        };
        let mut audio = self.audio.lock().unwrap_or_else(PoisonError::into_inner);
        if audio.is_none() {
            *audio = Some(Arc::new(Outlet::open(name, self.timeline.clone(), &self.access)?));
        }
        Ok(audio.clone())
    }
}

/// A session that fills outlets.
pub struct Session {
    pipeline: Pipeline,
}

impl Session {
    /// Connects to a camera, or opens a file.
    pub fn start(source: &Source, outlets: &Arc<Outlets>) -> Result<Self> {
        let pipeline = Pipeline::new();
        let (element, is_paced) = match source {
            Source::Rtsp { url, user, password } => {
                let element = make("rtspsrc")?;
                element.set_property("location", url);
                element.set_property("user-id", user);
                element.set_property("user-pw", password.as_ref().map(|password| password.expose()));
                element.set_property_from_str("protocols", "tcp");
                element.set_property("latency", LATENCY);
                element.set_property("tcp-timeout", TIMEOUT);
                let own = server(url).to_owned();
                element.connect("before-send", false, move |values| {
                    let element = values.first()?.get::<gst::Element>().ok()?;
                    let location = element.property::<Option<String>>("location").unwrap_or_default();
                    if !server(&location).eq_ignore_ascii_case(&own) {
                        // The camera redirected the session to another server.
                        element.set_properties(&[("user-id", &None::<&str>), ("user-pw", &None::<&str>)]);
                    }
                    Some(true.to_value())
                });
                pipeline.0.add(&element)?;
                (element, false)
            }
            Source::File(path) => (file(&pipeline, path)?, true),
            Source::Device(_) | Source::Pattern { .. } => bail!("raw video has no encoded session"),
        };
        outlets.timeline.begin();
        let (target, outlets) = (pipeline.0.downgrade(), outlets.clone());
        let taken = Mutex::new(Vec::new());
        element.connect_pad_added(move |element, pad| {
            let Some(pipeline) = target.upgrade() else { return };
            if let Err(error) = attach(&pipeline, pad, &outlets, &taken, is_paced) {
                gst::element_error!(element, gst::StreamError::Failed, ("{error:#}"));
            }
        });
        pipeline.play()?;
        Ok(Self { pipeline })
    }

    /// Waits for the session's end; none after a short time.
    pub fn wait(&self, time: std::time::Duration) -> Option<End> {
        self.pipeline.wait(time)
    }
}

/// Returns scheme, host and port of a URL, which end where they end for `rtspsrc`.
fn server(url: &str) -> &str {
    let host = url.find("://").map_or(0, |scheme| scheme + 3);
    let end = url[host..].find(['/', '?']).map_or(url.len(), |end| host + end);
    url[..end].trim_end_matches(":554")
}

fn file(pipeline: &Pipeline, path: &Path) -> Result<gst::Element> {
    let (source, parser) = (make("filesrc")?, make("parsebin")?);
    source.set_property("location", path);
    pipeline.0.add_many([&source, &parser])?;
    source.link(&parser)?;
    Ok(parser)
}

/// Links the first pad of each media to its outlet, and other pads to nothing.
fn attach(
    pipeline: &gst::Pipeline,
    pad: &gst::Pad,
    outlets: &Outlets,
    taken: &Mutex<Vec<Media>>,
    is_paced: bool,
) -> Result<()> {
    let caps = pad.current_caps().unwrap_or_else(|| pad.query_caps(None));
    let media = branch::media_of(&caps);
    let is_first = {
        let mut taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = !taken.contains(&media);
        taken.push(media);
        is_first
    };
    if let Some(outlet) = outlets.of(media)?.filter(|_| is_first) {
        return branch::link(pipeline, pad, outlet, is_paced);
    }
    let sink = make("fakesink")?;
    sink.set_property("async", false);
    pipeline.add(&sink)?;
    sink.sync_state_with_parent()?;
    pad.link(&sink.static_pad("sink").context("fakesink has no pad")?)?;
    Ok(())
}
