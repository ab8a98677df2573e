// SPDX-License-Identifier: MIT OR Apache-2.0

//! Cameras with B-frames: units come in another order than that of display, and RTP has no decoding
//! times. The recordings have all frames, in order, at their distances.

mod common;
mod support;

use common::{Place, Server, wait};
use std::{fs, path::Path};
use support::{Recording, runs};

/// Frames of a camera, in a loop of whole seconds.
const LOOP: u32 = 100;
/// Maximum number of frames that are sent after a later one.
const REORDERED: usize = 7;
/// Seconds between two frames.
const PERIOD: f64 = 0.04;

/// Video of each camera.
const CAMERAS: [(&str, &str); 8] = [
    ("none", "b-frames=0"),
    ("one", "b-frames=1"),
    ("two", "b-frames=2"),
    ("three", "b-frames=3"),
    ("pyramid", "b-frames=3,pyramid"),
    ("seven", "b-frames=7,pyramid"),
    ("h265", "h265,b-frames=3"),
    ("h265-pyramid", "h265,b-frames=4,pyramid"),
];

fn segments(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(|entry| entry.path().extension().is_some_and(|ending| ending == "mkv")).count()
}

#[test]
fn recordings_of_reordered_units_have_all_frames() {
    gst::init().unwrap();
    let has_h265 = ["x265enc", "avdec_h265"].iter().all(|name| gst::ElementFactory::find(name).is_some());
    if !has_h265 {
        println!("SKIP camera-ingest/b-frames-h265: x265enc and avdec_h265 are needed");
    }
    let cameras: Vec<_> =
        CAMERAS.into_iter().filter(|(_, options)| has_h265 || !options.contains("h265")).collect();
    let place = Place::new();
    let served: Vec<_> =
        cameras.iter().map(|(name, options)| format!("{name}=160x96@25,{options}")).collect();
    let server = Server::start(0, &format!("--frames {LOOP} {}", served.join(" ")));
    let sources: Vec<_> =
        cameras.iter().map(|(name, _)| format!("{name} = '{}'\n", server.url(name))).collect();
    place.configure(&format!(
        "[cameras]\n{}[defaults]\nmotion = false\n[recording]\nfolder = 'recordings'\nsegment = '3s'\n",
        sources.concat()
    ));
    let mut record = place.start("record");
    let mut capture = place.start("capture");
    let folder = |name: &str| place.path("recordings").join(name);
    for (name, _) in &cameras {
        wait("two segments", || (segments(&folder(name)) >= 2).then_some(()));
    }
    record.stop();
    capture.stop();
    let wrong: Vec<_> =
        cameras.iter().flat_map(|(name, _)| check(name, &Recording::all(&folder(name)))).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns the faults of a recording.
fn check(camera: &str, recordings: &[Recording]) -> Vec<String> {
    let mut faults = Vec::new();
    let found = runs(recordings, LOOP);
    let frames: usize = found.iter().map(|run| run.frames).sum();
    // The recorder may have stopped between a frame and those that are shown before it. Each of the
    // two segments in front has its three seconds.
    let whole = found.first().map_or(0, |run| run.frames);
    if whole < 150 || whole + REORDERED < frames {
        faults.push(format!("{camera}: {} runs in {frames} frames: {found:?}", found.len()));
    }
    // The receiver adapts to the camera's clock in the first two seconds of a session.
    for recording in &recordings[1..2] {
        let times: Vec<_> = recording.frames.iter().map(|(_, time)| *time).collect();
        let is_even = |pair: &[f64]| (pair[1] - pair[0] - PERIOD).abs() < PERIOD / 4.0;
        if times.first() != Some(&0.0) || !times.windows(2).all(is_even) {
            faults.push(format!("{camera}: wrong times: {times:?}"));
        }
    }
    faults
}
