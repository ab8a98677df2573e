// SPDX-License-Identifier: MIT OR Apache-2.0

//! Playback check of a recording.

use super::{
    pipeline::{self, until_stopped},
    video,
};
use crate::report::{self, Report};
use anyhow::{Context, Result};
use gst::{PadProbeReturn, PadProbeType, prelude::*};
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// Decodes a file completely and reports its number of frames.
pub fn play_back(file: &Path) -> Result<()> {
    let pipeline = gst::Pipeline::new();
    let sink = gst::ElementFactory::make("fakesink").property("sync", false).build()?;
    let pad = sink.static_pad("sink").context("fakesink has no pad")?;
    let decoder = video::decoder(file, &pad)?;
    pipeline.add_many([&decoder, &sink])?;
    let frames = Arc::new(AtomicU64::new(0));
    let count = frames.clone();
    pad.add_probe(PadProbeType::BUFFER, move |_, _| {
        count.fetch_add(1, Relaxed);
        PadProbeReturn::Ok
    });
    pipeline::run(&pipeline, gst::State::Playing, until_stopped, || {
        report::send(&Report::PlayedBack { frames: frames.load(Relaxed) });
    })
}
