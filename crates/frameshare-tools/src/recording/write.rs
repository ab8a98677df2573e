// SPDX-License-Identifier: MIT OR Apache-2.0

//! Writing of recordings.

use super::{MAGIC, RecordedFrame, VERSION, kind};
use frameshare::{Event, Format};
use serde_json::{Value, json};
use std::io::{self, Write};

/// Writes a recording.
#[derive(Debug)]
pub struct Recorder<W: Write> {
    file: W,
    /// Frames and bytes of frames so far, and frames that were lost between them.
    pub frames: u64,
    pub bytes: u64,
    pub lost: u64,
}

impl<W: Write> Recorder<W> {
    /// Begins a recording.
    pub fn new(mut file: W) -> io::Result<Self> {
        file.write_all(&MAGIC)?;
        file.write_all(&VERSION.to_le_bytes())?;
        Ok(Self { file, frames: 0, bytes: 0, lost: 0 })
    }

    pub fn format(&mut self, format: &Format) -> io::Result<()> {
        let video = format
            .video
            .as_ref()
            .map(|video| json!({ "format": video.format, "width": video.width, "height": video.height }));
        self.chunk(kind::FORMAT, &json!({ "caps": format.caps, "video": video }), &[])
    }

    pub fn event(&mut self, event: &Event) -> io::Result<()> {
        let head = json!({ "kind": event.kind, "sticky": event.sticky });
        self.chunk(kind::EVENT, &head, &[&event.payload])
    }

    pub fn frame(&mut self, frame: &RecordedFrame) -> io::Result<()> {
        let planes: Vec<Value> =
            frame.planes.iter().map(|plane| json!([plane.offset, plane.stride])).collect();
        let head = json!({
            "sequence": frame.sequence,
            "published": frame.published,
            "pts": frame.pts,
            "dts": frame.dts,
            "duration": frame.duration,
            "media_offset": frame.media_offset,
            "media_offset_end": frame.media_offset_end,
            "flags": frame.flags,
            "lost": frame.lost,
            "planes": planes,
            "metadata": frame.metadata.len(),
        });
        self.chunk(kind::FRAME, &head, &[&frame.metadata, &frame.bytes])?;
        // Before the first frame the recorder was not there.
        self.lost += if self.frames > 0 { frame.lost } else { 0 };
        self.frames += 1;
        self.bytes += frame.bytes.len() as u64;
        Ok(())
    }

    pub fn end_of_stream(&mut self) -> io::Result<()> {
        self.chunk(kind::END_OF_STREAM, &json!({}), &[])
    }

    /// Ends the recording, and returns the file.
    pub fn finish(mut self) -> io::Result<W> {
        self.chunk(kind::END, &json!({ "frames": self.frames, "lost": self.lost }), &[])?;
        self.file.flush()?;
        Ok(self.file)
    }

    fn chunk(&mut self, kind: u32, head: &Value, body: &[&[u8]]) -> io::Result<()> {
        let head = head.to_string().into_bytes();
        let length: u64 = body.iter().map(|part| part.len() as u64).sum();
        if length > super::MAX_BODY {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "a frame is longer than 1 GiB"));
        }
        let mut fixed = Vec::with_capacity(super::FIXED);
        fixed.extend(kind.to_le_bytes());
        // Heads have some hundred bytes, and caps at most a message's.
        fixed.extend((head.len() as u32).to_le_bytes());
        fixed.extend(length.to_le_bytes());
        let sum = checksum(&[&fixed, &head]);
        fixed.extend(sum.to_le_bytes());
        fixed.extend(checksum(body).to_le_bytes());
        [&fixed[..], &head]
            .into_iter()
            .chain(body.iter().copied())
            .try_for_each(|part| self.file.write_all(part))
    }
}

/// Returns the CRC-32 of parts that follow each other.
pub fn checksum(parts: &[&[u8]]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    parts.iter().for_each(|part| hasher.update(part));
    hasher.finalize()
}
