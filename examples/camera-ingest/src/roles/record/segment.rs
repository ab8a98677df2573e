// SPDX-License-Identifier: MIT OR Apache-2.0

//! A segment: one MKV file, written by a pipeline of its own, without decoding.
//!
//! Each unit is in the file as soon as it has arrived: a recorder that is killed loses none that it
//! has read. (splitmuxsink holds the units of a whole group of pictures back, and its pipeline ends
//! with the first failed write.) `appsrc ! h264parse ! matroskamux ! filesink`, with a second
//! `appsrc` for audio; times begin at 0. MKV has presentation times only: units need no decoding
//! times, and come in the order of the stream.

use super::{files, proof::Given, unit::Unit};
use anyhow::{Context, Result};
use gst::prelude::*;
use gst_app::AppSrc;
use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Bytes that may wait for a slow disk. Beyond them the recorder reads nothing, and units wait at
/// the exporter.
const MAX_WAITING: u64 = 16 << 20;

/// Maximum time that a segment may take to be finished.
const FINISH: Duration = Duration::from_secs(5);

/// Caps of the streams in a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tracks {
    pub video: String,
    pub audio: Option<String>,
}

pub struct Segment {
    pub tracks: Tracks,
    /// Session of the stream of video.
    pub session: u64,
    /// Time of its first unit, in ns of CLOCK_MONOTONIC.
    pub start: u64,
    /// Times of its last key unit and of its last unit.
    pub last_key: u64,
    last: Option<u64>,
    /// All units of video so far.
    given: Vec<Given>,
    part: PathBuf,
    pipeline: gst::Pipeline,
    bus: gst::Bus,
    video: AppSrc,
    audio: Option<AppSrc>,
    /// When its end was announced to the muxer.
    ending: Option<Instant>,
}

/// Reason why a segment cannot be written further.
pub struct Failure {
    pub text: String,
    pub is_disk_full: bool,
}

/// State of a segment whose end was announced.
pub enum End {
    Pending,
    Finished,
    Failed(Failure),
}

impl Segment {
    /// Begins a segment with this unit, which is then pushed as the first one.
    pub fn begin(part: PathBuf, tracks: Tracks, first: &Unit) -> Result<Self> {
        let pipeline = gst::Pipeline::new();
        let bus = pipeline.bus().context("a pipeline without a bus")?;
        let mux =
            gst::ElementFactory::make("matroskamux").property("writing-app", "camera-ingest").build()?;
        let sink = gst::ElementFactory::make("filesink")
            .property("location", &part)
            .property_from_str("buffer-mode", "unbuffered")
            .property("sync", false)
            .property("async", false)
            .build()?;
        pipeline.add_many([&mux, &sink])?;
        mux.link(&sink)?;
        let video = add_track(&pipeline, &mux, &tracks.video, "video_%u")?;
        let audio = tracks.audio.as_ref().map(|caps| add_track(&pipeline, &mux, caps, "audio_%u"));
        let segment = Self {
            audio: audio.transpose()?,
            tracks,
            session: first.session,
            start: first.pts,
            last_key: first.pts,
            last: None,
            given: Vec::new(),
            part,
            pipeline,
            bus,
            video,
            ending: None,
        };
        // The error is on the bus, with its reason.
        let _ = segment.pipeline.set_state(gst::State::Playing);
        Ok(segment)
    }

    /// Path of the file while it is written.
    pub fn part(&self) -> &Path {
        &self.part
    }

    /// Time of a unit since the start; 0 for one that is shown before the first one.
    pub fn position(&self, pts: u64) -> Duration {
        Duration::from_nanos(pts.saturating_sub(self.start))
    }

    pub fn push_video(&mut self, mut unit: Unit) {
        if unit.is_key {
            self.last_key = unit.pts;
        }
        // Frames of an open group of pictures are shown before its key frame, and no time in a file
        // is before 0.
        unit.pts = unit.pts.max(self.start);
        // A parser ignores a time that repeats, and the muxer drops units without one.
        unit.pts += u64::from(Some(unit.pts) == self.last);
        self.last = Some(unit.pts);
        self.given.push((unit.pts - self.start, unit.is_key));
        push(&self.video, unit, self.start);
    }

    /// Adds audio. A unit that begins before the segment is left out, and so is one that the muxer
    /// could only keep for the next unit of video.
    pub fn push_audio(&self, unit: Unit) {
        let has_room = |audio: &&AppSrc| audio.current_level_bytes() <= MAX_WAITING;
        if let Some(audio) = self.audio.as_ref().filter(has_room).filter(|_| unit.pts >= self.start) {
            push(audio, unit, self.start);
        }
    }

    /// Returns whether the disk is too slow for further units now.
    pub fn is_behind(&self) -> bool {
        self.video.current_level_bytes() > MAX_WAITING
    }

    /// Returns the reason if the segment cannot be written further.
    pub fn failure(&self) -> Option<Failure> {
        match self.outcome() {
            End::Failed(failure) => Some(failure),
            End::Pending | End::Finished => None,
        }
    }

    /// Announces the end; [`Segment::end`] follows.
    pub fn finish(&mut self) {
        let tracks = [Some(&self.video), self.audio.as_ref()];
        // A segment that failed ends at once.
        let is_refused = tracks.into_iter().flatten().any(|track| track.end_of_stream().is_err());
        let now = Instant::now();
        self.ending = Some(if is_refused { now.checked_sub(FINISH).unwrap_or(now) } else { now });
    }

    /// Returns the state of the segment after [`Segment::finish`].
    pub fn end(&self) -> End {
        match self.outcome() {
            End::Pending if self.ending.is_some_and(|since| since.elapsed() >= FINISH) => {
                let text = format!("{} was not finished within {FINISH:?}", self.part.display());
                End::Failed(Failure { text, is_disk_full: false })
            }
            end => end,
        }
    }

    fn outcome(&self) -> End {
        let kinds = [gst::MessageType::Error, gst::MessageType::Eos];
        let Some(message) = self.bus.pop_filtered(&kinds) else { return End::Pending };
        match message.view() {
            gst::MessageView::Error(error) => End::Failed(Failure {
                text: format!("cannot write {}: {}", self.part.display(), reason(error)),
                is_disk_full: error.error().matches(gst::ResourceError::NoSpaceLeft),
            }),
            _ => End::Finished,
        }
    }

    /// Closes the file and gives it its name; returns it with the units that it was given. A file
    /// that holds nothing is deleted.
    pub fn close(mut self) -> Result<(Option<PathBuf>, Vec<Given>)> {
        let _ = self.pipeline.set_state(gst::State::Null);
        let given = std::mem::take(&mut self.given);
        let cannot = || format!("cannot name {}", self.part.display());
        match fs::metadata(&self.part) {
            Ok(file) if file.len() > 0 => {}
            Ok(_) => return fs::remove_file(&self.part).map(|()| (None, given)).with_context(cannot),
            Err(_) => return Ok((None, given)),
        }
        let name = files::finished(&self.part);
        fs::rename(&self.part, &name).with_context(cannot)?;
        Ok((Some(name), given))
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        let _ = self.pipeline.set_state(gst::State::Null);
    }
}

/// Returns the text of an error with what the system said, in one line.
fn reason(error: &gst::message::Error) -> String {
    let details = error.debug().map(|text| text.lines().last().unwrap_or_default().to_owned());
    match details.filter(|text| !text.is_empty()) {
        Some(details) => format!("{} ({details})", error.error()),
        None => error.error().to_string(),
    }
}

/// Adds a source of units, with the parser that muxers need for their format.
fn add_track(pipeline: &gst::Pipeline, mux: &gst::Element, caps: &str, pad: &str) -> Result<AppSrc> {
    let caps: gst::Caps = caps.parse().with_context(|| format!("caps that GStreamer cannot read: {caps}"))?;
    let source = AppSrc::builder().caps(&caps).format(gst::Format::Time).max_bytes(0).build();
    pipeline.add(&source)?;
    let mut last: gst::Element = source.clone().upcast();
    if let Some(parser) = parser(&caps) {
        let parser = gst::ElementFactory::make(parser).build()?;
        pipeline.add(&parser)?;
        last.link(&parser)?;
        last = parser;
    }
    last.link_pads(Some("src"), mux, Some(pad))
        .with_context(|| format!("{caps} cannot be in an MKV file"))?;
    Ok(source)
}

/// Returns the parser of a format; none if muxers take it as it is.
fn parser(caps: &gst::CapsRef) -> Option<&'static str> {
    let structure = caps.structure(0)?;
    match structure.name().as_str() {
        "video/x-h264" => Some("h264parse"),
        "video/x-h265" => Some("h265parse"),
        "video/x-av1" => Some("av1parse"),
        "audio/mpeg" if structure.get::<i32>("mpegversion") == Ok(1) => Some("mpegaudioparse"),
        "audio/mpeg" => Some("aacparse"),
        "audio/x-opus" => Some("opusparse"),
        _ => None,
    }
}

fn push(track: &AppSrc, unit: Unit, start: u64) {
    let mut buffer = gst::Buffer::from_mut_slice(unit.bytes);
    let content = buffer.make_mut();
    content.set_pts(gst::ClockTime::from_nseconds(unit.pts.saturating_sub(start)));
    content.set_duration(unit.duration.map(gst::ClockTime::from_nseconds));
    if !unit.is_key {
        content.set_flags(gst::BufferFlags::DELTA_UNIT);
    }
    // A segment that failed takes none: its error is on the bus.
    let _ = track.push_buffer(buffer);
}
