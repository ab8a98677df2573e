// SPDX-License-Identifier: MIT OR Apache-2.0

//! Recordings: the numbers in their frames.

use gst::prelude::*;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Cells of the number at the top of each frame, the highest bit at the left.
const CELLS: usize = 32;
/// Height of the row of cells in parts of the picture's.
const PARTS: usize = 12;

/// A segment, decoded.
#[derive(Debug)]
pub struct Recording {
    pub file: PathBuf,
    pub width: i32,
    /// Numbers of the frames, and their times in seconds.
    pub frames: Vec<(u32, f64)>,
    /// Whether it has a track of audio.
    pub has_audio: bool,
}

impl Recording {
    /// Reads all segments of a camera, in the order of their names.
    pub fn all(folder: &Path) -> Vec<Self> {
        let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
        files.retain(|file| file.extension().is_some_and(|ending| ending == "mkv"));
        files.sort();
        files.into_iter().map(Self::read).collect()
    }

    /// Returns the numbers of all frames of some segments.
    pub fn numbers(segments: &[Self]) -> Vec<u32> {
        segments.iter().flat_map(|segment| &segment.frames).map(|(number, _)| *number).collect()
    }

    fn read(file: PathBuf) -> Self {
        let place = file.display();
        let source = format!("filesrc location={place} ! matroskademux name=demux demux.video_0");
        let mut recording = Self { file, width: 0, frames: Vec::new(), has_audio: false };
        let pipeline = decode(&source, |number, time, width| {
            recording.frames.push((number, time));
            recording.width = width;
        });
        let demux = pipeline.by_name("demux").expect("demux");
        recording.has_audio = demux.src_pads().iter().any(|pad| pad.name().starts_with("audio"));
        pipeline.set_state(gst::State::Null).expect("the pipeline stops");
        recording
    }
}

/// Numbers of the frames in a file of H.264 units.
pub fn numbers_of(file: &Path) -> Vec<u32> {
    let mut numbers = Vec::new();
    let source = format!("filesrc location={} ! h264parse", file.display());
    let pipeline = decode(&source, |number, _, _| numbers.push(number));
    pipeline.set_state(gst::State::Null).expect("the pipeline stops");
    numbers
}

/// Decodes a file; `found` gets number, time and width of each frame.
fn decode(source: &str, mut found: impl FnMut(u32, f64, i32)) -> gst::Pipeline {
    gst::init().expect("GStreamer starts");
    let description = format!(
        "{source} ! decodebin ! videoconvert ! video/x-raw,format=GRAY8 ! appsink name=out sync=false"
    );
    let pipeline = gst::parse::launch(&description).expect("a pipeline").downcast::<gst::Pipeline>();
    let pipeline = pipeline.expect("a pipeline");
    let out = pipeline.by_name("out").expect("out").downcast::<gst_app::AppSink>().expect("an appsink");
    pipeline.set_state(gst::State::Playing).expect("the file plays");
    while let Ok(sample) = out.pull_sample() {
        let info = gst_video::VideoInfo::from_caps(sample.caps().expect("caps")).expect("video");
        let buffer = sample.buffer().expect("a buffer");
        let time = buffer.pts().map_or(0.0, |time| time.nseconds() as f64 / 1e9);
        found(number(buffer, &info), time, info.width() as i32);
    }
    pipeline
}

/// Reads the number of a gray frame.
fn number(buffer: &gst::BufferRef, info: &gst_video::VideoInfo) -> u32 {
    let pixels = buffer.map_readable().expect("readable");
    let row = info.height() as usize / PARTS / 2;
    let width = info.width() as usize;
    let row = &pixels[row * info.stride()[0] as usize..][..width];
    (0..CELLS)
        .fold(0, |number, cell| number << 1 | u32::from(row[(2 * cell + 1) * width / (2 * CELLS)] > 125))
}

/// Frames whose numbers follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub first: u32,
    pub last: u32,
    pub frames: usize,
}

/// Returns the runs of numbers; after the number `end` - 1 comes 0.
pub fn runs(recordings: &[Recording], end: u32) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (number, _) in recordings.iter().flat_map(|recording| &recording.frames) {
        match runs.last_mut() {
            Some(run) if *number == run.last.wrapping_add(1) % end => {
                run.last = *number;
                run.frames += 1;
            }
            _ => runs.push(Run { first: *number, last: *number, frames: 1 }),
        }
    }
    runs
}

#[test]
fn missing_repeated_and_exchanged_frames_end_a_run() {
    let of = |numbers: &[u32]| {
        let frames = numbers.iter().map(|number| (*number, 0.0)).collect();
        runs(&[Recording { file: PathBuf::new(), width: 0, frames, has_audio: false }], 10).len()
    };
    assert_eq!(of(&[7, 8, 9, 0, 1]), 1);
    assert_eq!(of(&[1, 2, 4, 5]), 2);
    assert_eq!(of(&[1, 2, 2, 3]), 2);
    assert_eq!(of(&[1, 3, 2, 4]), 4);
}
