// SPDX-License-Identifier: MIT OR Apache-2.0

//! Streams of one camera: reads them, opens them again, and reports.

use super::{
    recorder::{Figures, Recorder},
    unit::Unit,
};
use crate::{
    config::Camera,
    report::{Condition, Report},
    results::Keyed,
    roles::{
        Context,
        changes::Changes,
        input::{self, Input},
    },
};
use anyhow::Result;
use frameshare::{
    Policy,
    reader::{Item, ReaderKey, ReaderSet},
};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// Interval of checks while nothing arrives.
const TICK: Duration = Duration::from_millis(100);
/// Time until a folder that could not be opened is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// Maximum time to finish segments when the role is stopped.
const FINISH: Duration = Duration::from_millis(700);
/// Units that may be leased at once: each is copied and released immediately.
const MAX_HELD: u32 = 16;

/// A stream of the camera.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Video,
    Audio,
    /// Results, and their name in the file beside the segment.
    Results(&'static str),
}

struct Stream {
    kind: Kind,
    name: String,
    input: Input,
}

/// Records a camera until the role is stopped.
pub fn record(camera: &Camera, context: &Context) -> Result<()> {
    let Some(recorder) = open(camera, context) else { return Ok(()) };
    let mut recording = Recording {
        camera,
        context,
        recorder,
        set: ReaderSet::default(),
        streams: streams(camera),
        changes: Changes::default(),
    };
    recording.run()?;
    recording.recorder.stop(FINISH);
    Ok(())
}

/// Opens the recorder; waits while its folder cannot be used. None if the role is stopped.
fn open(camera: &Camera, context: &Context) -> Option<Recorder> {
    let recording = &context.config.recording;
    let mut known = String::new();
    loop {
        match Recorder::open(&recording.folder, &camera.name, recording.segment) {
            Ok(recorder) => return Some(recorder),
            Err(error) => {
                let text = format!("{error:#}");
                if text != known {
                    known.clone_from(&text);
                    let (camera, condition) = (camera.name.clone(), Condition::Failed);
                    context.reporter.send(&Report { camera, condition, text, values: BTreeMap::new() });
                }
            }
        }
        if !context.pause(RETRY) {
            return None;
        }
    }
}

fn streams(camera: &Camera) -> Vec<Stream> {
    let mut kinds = vec![(Kind::Video, camera.encoded()), (Kind::Audio, camera.audio())];
    if camera.motion {
        kinds.push((Kind::Results("motion"), camera.motion_results()));
    }
    if camera.model {
        kinds.push((Kind::Results("model"), camera.model_results()));
    }
    let stream = |(kind, name)| Stream { kind, name, input: Input::new() };
    kinds.into_iter().map(stream).collect()
}

struct Recording<'a> {
    camera: &'a Camera,
    context: &'a Context<'a>,
    recorder: Recorder,
    set: ReaderSet,
    streams: Vec<Stream>,
    changes: Changes,
}

impl Recording<'_> {
    fn run(&mut self) -> Result<()> {
        let stop = &self.context.stop;
        let mut due = Instant::now();
        while !stop.is_set() {
            self.open_streams();
            if self.recorder.is_behind() {
                // Units wait at the exporter meanwhile.
                self.context.pause(Duration::from_millis(10));
            } else if let Some((key, item)) = self.set.next(Some(TICK), stop)? {
                match item {
                    Ok(item) => self.take(key, item),
                    Err(error) => self.lose(key, &error.to_string()),
                }
            }
            if Instant::now() >= due {
                due = Instant::now() + TICK;
                self.recorder.tick();
                self.changes.send(&self.context.reporter, self.state());
            }
        }
        Ok(())
    }

    /// Opens the streams that are not open, without waiting for their exporters.
    fn open_streams(&mut self) {
        for stream in &mut self.streams {
            if !stream.input.is_due() {
                continue;
            }
            let policy = match stream.kind {
                Kind::Video => self.camera.policies.record,
                Kind::Audio | Kind::Results(_) => Policy::Lossless,
            };
            let reader = input::start("record", &self.camera.name, &stream.name, policy, MAX_HELD);
            stream.input.opened(&mut self.set, reader);
        }
    }

    fn take(&mut self, key: ReaderKey, item: Item) {
        let Some(stream) = self.streams.iter_mut().find(|stream| stream.input.is(key)) else { return };
        match (stream.kind, item) {
            (Kind::Video, Item::Format(format)) => self.recorder.video_caps(&format.caps),
            (Kind::Audio, Item::Format(format)) => self.recorder.audio_caps(&format.caps),
            (Kind::Video, Item::Frame(unit)) => {
                stream.input.error = None;
                self.recorder.video(Unit::of(&unit));
            }
            (Kind::Audio, Item::Frame(unit)) => self.recorder.audio(Unit::of(&unit)),
            (Kind::Results(source), Item::Frame(unit)) => match Keyed::read(&unit) {
                Ok(result) => self.recorder.result(source, result.value),
                Err(error) => log::warn!("{}: {error:#}", stream.name),
            },
            (Kind::Video, Item::EndOfStream) => self.recorder.pause(),
            _ => {}
        }
    }

    /// Leaves a stream that ended with an error, to open it again.
    fn lose(&mut self, key: ReaderKey, error: &str) {
        self.set.remove(key);
        if let Some(stream) = self.streams.iter_mut().find(|stream| stream.input.is(key)) {
            stream.input.fail(error);
            log::warn!("{}: {error}", stream.name);
        }
    }

    fn state(&self) -> Report {
        let error = self.streams.iter().find_map(|stream| Some((&stream.name, stream.input.error.as_ref()?)));
        let (condition, text) = match (self.recorder.failure(), error, self.recorder.is_recording()) {
            (Some(failure), _, _) => (Condition::Failed, failure.to_owned()),
            (None, Some((name, error)), _) => (Condition::Failed, format!("{name}: {error}")),
            // The same text for all segments: each change is an event.
            (None, None, true) => {
                let loss = self.recorder.loss().map_or(String::new(), |loss| format!("; {loss}"));
                (Condition::Running, format!("copies {} into segments{loss}", self.camera.encoded()))
            }
            (None, None, false) => {
                (Condition::Waiting, format!("no key unit of {} yet", self.camera.encoded()))
            }
        };
        let Figures { segments, received, written, decodable, lost } = self.recorder.figures;
        let values = [
            ("segments", segments),
            ("received", received),
            ("written", written),
            ("decodable", decodable),
            ("lost", lost),
            ("unplaced_results", self.recorder.unplaced()),
        ];
        let values = values.into_iter().map(|(name, value)| (name.to_owned(), value as f64)).collect();
        Report { camera: self.camera.name.clone(), condition, text, values }
    }
}
