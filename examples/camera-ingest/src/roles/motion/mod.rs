// SPDX-License-Identifier: MIT OR Apache-2.0

//! Motion detection: reads the frames of cameras in place and publishes a result for each.
//!
//! A thread reads each camera, with policy `latest`: it always works on the newest frame, and
//! delays no other reader. Frames in GPU memory come as downloads.

mod detector;

use super::{
    Context, Newest,
    changes::Changes,
    input::{self, Input},
};
use crate::{
    config::Camera,
    report::{Condition, Report},
    results::{Keyed, Publisher, Region, Value, time_of},
};
use anyhow::{Context as _, Result};
use detector::Detector;
use frameshare::{
    reader::{Frame, Item, Reader, ReaderSet},
    video::ColorModel,
};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// Interval of checks while no frame arrives.
const TICK: Duration = Duration::from_millis(500);
/// Frames that may be leased at once.
const MAX_HELD: u32 = 2;
/// Time without a frame after which a camera is waited for.
const SILENCE: Duration = Duration::from_secs(3);

/// Detects motion of a camera until the role is stopped, in the zones of the newest configuration.
pub fn run(context: &Context, camera: &Camera, mut newest: Newest) -> Result<()> {
    let mut watch = Watch {
        camera: camera.clone(),
        input: Input::new(),
        publisher: None,
        detector: None,
        arrived: None,
        frames: 0,
        score: 0.0,
        changes: Changes::default(),
    };
    let mut set = ReaderSet::default();
    let mut due = Instant::now();
    while !context.stop.is_set() {
        if newest.has_changed()?
            && let Some(camera) = newest.borrow_and_update().1.iter().find(|new| new.name == camera.name)
        {
            watch.camera.zones.clone_from(&camera.zones);
            watch.detector.iter_mut().for_each(|detector| detector.set_zones(&camera.zones));
        }
        if watch.input.is_due() {
            let reader = watch.start(context);
            watch.input.opened(&mut set, reader);
        }
        if let Some((key, item)) = set.next(Some(TICK), &context.stop)? {
            let taken = item.map_err(anyhow::Error::from).and_then(|item| watch.take(&item));
            if let Err(error) = taken {
                set.remove(key);
                watch.input.fail(&format!("{error:#}"));
            }
        }
        if Instant::now() >= due {
            due = Instant::now() + TICK;
            let report = watch.state();
            watch.changes.send(&context.reporter, report);
        }
    }
    Ok(())
}

/// A camera, its reader and its results.
struct Watch {
    camera: Camera,
    input: Input,
    publisher: Option<Publisher>,
    detector: Option<Detector>,
    arrived: Option<Instant>,
    frames: u64,
    score: f64,
    changes: Changes,
}

impl Watch {
    /// Opens the streams, without waiting for the exporter.
    fn start(&mut self, context: &Context) -> Result<Reader> {
        let Camera { name, policies, .. } = &self.camera;
        if self.publisher.is_none() {
            self.publisher = Some(Publisher::open(&self.camera.motion_results(), &context.stop)?);
        }
        input::start("motion", name, &self.camera.frames(), policies.motion, MAX_HELD)
    }

    fn take(&mut self, item: &Item) -> Result<()> {
        let Item::Frame(frame) = item else { return Ok(()) };
        let (score, boxes) = self.detect(frame)?;
        let value = Value { time: time_of(frame).unwrap_or(0), score: Some(score), boxes };
        let publisher = self.publisher.as_ref().context("the stream of results is not open")?;
        publisher.publish(&Keyed::of(frame, value))?;
        (self.score, self.input.error, self.arrived) = (score, None, Some(Instant::now()));
        self.frames += 1;
        Ok(())
    }

    fn detect(&mut self, frame: &Frame) -> Result<(f64, Vec<Region>)> {
        let format = frame.format()?;
        let luma = frame.plane(0)?;
        let (width, height) = (luma.width as usize, luma.height as usize);
        let is_luma = matches!(format.pixels.color_model(), ColorModel::Yuv | ColorModel::Gray);
        anyhow::ensure!(
            is_luma && luma.row_bytes == width && luma.tile.is_none(),
            "{} has no plane of luma with 8 bits: use a camera, or a decoder, with NV12 or I420",
            format.pixels.name()
        );
        if !self.detector.as_ref().is_some_and(|detector| detector.fits(width, height)) {
            self.detector = Some(Detector::new(width, height, &self.camera.zones));
        }
        let detector = self.detector.as_mut().context("no detector")?;
        if luma.row_slice(0).is_some() {
            return Ok(detector.next(|row| luma.row_slice(row).unwrap_or_default()));
        }
        // The exporter of another user may write meanwhile.
        let mut copy = vec![0; width * height];
        luma.copy_to(&mut copy, width)?;
        Ok(detector.next(|row| &copy[row * width..][..width]))
    }

    fn state(&self) -> Report {
        let is_silent = self.arrived.is_none_or(|arrived| arrived.elapsed() > SILENCE);
        let (condition, text) = match &self.input.error {
            Some(error) => (Condition::Failed, error.clone()),
            None if is_silent => (Condition::Waiting, format!("no frame of {}", self.camera.frames())),
            None => (Condition::Running, "scores each frame".to_owned()),
        };
        let values =
            BTreeMap::from([("frames".to_owned(), self.frames as f64), ("score".to_owned(), self.score)]);
        Report { camera: self.camera.name.clone(), condition, text, values }
    }
}
