// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reading of recordings, whose content is checked: any program may have written them.

use super::{Entry, FIXED, MAGIC, MAX_BODY, MAX_HEAD, RecordedFrame, VERSION, kind, write::checksum};
use frameshare::{Event, Format, Plane, Video};
use serde_json::Value;
use std::io::{self, Read};

/// The reason why a recording cannot be read, or not beyond some frame.
#[derive(Debug, thiserror::Error)]
pub enum Damage {
    #[error("it is no recording of frameshare")]
    NoRecording,
    #[error(
        "its version is {found}, this frameshare reads version {VERSION}: use the release that recorded it, or a newer one"
    )]
    Version { found: u32 },
    #[error(
        "it ends within the entry at byte {at}, behind {frames} complete frames: its recorder was killed, or the disk was full"
    )]
    Truncated { at: u64, frames: u64 },
    #[error("the entry at byte {at}, behind {frames} complete frames, is damaged: {what}")]
    Damaged { at: u64, frames: u64, what: &'static str },
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// An open recording.
#[derive(Debug)]
pub struct Recording<R: Read> {
    file: R,
    /// Bytes read so far, up to the present entry.
    at: u64,
    /// Complete frames so far.
    frames: u64,
    has_ended: bool,
}

/// A chunk of the file.
struct Chunk {
    kind: u32,
    head: Value,
    body: Vec<u8>,
    /// Its whole length.
    length: u64,
}

impl<R: Read> Recording<R> {
    /// Opens a recording at its first byte.
    pub fn new(mut file: R) -> Result<Self, Damage> {
        let mut first = [0; MAGIC.len() + 4];
        file.read_exact(&mut first).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => Damage::NoRecording,
            _ => error.into(),
        })?;
        let (magic, version) = first.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(Damage::NoRecording);
        }
        match word(version) as u32 {
            VERSION => Ok(Self { file, at: first.len() as u64, frames: 0, has_ended: false }),
            found => Err(Damage::Version { found }),
        }
    }

    /// Returns the next entry; `None` behind the last one of a complete recording.
    pub fn next(&mut self) -> Result<Option<Entry>, Damage> {
        if self.has_ended {
            return Ok(None);
        }
        let chunk = self.chunk()?;
        let damaged = |what| Damage::Damaged { at: self.at, frames: self.frames, what };
        let length = chunk.length;
        let entry = match chunk.kind {
            kind::FORMAT => Entry::Format(format(&chunk.head).ok_or(damaged("invalid format"))?),
            kind::EVENT => Entry::Event(event(chunk).ok_or(damaged("invalid event"))?),
            kind::FRAME => Entry::Frame(frame(chunk).ok_or(damaged("invalid frame"))?),
            kind::END_OF_STREAM => Entry::EndOfStream,
            kind::END if chunk.head["frames"] == self.frames => {
                self.has_ended = true;
                return Ok(None);
            }
            kind::END => return Err(damaged("frames are missing")),
            _ => return Err(damaged("unknown kind")),
        };
        self.frames += u64::from(matches!(entry, Entry::Frame(_)));
        self.at += length;
        Ok(Some(entry))
    }

    fn chunk(&mut self) -> Result<Chunk, Damage> {
        let fixed = self.bytes(FIXED as u64)?;
        let number = |from: usize, bytes: usize| word(&fixed[from..from + bytes]);
        let (kind, head, body) = (number(0, 4) as u32, number(4, 4) as u32, number(8, 8));
        let (head_sum, body_sum) = (number(16, 4) as u32, number(20, 4) as u32);
        let damaged = |what| Damage::Damaged { at: self.at, frames: self.frames, what };
        if head > MAX_HEAD {
            return Err(damaged("invalid length"));
        }
        if body > MAX_BODY {
            return Err(damaged("it is longer than 1 GiB"));
        }
        let length = (FIXED as u64 + u64::from(head)).saturating_add(body);
        let head = self.bytes(head.into())?;
        let damaged = |what| Damage::Damaged { at: self.at, frames: self.frames, what };
        if checksum(&[&fixed[..16], &head]) != head_sum {
            return Err(damaged("its checksum differs"));
        }
        let head = serde_json::from_slice(&head).map_err(|_| damaged("invalid head"))?;
        let body = self.bytes(body)?;
        if checksum(&[&body]) != body_sum {
            return Err(Damage::Damaged { at: self.at, frames: self.frames, what: "its checksum differs" });
        }
        Ok(Chunk { kind, head, body, length })
    }

    /// Reads so many bytes. Memory is taken for those that are there, not for those announced.
    fn bytes(&mut self, count: u64) -> Result<Vec<u8>, Damage> {
        let mut bytes = Vec::new();
        self.file.by_ref().take(count).read_to_end(&mut bytes)?;
        match bytes.len() as u64 == count {
            true => Ok(bytes),
            false => Err(Damage::Truncated { at: self.at, frames: self.frames }),
        }
    }
}

/// Returns a little-endian number of up to eight bytes.
fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

fn format(head: &Value) -> Option<Format> {
    let length = |value: &Value| value.as_u64().and_then(|length| u32::try_from(length).ok());
    let video = match &head["video"] {
        Value::Null => None,
        video => Some(Video {
            format: video["format"].as_str()?.to_owned(),
            width: length(&video["width"])?,
            height: length(&video["height"])?,
        }),
    };
    Some(Format { caps: head["caps"].as_str()?.to_owned(), video })
}

fn event(Chunk { head, body, .. }: Chunk) -> Option<Event> {
    let kind = head["kind"].as_u64().and_then(|kind| u32::try_from(kind).ok())?;
    Some(Event { kind, sticky: head["sticky"].as_bool()?, payload: body })
}

fn frame(Chunk { head, mut body, .. }: Chunk) -> Option<RecordedFrame> {
    let number = |name: &str| head[name].as_u64();
    let optional = |name: &str| match &head[name] {
        Value::Null => Some(None),
        value => value.as_u64().map(Some),
    };
    let plane = |plane: &Value| {
        let stride = plane[1].as_i64().and_then(|stride| i32::try_from(stride).ok())?;
        Some(Plane { offset: plane[0].as_u64()?, stride })
    };
    let metadata = usize::try_from(number("metadata")?).ok().filter(|length| *length <= body.len())?;
    let bytes = body.split_off(metadata);
    Some(RecordedFrame {
        sequence: number("sequence")?,
        published: number("published")?,
        pts: optional("pts")?,
        dts: optional("dts")?,
        duration: optional("duration")?,
        media_offset: optional("media_offset")?,
        media_offset_end: optional("media_offset_end")?,
        flags: number("flags")?,
        lost: number("lost")?,
        planes: head["planes"].as_array()?.iter().map(plane).collect::<Option<_>>()?,
        metadata: body,
        bytes,
    })
}
