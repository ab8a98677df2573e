// SPDX-License-Identifier: MIT OR Apache-2.0

//! `frameshare play`: a recording as a stream.

use crate::{
    cli::PlayOptions,
    error::Error,
    output::{Page, print_json},
    publisher::{Publisher, named, until_signal},
    recording::{Damage, Entry, RecordedFrame, Recording},
};
use frameshare::{
    Format, Plane, Wait,
    exporter::{Frame, Unit},
    fence::Written,
    monotonic_ns,
};
use serde_json::json;
use std::{
    collections::HashMap,
    fs::File,
    io::{self, BufReader},
    ops::ControlFlow,
    time::Duration,
};

/// Bits of GStreamer's flags.
const DISCONT: u64 = 1 << 2;
const HEADER: u64 = 1 << 6;
const DELTA: u64 = 1 << 9;

/// Progress over all rounds.
#[derive(Debug, Default)]
struct Progress {
    frames: u64,
    bytes: u64,
    /// Published frames of this round.
    round: u64,
    /// Time of the recording that corresponds to time `begin` of this machine.
    origin: Option<u64>,
    begin: u64,
    /// Time of the recording of the last frame, and to the one before.
    last: u64,
    step: u64,
    /// The present format and sticky events: a further round does not begin with them.
    format: Option<Format>,
    sticky: HashMap<u32, Vec<u8>>,
}

/// Plays a recording until it has ended, or a signal comes.
pub fn play(options: &PlayOptions, json: bool) -> Result<(), Error> {
    named(&options.stream)?;
    // Before the stream opens: no reader sees one without frames.
    drop(open(options)?);
    let publisher = Publisher::open(&options.stream)?;
    publisher.wait_for_readers(options.readers)?;
    let mut progress = Progress { begin: monotonic_ns(), ..Progress::default() };
    let result = loop {
        progress.round = 0;
        match round(options, &publisher, &mut progress) {
            Ok(ControlFlow::Continue(())) if options.repeat && progress.round > 0 => progress.rewind(),
            Ok(_) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    publisher.end()?;
    if json {
        let file = options.file.display().to_string();
        print_json(&json!({ "file": file, "frames": progress.frames, "bytes": progress.bytes }))?;
    } else {
        let mut page = Page::new();
        page.line(&format!(
            "{}: {} frames, {} bytes",
            options.file.display(),
            progress.frames,
            progress.bytes
        ));
        page.print()?;
    }
    result
}

fn open(options: &PlayOptions) -> Result<Recording<BufReader<File>>, Error> {
    let path = &options.file;
    let failed = |damage| Error::Recording { path: path.clone(), damage };
    let file = File::open(path).map_err(|source| failed(Damage::Io(source)))?;
    if file.metadata().is_ok_and(|found| found.is_dir()) {
        return Err(failed(Damage::Io(io::ErrorKind::IsADirectory.into())));
    }
    Recording::new(BufReader::with_capacity(1 << 20, file)).map_err(failed)
}

/// Plays all entries once. Breaks at a signal.
fn round(
    options: &PlayOptions,
    publisher: &Publisher,
    progress: &mut Progress,
) -> Result<ControlFlow<()>, Error> {
    let mut recording = open(options)?;
    let is_first = progress.frames == 0;
    let is_again = |progress: &Progress| !is_first && progress.round == 0;
    let mut units = Units::default();
    loop {
        let entry = recording.next();
        let entry = entry.map_err(|damage| Error::Recording { path: options.file.clone(), damage })?;
        match entry {
            None => return Ok(ControlFlow::Continue(())),
            Some(Entry::Format(format)) => {
                units = Units::of(&format.caps);
                if !is_again(progress) || progress.format.as_ref() != Some(&format) {
                    progress.format = Some(format.clone());
                    publisher.exporter.set_format(format);
                }
            }
            Some(Entry::Event(event)) => {
                let is_known = event.sticky && progress.sticky.get(&event.kind) == Some(&event.payload);
                let is_known = is_known && is_again(progress);
                if event.sticky {
                    progress.sticky.insert(event.kind, event.payload.clone());
                }
                if !is_known {
                    publisher.exporter.send_event(event)?;
                }
            }
            // The stream ends when the command does.
            Some(Entry::EndOfStream) => {}
            Some(Entry::Frame(mut frame)) => {
                if is_again(progress) {
                    frame.flags |= DISCONT;
                }
                let due = progress.note(&frame);
                let wait = Duration::from_nanos(due.saturating_sub(monotonic_ns()));
                if !options.fast && publisher.sleep(wait) || publisher.interrupt.is_set() {
                    return Ok(ControlFlow::Break(()));
                }
                if publish(publisher, progress, &frame, units.next(frame.flags))?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
        }
    }
}

impl Progress {
    /// Notes the time of the next frame, and returns when it is due.
    fn note(&mut self, frame: &RecordedFrame) -> u64 {
        let origin = *self.origin.get_or_insert(frame.published);
        // The clock of another exporter can be behind.
        let time = frame.published.max(origin);
        self.step = if self.last > 0 { time.saturating_sub(self.last) } else { self.step };
        self.last = time;
        self.shift(time)
    }

    /// Returns the time here of a time of the recording, or the nearest one that a frame can have.
    fn shift(&self, time: u64) -> u64 {
        let difference = i128::from(self.begin) - i128::from(self.origin.unwrap_or(0));
        (i128::from(time) + difference).clamp(0, i128::from(u64::MAX - 1)) as u64
    }

    /// Goes on with the first frame one step behind the last.
    fn rewind(&mut self) {
        self.begin = self.shift(self.last).saturating_add(self.step.max(1));
        (self.origin, self.last) = (None, 0);
    }
}

fn publish(
    publisher: &Publisher,
    progress: &mut Progress,
    frame: &RecordedFrame,
    unit: Unit,
) -> Result<ControlFlow<()>, Error> {
    let size = frame.bytes.len() as u64;
    let fill = |bytes: &mut [u8]| bytes.copy_from_slice(&frame.bytes);
    let Some(slot) = until_signal(publisher.exporter.filled(size, Wait::Forever, fill))? else {
        return Ok(ControlFlow::Break(()));
    };
    let planes: &[Plane] = &frame.planes;
    let described = Frame {
        pts: frame.pts.map(|time| progress.shift(time)),
        dts: frame.dts.map(|time| progress.shift(time)),
        duration: frame.duration,
        media_offset: frame.media_offset,
        media_offset_end: frame.media_offset_end,
        flags: frame.flags,
        planes,
        metadata: &frame.metadata,
        unit,
        ..Frame::new(&slot, size, Written::Cpu)
    };
    if until_signal(publisher.exporter.publish(described, Wait::Forever))?.is_none() {
        return Ok(ControlFlow::Break(()));
    }
    progress.frames += 1;
    progress.round += 1;
    progress.bytes += size;
    Ok(ControlFlow::Continue(()))
}

/// Dependencies of the frames of a format.
#[derive(Debug, Default)]
struct Units {
    is_encoded: bool,
    is_behind_header: bool,
}

impl Units {
    fn of(caps: &str) -> Self {
        let is_encoded = caps.starts_with("video/") && !caps.starts_with("video/x-raw");
        Self { is_encoded, is_behind_header: false }
    }

    /// Returns the dependency of the next frame. A header and the unit behind it belong together.
    fn next(&mut self, flags: u64) -> Unit {
        let is_delta = flags & DELTA != 0 || self.is_behind_header;
        self.is_behind_header = flags & HEADER != 0;
        match (self.is_encoded, is_delta) {
            (false, _) => Unit::Whole,
            (true, true) => Unit::Delta,
            (true, false) => Unit::Key,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_of_encoded_video_begin_at_headers_or_keys() {
        let of = |caps: &str| {
            let mut units = Units::of(caps);
            [HEADER, 0, DELTA, 0, DELTA].map(|flags| units.next(flags))
        };
        assert_eq!(of("video/x-h264, x=1"), [Unit::Key, Unit::Delta, Unit::Delta, Unit::Key, Unit::Delta]);
        assert_eq!([of("video/x-raw(memory:X), x=1"), of("audio/mpeg")], [[Unit::Whole; 5]; 2]);
    }

    #[test]
    fn times_go_on_in_next_round() {
        let at = |published| RecordedFrame { published, ..RecordedFrame::default() };
        let mut progress = Progress { begin: 1_000, ..Progress::default() };
        assert_eq!([500, 530, 560].map(|time| progress.note(&at(time))), [1_000, 1_030, 1_060]);
        assert_eq!(progress.shift(490), 990);
        progress.rewind();
        assert_eq!([500, 530, 560].map(|time| progress.note(&at(time))), [1_090, 1_120, 1_150]);
        assert_eq!(progress.shift(490), 1_080);
    }

    /// A recording may say any times.
    #[test]
    fn times_at_the_end_of_64_bits_do_not_overflow() {
        let at = |published| RecordedFrame { published, ..RecordedFrame::default() };
        let mut progress = Progress { begin: 1_000, ..Progress::default() };
        assert_eq!([1, u64::MAX - 1_000].map(|time| progress.note(&at(time))), [1_000, u64::MAX - 1]);
        progress.rewind();
        assert_eq!([5, u64::MAX].map(|time| progress.note(&at(time))), [u64::MAX - 1; 2]);
    }
}
