// SPDX-License-Identifier: MIT OR Apache-2.0

//! Export of an encoded stream. It outlives the sessions that fill it, so that readers keep their
//! connection while a camera is away.

use super::{
    stamp::Stamps,
    timeline::{self, Timeline},
};
use crate::{
    config::Access,
    roles::pipeline::{self, End, Pipeline},
};
use anyhow::{Result, bail};
use gst::{ClockTime, FlowError, FlowSuccess, prelude::*};
use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// Maximum bytes that wait for the exporter.
const MAX_BYTES: u64 = 16 << 20;

pub struct Outlet {
    pipeline: Pipeline,
    source: gst_app::AppSrc,
    stamps: Stamps,
    units: AtomicU64,
    timeline: Arc<Timeline>,
    /// Caps of the last unit.
    caps: Mutex<Option<gst::Caps>>,
    error: Mutex<Option<String>>,
}

impl Outlet {
    /// Opens a stream; all streams of a camera share `timeline`.
    pub fn open(stream: &str, timeline: Arc<Timeline>, access: &Access) -> Result<Self> {
        let pipeline = Pipeline::new().with_monotonic_times();
        let source = gst_app::AppSrc::builder()
            .is_live(true)
            .format(gst::Format::Time)
            .block(true)
            .max_bytes(MAX_BYTES)
            .build();
        let sink = pipeline::exporting_encoded_sink(stream, access)?;
        pipeline.0.add_many([source.upcast_ref(), &sink])?;
        source.link(&sink)?;
        pipeline.play()?;
        Ok(Self {
            pipeline,
            source,
            stamps: Stamps::new(),
            units: AtomicU64::new(0),
            timeline,
            caps: Mutex::default(),
            error: Mutex::default(),
        })
    }

    /// Publishes a unit of a pipeline with this base time.
    pub fn push(&self, sample: &gst::Sample, base: ClockTime) -> Result<FlowSuccess, FlowError> {
        let (Some(buffer), Some(caps)) = (sample.buffer_owned(), sample.caps_owned()) else {
            return Err(FlowError::Error);
        };
        let mut buffer = buffer;
        let unit = buffer.make_mut();
        let segment = sample.segment().and_then(|segment| segment.downcast_ref::<ClockTime>());
        let segment = segment.ok_or(FlowError::Error)?;
        let origin = self.timeline.origin(base);
        let monotonic =
            |time: Option<ClockTime>| timeline::since(origin, segment.to_running_time_full(time?)?);
        let pts = monotonic(unit.pts());
        unit.set_pts(pts);
        // GstBaseSrc copies the DTS of a unit without a PTS into its PTS.
        unit.set_dts(pts.and_then(|_| monotonic(unit.dts())));
        if let Some(pts) = pts {
            self.timeline.extend(pts.saturating_add(unit.duration().unwrap_or_default()));
        }
        self.stamps.stamp(unit);
        *self.caps.lock().unwrap_or_else(PoisonError::into_inner) = Some(caps.clone());
        let flow = self.source.push_sample(&gst::Sample::builder().buffer(&buffer).caps(&caps).build())?;
        self.units.fetch_add(1, Ordering::Relaxed);
        Ok(flow)
    }

    /// Number of units so far.
    pub fn units(&self) -> u64 {
        self.units.load(Ordering::Relaxed)
    }

    /// Describes the stream, such as "H.264 1280x720".
    pub fn description(&self) -> Option<String> {
        self.caps.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(describe)
    }

    /// Returns the exporter's error, if there is one.
    pub fn check(&self) -> Result<()> {
        let mut error = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(End::Failed(text)) = self.pipeline.wait(Duration::ZERO) {
            error.get_or_insert(text);
        }
        match &*error {
            Some(text) => bail!("{text}"),
            None => Ok(()),
        }
    }
}

/// Describes caps, such as "H.264 1280x720".
pub fn describe(caps: &gst::Caps) -> String {
    let Some(media) = caps.structure(0) else { return "no caps".into() };
    let name = match media.name().as_str() {
        "video/x-h264" => "H.264",
        "video/x-h265" => "H.265",
        "video/x-av1" => "AV1",
        "image/jpeg" => "JPEG",
        "audio/mpeg" => "AAC",
        "audio/x-opus" => "Opus",
        name => name.trim_start_matches("video/").trim_start_matches("audio/").trim_start_matches("x-"),
    };
    match (media.get::<i32>("width"), media.get::<i32>("height")) {
        (Ok(width), Ok(height)) => format!("{name} {width}x{height}"),
        _ => name.to_owned(),
    }
}
