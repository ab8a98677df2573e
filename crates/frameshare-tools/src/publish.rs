// SPDX-License-Identifier: MIT OR Apache-2.0

//! `frameshare publish`: a test pattern as a stream, or a video file through GStreamer.

use crate::{
    cli::PublishOptions,
    error::Error,
    output::{Page, print_json},
    pixels::{can_store, store},
    publisher::{Publisher, config, named, until_signal},
    signals,
};
use frameshare::{
    Wait,
    exporter::VideoExporter,
    monotonic_ns,
    video::{PixelFormat, PlaneLayout, VideoFormat},
};
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open},
};
use serde_json::json;
use std::{
    env, io,
    ops::Range,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

/// Colors of the bars from left to right.
const BARS: [[u8; 3]; 8] = [
    [255, 255, 255],
    [255, 255, 0],
    [0, 255, 255],
    [0, 255, 0],
    [255, 0, 255],
    [255, 0, 0],
    [0, 0, 255],
    [0, 0, 0],
];
/// Maximum width and height of a video from a file, which may say any: a frame of NV12 has 100 MB
/// then.
const MAX_SIDE: u32 = 8192;
const BOX: [u8; 3] = [255, 128, 0];
/// Columns and rows that share chroma in every format, or a multiple.
const GRID: usize = 8;

/// Publishes until the end of the file, a number of frames, or a signal.
pub fn publish(options: &PublishOptions, json: bool) -> Result<(), Error> {
    match &options.file {
        Some(file) => video(&options.stream, file),
        None => pattern(options, json),
    }
}

/// The test pattern: bars, a ramp of gray below, and a box that moves with each frame.
struct Pattern {
    format: VideoFormat,
    planes: Vec<PlaneLayout>,
    background: Vec<u8>,
}

impl Pattern {
    fn new(options: &PublishOptions) -> Result<Self, Error> {
        let pixels: PixelFormat = options.format.parse()?;
        if !can_store(pixels) {
            return Err(Error::Pattern { format: pixels.name() });
        }
        let ((width, height), (numerator, denominator)) = (options.size, options.rate);
        let format = VideoFormat::new(pixels, width, height).rate(numerator, denominator);
        let size = format.size()?;
        let planes = (0..pixels.plane_count()).map(|plane| format.plane(plane, &[], size));
        let planes = planes.collect::<Result<Vec<_>, _>>()?;
        let mut background = vec![0; size as usize];
        let (width, height) = (width as usize, height as usize);
        store(&format, &planes, &mut background, (0..width, 0..height), |x, y| match 4 * y < 3 * height {
            true => BARS[8 * x / width],
            false => [(255 * x / (width - 1).max(1)) as u8; 3],
        });
        Ok(Self { format, planes, background })
    }

    /// Writes frame `number`.
    fn write(&self, number: u64, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.background);
        let (columns, rows) = self.place(number);
        store(&self.format, &self.planes, bytes, (columns, rows), |_, _| BOX);
    }

    /// Returns the place of the box.
    fn place(&self, number: u64) -> (Range<usize>, Range<usize>) {
        let (width, height) = (self.format.width as usize, self.format.height as usize);
        let side = (width.min(height) / 8).next_multiple_of(GRID);
        let span = (width.saturating_sub(side) / GRID).max(1) as u64;
        let left = (number % span) as usize * GRID;
        let top = height / 2 / GRID * GRID;
        (left..(left + side).min(width), top..(top + side).min(height))
    }
}

fn pattern(options: &PublishOptions, json: bool) -> Result<(), Error> {
    let pattern = Pattern::new(options)?;
    let (endpoint, interrupt) = (named(&options.stream)?, signals::interrupt()?);
    let video = VideoExporter::bind(&endpoint, config(&interrupt), pattern.format.clone(), |_| ())?;
    let publisher = Publisher { exporter: video.exporter().clone(), interrupt };
    publisher.wait_for_readers(options.readers)?;
    let (numerator, denominator) = options.rate;
    let time = |frames: u64| {
        let ns = u128::from(frames) * 1_000_000_000 * u128::from(denominator) / u128::from(numerator);
        u64::try_from(ns).unwrap_or(u64::MAX)
    };
    let begin = monotonic_ns();
    let mut frames = 0;
    while frames < options.count.unwrap_or(u64::MAX) {
        let due = begin.saturating_add(time(frames));
        if publisher.sleep(Duration::from_nanos(due.saturating_sub(monotonic_ns()))) {
            break;
        }
        let Some(mut frame) = until_signal(video.acquire(Wait::Forever))? else { break };
        pattern.write(frames, frame.bytes_mut());
        (frame.pts, frame.duration) = (Some(due), Some(time(frames + 1) - time(frames)));
        if until_signal(video.publish(&frame, Wait::Forever))?.is_none() {
            break;
        }
        frames += 1;
    }
    publisher.end()?;
    if json {
        return print_json(&json!({ "stream": options.stream, "frames": frames }));
    }
    let VideoFormat { pixels, width, height, .. } = pattern.format;
    let mut page = Page::new();
    page.line(&format!("{}: {frames} frames of {pixels} {width}x{height}", options.stream));
    page.print()
}

/// Runs `gst-launch-1.0` until the end of the file or a signal.
fn video(stream: &str, file: &Path) -> Result<(), Error> {
    named(stream)?;
    let target = uri(stream)?;
    let failed = |source: io::Error| Error::Video { path: file.to_owned(), source };
    let opened = std::fs::File::open(file).map_err(failed)?;
    let found = Command::new("gst-inspect-1.0")
        // Of any version: by default it is GStreamer's own.
        .args(["--exists", "--atleast-version=0.0", "framesharesink"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match found {
        Ok(status) if status.success() => {}
        Ok(_) => return Err(Error::NoPlugin),
        Err(_) => return Err(Error::NoGstLaunch),
    }
    let interrupt = signals::interrupt()?;
    let mut command = Command::new("gst-launch-1.0");
    // The line is parsed: the name of the file is not in it, and that of the stream is encoded.
    command.args("-q filesrc location=/dev/stdin ! decodebin name=decoded decoded. !".split(' '));
    // The first caps choose the video; the others refuse large frames. A decoder may take memory
    // for one of them before: GStreamer bounds an image by 2 GiB, and a drawing by nothing.
    let frames = format!("caps=video/x-raw(ANY),width=[1,{MAX_SIDE}],height=[1,{MAX_SIDE}]");
    command.args(["video/x-raw(ANY)", "!", "capsfilter", &frames, "!", "queue", "!", &target]);
    let ranks = env::var("GST_PLUGIN_FEATURE_RANK").map_or_else(|_| String::new(), |ranks| ranks + ",");
    command.env("GST_PLUGIN_FEATURE_RANK", ranks + "rsvgdec:NONE");
    let child = command.stdin(opened).stdout(Stdio::null()).spawn();
    let mut child = child.map_err(|_| Error::NoGstLaunch)?;
    let pid = Pid::from_child(&child);
    let process = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| failed(error.into()))?;
    let mut fds = [PollFd::new(&process, PollFlags::IN), PollFd::new(&interrupt, PollFlags::IN)];
    while let Err(Errno::INTR) = poll(&mut fds, None) {}
    if interrupt.is_set() {
        // The terminal sends it to both; a second one does no harm.
        let _ = kill_process(pid, Signal::INT);
    }
    let status = child.wait().map_err(failed)?;
    match status.success() || interrupt.is_set() {
        true => Ok(()),
        false => Err(Error::Gst { path: file.to_owned(), status }),
    }
}

/// Returns the URI of a stream for `framesharesink`. It has no character that the parser of
/// pipelines treats as more than text.
fn uri(stream: &str) -> Result<String, Error> {
    let failed = |source| Error::File { path: stream.into(), source };
    let name = match stream.contains('/') {
        true => std::path::absolute(stream).map_err(failed)?.to_string_lossy().into_owned(),
        false => stream.to_owned(),
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/@".contains(&byte);
    let encoded = name.bytes().map(|byte| match is_plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    });
    Ok(format!("frameshare://{}", encoded.collect::<String>()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cli::PublishOptions, pixels::Image};

    fn options(format: &str, size: (u32, u32)) -> PublishOptions {
        PublishOptions {
            stream: "cam0".into(),
            file: None,
            format: format.into(),
            size,
            rate: (30, 1),
            count: None,
            readers: 0,
        }
    }

    /// Written and read back in every format, with colors that no rounding changes by more than
    /// two code values.
    #[test]
    fn pattern_is_the_same_in_every_format() {
        let mut tested = 0;
        for pixels in PixelFormat::all().filter(|pixels| can_store(*pixels)) {
            let pattern = Pattern::new(&options(pixels.name(), (130, 64))).unwrap();
            let mut bytes = vec![0; pattern.background.len()];
            pattern.write(3, &mut bytes);
            let image = Image::of_bytes(&pattern.format, &[], &bytes).unwrap();
            let is_gray = pixels.name().starts_with("GRAY");
            // Colors of five bits are rough.
            let tolerance = if ["RGB15", "BGR15", "RGB16", "BGR16"].contains(&pixels.name()) { 8 } else { 2 };
            for (x, y, expected) in [(1, 1, BARS[0]), (20, 1, BARS[1]), (100, 1, BARS[6]), (25, 36, BOX)] {
                let [r, g, b] = expected.map(f32::from);
                let gray = [(0.299 * r + 0.587 * g + 0.114 * b).round() as u8; 3];
                let expected = if is_gray { gray } else { expected };
                let found = image.pixel(x, y);
                let differs = |at: usize| found[at].abs_diff(expected[at]) > tolerance;
                assert!(!(0..3).any(differs), "{pixels} {x},{y}: {found:?} for {expected:?}");
            }
            tested += 1;
        }
        assert!(tested > 125, "{tested}");
    }

    #[test]
    fn patterns_of_any_size_have_their_box_inside() {
        for size in [(1, 1), (2, 3), (8, 200), (641, 7)] {
            let pattern = Pattern::new(&options("I420", size)).unwrap();
            let mut bytes = vec![0; pattern.background.len()];
            (0..100).for_each(|number| pattern.write(number, &mut bytes));
        }
    }
}
