// SPDX-License-Identifier: MIT OR Apache-2.0

//! `frameshare record`.

use crate::{
    cli::RecordOptions,
    error::Error,
    frames::Frames,
    output::{Page, print_json},
    recording::{RecordedFrame, Recorder},
};
use frameshare::{
    Event, Policy,
    reader::{Config, Frame, Item, ReadError},
};
use serde_json::json;
use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, BufWriter, Write},
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

/// Frames that may wait for the disk.
const MAX_HELD: u32 = 16;

/// Records a stream until it ends, or a limit or a signal comes.
pub fn record(options: &RecordOptions, json: bool) -> Result<(), Error> {
    let policy = if options.lossless { Policy::Lossless } else { Policy::Latest };
    let config = Config::default().policy(policy).max_held(MAX_HELD).max_queued(MAX_HELD);
    let mut frames = Frames::join_with(&options.stream, config)?;
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::AlreadyExists => Error::Exists { path: options.file.clone() },
        _ => Error::File { path: options.file.clone(), source },
    };
    let mut open = File::options();
    open.write(true);
    match options.force {
        true => open.create(true).truncate(true),
        false => open.create_new(true),
    };
    let file = open.open(&options.file).map_err(failed)?;
    let mut recorder = Recorder::new(BufWriter::with_capacity(1 << 20, file)).map_err(failed)?;
    let end = receive(&mut frames, &mut recorder, options)?.map_err(failed)?;
    let (count, bytes, lost) = (recorder.frames, recorder.bytes, recorder.lost);
    recorder.finish().map_err(failed)?;
    if json {
        let file = options.file.display().to_string();
        print_json(&json!({ "file": file, "frames": count, "bytes": bytes, "lost": lost }))?;
    } else {
        let mut page = Page::new();
        let lost = match (lost, options.lossless) {
            (0, _) => String::new(),
            (lost, true) => format!(", {lost} lost"),
            (lost, false) => format!(", {lost} lost (--lossless loses none)"),
        };
        page.line(&format!("{}: {count} frames, {bytes} bytes{lost}", options.file.display()));
        page.print()?;
    }
    // The recording is complete up to the end of the connection.
    end.map_or(Ok(()), |error| Err(error.into()))
}

/// Records up to the end, and returns the error that ended the stream, if one did.
fn receive<W: Write>(
    frames: &mut Frames,
    recorder: &mut Recorder<W>,
    options: &RecordOptions,
) -> Result<io::Result<Option<ReadError>>, Error> {
    let deadline = options.duration.map(|duration| Instant::now() + duration);
    // The protocol does not say whether an event is kept for readers that join later. Kept are the
    // events that this reader received when it joined, and all later ones of their kinds.
    let mut sticky = BTreeSet::from([Event::STREAM_START]);
    let most = options.count.unwrap_or(u64::MAX);
    while recorder.frames < most {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            break;
        }
        let written = match frames.next_item(left) {
            Ok(Some(Item::Frame(frame))) => recorder.frame(&recorded(frame)),
            Ok(Some(Item::Format(format))) => recorder.format(&format),
            Ok(Some(Item::Event(mut event))) => {
                if recorder.frames == 0 {
                    sticky.insert(event.kind);
                }
                event.sticky = sticky.contains(&event.kind);
                recorder.event(&event)
            }
            Ok(Some(Item::EndOfStream)) => {
                return Ok(recorder.end_of_stream().map(|()| None));
            }
            Ok(Some(Item::Reconnected)) => Ok(()),
            Ok(None) | Err(ReadError::Interrupted | ReadError::Stopped(_)) => break,
            Err(error) => return Ok(Ok(Some(error))),
        };
        if let Err(error) = written {
            return Ok(Err(error));
        }
    }
    Ok(Ok(None))
}

/// Copies a frame; its slot returns to the exporter before the disk has it.
fn recorded(mut frame: Frame) -> RecordedFrame {
    let metadata = frame.take_metadata();
    let descriptor = frame.descriptor();
    let bytes = match frame.slice() {
        Some(bytes) => bytes.to_vec(),
        None => frame.bytes().iter().map(|byte| byte.load(Ordering::Relaxed)).collect(),
    };
    RecordedFrame {
        sequence: descriptor.sequence.0,
        published: descriptor.published,
        pts: descriptor.pts,
        dts: descriptor.dts,
        duration: descriptor.duration,
        media_offset: descriptor.media_offset,
        media_offset_end: descriptor.media_offset_end,
        flags: descriptor.flags,
        lost: frame.lost_before(),
        planes: descriptor.used_planes().to_vec(),
        metadata,
        bytes,
    }
}
