// SPDX-License-Identifier: MIT OR Apache-2.0

//! Streams for the tests of the page: cameras whose pictures tell where their box must be.
//!
//! `page-site CAMERAS [H265]` exports, for each camera, frames, units and results of motion
//! detection, until standard input ends. A white square moves over a dark picture, a step with each
//! frame, and the result of the frame is the box of the square, published up to 120 ms later. The
//! units of the camera with the number `H265` are H.265.

use anyhow::{Context, Result};
use gst::prelude::*;
use std::{
    io::Read,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

const WIDTH: usize = 640;
const HEIGHT: usize = 360;
const SIDE: usize = 64;
/// Pixels that the square moves with each frame: a box of another frame is seen to be wrong.
const STEP: usize = 16;
const RATE: u32 = 20;
const LATEST_RESULT: Duration = Duration::from_millis(120);

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let count: usize = arguments.next().context("usage: page-site CAMERAS [H265]")?.parse()?;
    let h265: Option<usize> = arguments.next().map(|index| index.parse()).transpose()?;
    gst::init()?;
    gstframeshare::plugin_register_static()?;
    for camera in 0..count {
        let pipeline = pipeline(camera, h265 == Some(camera))?;
        thread::spawn(move || {
            if let Err(error) = play(&pipeline, camera) {
                eprintln!("cam{camera}: {error:#}");
            }
        });
    }
    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn pipeline(camera: usize, is_h265: bool) -> Result<gst::Pipeline> {
    let encoder = match is_h265 {
        true => "x265enc speed-preset=ultrafast tune=zerolatency key-int-max=20",
        false => "x264enc speed-preset=ultrafast tune=zerolatency key-int-max=20 threads=1 qp-max=20",
    };
    let description = format!(
        "appsrc name=frames is-live=true format=time \
           caps=video/x-raw,format=I420,width={WIDTH},height={HEIGHT},framerate={RATE}/1 ! tee name=all \
         all. ! queue ! framesharesink stream=cam{camera} sync=false async=false \
         all. ! queue ! {encoder} \
           ! framesharesink stream=cam{camera}.video encoded=true sync=false async=false \
         appsrc name=results is-live=true format=time caps=application/x-frameshare-results \
           ! framesharesink stream=cam{camera}.motion any-caps=true sync=false async=false"
    );
    let pipeline = gst::parse::launch(&description)?.downcast::<gst::Pipeline>().ok();
    pipeline.context("the description is no pipeline")
}

fn play(pipeline: &gst::Pipeline, camera: usize) -> Result<()> {
    let source = |name| pipeline.by_name(name).and_then(|source| source.downcast::<gst_app::AppSrc>().ok());
    let frames = source("frames").context("no source of frames")?;
    let results = source("results").context("no source of results")?;
    pipeline.set_state(gst::State::Playing)?;
    let unix = gst::Caps::builder("timestamp/x-unix").build();
    let begin = Instant::now();
    let mut late = Vec::new();
    for number in 0_usize.. {
        let due = Duration::from_secs(1) / RATE * u32::try_from(number)?;
        thread::sleep((begin + due).saturating_duration_since(Instant::now()));
        let time = u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos())?;
        let (x, y) = place(camera, number);
        let mut buffer = gst::Buffer::from_mut_slice(picture(camera, x, y));
        let writable = buffer.get_mut().context("the buffer is shared")?;
        writable.set_pts(gst::ClockTime::try_from(due)?);
        let captured = gst::ClockTime::from_nseconds(time);
        gst::ReferenceTimestampMeta::add(writable, &unix, captured, gst::ClockTime::NONE);
        frames.push_buffer(buffer)?;
        // Results keep their order, and none is late by more than LATEST_RESULT.
        late.push((result(number, time, x, y), due));
        if number % 3 != 0 || late.first().is_some_and(|(_, first)| due - *first >= LATEST_RESULT) {
            for (result, due) in late.drain(..) {
                let mut buffer = gst::Buffer::from_mut_slice(result.into_bytes());
                buffer.get_mut().context("the buffer is shared")?.set_pts(gst::ClockTime::try_from(due)?);
                results.push_buffer(buffer)?;
            }
        }
    }
    Ok(())
}

/// Returns the left upper corner of the square.
fn place(camera: usize, number: usize) -> (usize, usize) {
    let columns = (WIDTH - SIDE) / STEP;
    let step = number + camera * 7;
    (step % columns * STEP, step / columns * 48 % (HEIGHT - SIDE))
}

fn picture(camera: usize, x: usize, y: usize) -> Vec<u8> {
    let mut bytes = vec![0_u8; WIDTH * HEIGHT * 3 / 2];
    let (luma, chroma) = bytes.split_at_mut(WIDTH * HEIGHT);
    for (row, line) in luma.chunks_exact_mut(WIDTH).enumerate() {
        // A dark gradient.
        line.fill(u8::try_from(32 + row / 8).unwrap_or(77));
        if (y..y + SIDE).contains(&row) {
            line[x..x + SIDE].fill(235);
        }
    }
    let (blue, red) = chroma.split_at_mut(WIDTH * HEIGHT / 4);
    blue.fill(120 + u8::try_from(camera * 8 % 40).unwrap_or(0));
    red.fill(128);
    let whiten = |plane: &mut [u8]| {
        for line in plane.chunks_exact_mut(WIDTH / 2).skip(y / 2).take(SIDE / 2) {
            line[x / 2..(x + SIDE) / 2].fill(128);
        }
    };
    whiten(blue);
    whiten(red);
    bytes
}

fn result(number: usize, time: u64, x: usize, y: usize) -> String {
    let part = |pixels: usize, all: usize| pixels as f64 / all as f64;
    let square = serde_json::json!({
        "x": part(x, WIDTH), "y": part(y, HEIGHT), "width": part(SIDE, WIDTH), "height": part(SIDE, HEIGHT),
        "label": "square", "score": 0.9,
    });
    let value =
        serde_json::json!({ "time": time, "score": 0.02 + 0.01 * (number % 10) as f64, "boxes": [square] });
    serde_json::json!({ "session": "1", "sequence": number + 1, "value": value }).to_string()
}
