// SPDX-License-Identifier: MIT OR Apache-2.0

//! Recorder of one camera: decides which units are in which segment.
//!
//! A segment begins at a key unit: after its configured length, when caps, the run of the stream or
//! the presence of audio change, and when times go back. While the disk is full or a write fails,
//! units are read and dropped, so that nothing waits at the exporter; recording goes on at the
//! first key unit for which there is room again. Silence is a gap in time, and ends nothing.

use super::{
    files::Folder,
    proof::{Proof, Prover},
    retention::Disk,
    segment::{End, Failure, Segment, Tracks},
    sidecar::Sidecar,
    unit::Unit,
};
use crate::results::Value;
use anyhow::Result;
use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Minimum free bytes for another attempt after the disk was full: this, or this part of the disk.
const ROOM: u64 = 16 << 20;
const ROOM_PART: u64 = 20;

/// Time between two attempts after a failure.
const BETWEEN_ATTEMPTS: Duration = Duration::from_secs(1);

/// Maximum difference of audio and video in one segment: the muxer waits for the later one.
const MAX_SKEW: u64 = 2_000_000_000;

pub struct Recorder {
    recordings: PathBuf,
    folder: Folder,
    /// Maximum length of a segment.
    length: Duration,
    video: Option<String>,
    audio: Option<String>,
    /// Time of the last unit of audio.
    audio_time: Option<u64>,
    current: Option<Segment>,
    /// Segments that the muxer finishes, or that wait for their last audio until this time.
    ending: Vec<(Segment, Option<u64>)>,
    sidecar: Sidecar,
    /// Session and sequence number of the last unit.
    last: Option<(u64, u64)>,
    /// The next unit that can be recorded is a key unit.
    needs_key: bool,
    failure: Option<(Failure, Instant)>,
    prover: Prover,
    /// The last loss, until a segment is whole.
    loss: Option<String>,
    pub figures: Figures,
}

/// Totals of a recorder.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    pub segments: u64,
    /// Units that a segment was given; of finished ones, those that the files yield.
    pub received: u64,
    pub written: u64,
    pub decodable: u64,
    /// Units that were not read, or are in no file.
    pub lost: u64,
}

impl Recorder {
    pub fn open(recordings: &Path, camera: &str, length: Duration) -> Result<Self> {
        Ok(Self {
            recordings: recordings.to_owned(),
            folder: Folder::open(recordings, camera)?,
            length,
            video: None,
            audio: None,
            audio_time: None,
            current: None,
            ending: Vec::new(),
            sidecar: Sidecar::default(),
            last: None,
            needs_key: true,
            failure: None,
            prover: Prover::start()?,
            loss: None,
            figures: Figures::default(),
        })
    }

    pub fn video_caps(&mut self, caps: &str) {
        self.video = Some(caps.to_owned());
    }

    pub fn audio_caps(&mut self, caps: &str) {
        self.audio = Some(caps.to_owned());
    }

    /// Records a unit of video. Units that were read before are passed over: a reader that joins
    /// again gets the units since the last key unit once more.
    pub fn video(&mut self, unit: Unit) {
        if let Some((session, sequence)) = self.last.filter(|(session, _)| *session == unit.session) {
            if unit.sequence <= sequence {
                return;
            }
            let missing = unit.sequence - sequence - 1;
            if missing > 0 {
                self.needs_key = true;
                self.lose(missing, format!("{missing} units were not read"));
            }
            self.last = Some((session, unit.sequence));
        } else {
            self.needs_key = true;
            self.last = Some((unit.session, unit.sequence));
        }
        if self.is_due(&unit) {
            self.end_current(Some(unit.pts));
        }
        if unit.is_key && self.current.is_none() {
            self.begin(&unit);
        }
        self.needs_key &= !unit.is_key;
        match &mut self.current {
            Some(segment) if !self.needs_key => {
                self.sidecar.unit(unit.time, segment.position(unit.pts));
                self.figures.received += 1;
                segment.push_video(unit);
            }
            _ => self.figures.lost += 1,
        }
    }

    /// Returns whether a segment other than the current one is for this unit.
    fn is_due(&self, unit: &Unit) -> bool {
        let Some(current) = &self.current else { return false };
        if current.session != unit.session || Some(&current.tracks.video) != self.video.as_ref() {
            return true;
        }
        let is_changed = current.tracks.audio != self.audio_at(unit.pts);
        // The camera's time was set back.
        let is_earlier = unit.pts < current.last_key;
        unit.is_key && (is_changed || is_earlier || current.position(unit.pts) >= self.length)
    }

    /// Caps of the audio of a segment, if there is audio at this time.
    fn audio_at(&self, pts: u64) -> Option<String> {
        let is_present = self.audio_time.is_some_and(|audio_time| audio_time.saturating_add(MAX_SKEW) >= pts);
        self.audio.clone().filter(|_| is_present)
    }

    /// Records a unit of audio, in the segment that it belongs to.
    pub fn audio(&mut self, unit: Unit) {
        self.audio_time = Some(unit.pts);
        let mut before = self.ending.iter().filter(|(_, until)| until.is_some_and(|until| unit.pts < until));
        match before.next_back().map(|(segment, _)| segment).or(self.current.as_ref()) {
            Some(segment) if segment.tracks.audio == self.audio => segment.push_audio(unit),
            _ => {}
        }
    }

    pub fn result(&mut self, source: &'static str, value: Value) {
        self.sidecar.result(source, value);
    }

    /// Begins a segment at a key unit, if the last attempt is long enough ago and there is room.
    fn begin(&mut self, unit: &Unit) {
        let Some(video) = self.video.clone() else { return };
        if let Some((failure, since)) = &self.failure
            && (since.elapsed() < BETWEEN_ATTEMPTS || (failure.is_disk_full && !self.has_room()))
        {
            return;
        }
        let tracks = Tracks { video, audio: self.audio_at(unit.pts) };
        match Segment::begin(self.folder.part(unit.time), tracks, unit) {
            Ok(segment) => {
                self.sidecar.begin(segment.part());
                self.figures.segments += 1;
                self.current = Some(segment);
            }
            Err(error) => self.fail(Failure { text: format!("{error:#}"), is_disk_full: false }),
        }
    }

    fn has_room(&self) -> bool {
        Disk::of(&self.recordings).is_ok_and(|disk| disk.free >= ROOM.min(disk.size / ROOM_PART))
    }

    /// Ends the current segment; its audio may follow until this time.
    fn end_current(&mut self, until: Option<u64>) {
        let Some(mut segment) = self.current.take() else { return };
        self.needs_key = true;
        let until = until.filter(|_| segment.tracks.audio.is_some());
        if until.is_none() {
            segment.finish();
        }
        self.ending.push((segment, until));
    }

    fn fail(&mut self, failure: Failure) {
        self.needs_key = true;
        self.failure = Some((failure, Instant::now()));
    }

    /// Notices failures, finishes segments, and writes results. To be called several times a
    /// second.
    pub fn tick(&mut self) {
        if let Some(failure) = self.current.as_ref().and_then(Segment::failure) {
            if let Some(segment) = self.current.take() {
                self.close(segment);
            }
            self.fail(failure);
        } else if self.current.as_ref().is_some_and(is_established) {
            self.failure = None;
        }
        let audio_time = self.audio_time;
        for (mut segment, until) in std::mem::take(&mut self.ending) {
            let is_complete = |until: u64| {
                let is_there = audio_time.is_some_and(|audio_time| audio_time >= until);
                is_there || frameshare::monotonic_ns() > until.saturating_add(MAX_SKEW)
            };
            if until.is_some_and(is_complete) {
                segment.finish();
                self.ending.push((segment, None));
            } else if until.is_some() {
                self.ending.push((segment, until));
            } else {
                self.end(segment);
            }
        }
        while let Some(proof) = self.prover.next() {
            self.note(proof);
        }
        if let Err(error) = self.sidecar.write() {
            log::warn!("{error:#}");
        }
    }

    /// Closes a segment if the muxer is done with it.
    fn end(&mut self, segment: Segment) {
        match segment.end() {
            End::Pending => self.ending.push((segment, None)),
            End::Finished => self.close(segment),
            End::Failed(failure) => {
                self.close(segment);
                self.fail(failure);
            }
        }
    }

    fn close(&mut self, segment: Segment) {
        match segment.close() {
            Ok((Some(file), given)) => self.prover.prove(file, given),
            Ok((None, given)) if given.is_empty() => {}
            Ok((None, given)) => {
                let lost = given.len() as u64;
                self.lose(lost, format!("{lost} units are in no file"));
            }
            Err(error) => self.fail(Failure { text: format!("{error:#}"), is_disk_full: false }),
        }
    }

    fn note(&mut self, Proof { file, counts }: Proof) {
        self.figures.written += counts.written;
        self.figures.decodable += counts.decodable;
        let (missing, unusable) = (counts.received - counts.written, counts.written - counts.decodable);
        if missing + unusable == 0 {
            self.loss = None;
            return;
        }
        let of = format!("of {} units in {}", counts.received, file.display());
        self.lose(missing, format!("{missing} {of} are missing, and {unusable} cannot be decoded"));
    }

    fn lose(&mut self, units: u64, text: String) {
        log::warn!("{text}");
        self.figures.lost += units;
        self.loss = Some(text);
    }

    /// Returns whether the disk is too slow: nothing is to be read now.
    pub fn is_behind(&self) -> bool {
        self.current.as_ref().is_some_and(Segment::is_behind)
    }

    /// Ends the current segment, when the stream ends.
    pub fn pause(&mut self) {
        self.end_current(None);
    }

    /// Text of the last failure, until something is recorded again.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_ref().map(|(failure, _)| failure.text.as_str())
    }

    /// Text of the last loss, until a segment is whole.
    pub fn loss(&self) -> Option<&str> {
        self.loss.as_deref()
    }

    /// Returns whether units are being recorded.
    pub fn is_recording(&self) -> bool {
        self.current.is_some()
    }

    /// Number of results whose frame is in no segment.
    pub fn unplaced(&self) -> u64 {
        self.sidecar.unplaced
    }

    /// Finishes all segments, within this time.
    pub fn stop(mut self, limit: Duration) {
        let deadline = Instant::now() + limit;
        self.pause();
        for (segment, until) in &mut self.ending {
            if until.take().is_some() {
                segment.finish();
            }
        }
        loop {
            self.tick();
            if self.ending.is_empty() && self.prover.is_done() {
                return;
            }
            if Instant::now() >= deadline {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        for (segment, _) in std::mem::take(&mut self.ending) {
            self.close(segment);
        }
    }
}

/// Returns whether a segment has been written to for a while: a failure before it has passed.
fn is_established(segment: &Segment) -> bool {
    segment.position(frameshare::monotonic_ns()) >= BETWEEN_ATTEMPTS
}
