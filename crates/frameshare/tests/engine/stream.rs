// SPDX-License-Identifier: MIT OR Apache-2.0

//! One stream in a folder of its own, and frames whose content derives from a seed.

use frameshare::{
    Endpoint, Format, Interrupt, MAX_CREDIT, Policy, Sequence, Wait,
    exporter::{self, Exporter, Frame, PublishError, Purpose},
    fence::Written,
    reader::{self, ConnectError, Item, ReadError, Reader},
};
use std::{sync::atomic::Ordering, thread, time::Duration};

/// Size of most frames.
pub const SIZE: u64 = 10_000;

/// A stream in a folder of its own.
pub struct Stream {
    _folder: tempfile::TempDir,
    pub endpoint: Endpoint,
    pub interrupt: Interrupt,
}

impl Stream {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let endpoint = Endpoint::at(folder.path().join("s.sock")).unwrap();
        Self { _folder: folder, endpoint, interrupt: Interrupt::new().unwrap() }
    }

    pub fn exporter(&self) -> Exporter {
        self.exporter_with(exporter::Config::default())
    }

    pub fn exporter_with(&self, config: exporter::Config) -> Exporter {
        Exporter::bind(&self.endpoint, config, |_| ()).unwrap()
    }

    /// A reader whose queue is limited by its credit alone.
    pub fn reader(&self, policy: Policy) -> Reader {
        self.try_reader(reader::Config::default().policy(policy).max_queued(MAX_CREDIT)).unwrap()
    }

    pub fn try_reader(&self, config: reader::Config) -> Result<Reader, ConnectError> {
        Reader::connect(&self.endpoint, config, &self.interrupt)
    }

    /// Publishes a frame whose every byte derives from `seed`.
    pub fn publish(&self, exporter: &Exporter, seed: u64) -> Result<Sequence, PublishError> {
        self.publish_sized(exporter, seed, SIZE)
    }

    pub fn publish_sized(&self, exporter: &Exporter, seed: u64, size: u64) -> Result<Sequence, PublishError> {
        let slot = exporter.acquire(size, Purpose::Copy, Wait::No).unwrap();
        fill(slot.as_ptr().unwrap().as_ptr(), size, seed);
        exporter.publish(Frame { size, ..frame_in(&slot) }, Wait::Forever)
    }

    /// Returns the next item, which has to arrive.
    pub fn next(&self, reader: &mut Reader) -> Result<Item, ReadError> {
        let item = reader.next(Some(Duration::from_secs(20)), &self.interrupt)?;
        Ok(item.expect("nothing came within 20 seconds"))
    }

    pub fn next_frame(&self, reader: &mut Reader) -> reader::Frame {
        loop {
            match self.next(reader).unwrap() {
                Item::Frame(frame) => return frame,
                Item::EndOfStream => panic!("the stream ended"),
                _ => {}
            }
        }
    }
}

/// Returns a frame that fills a slot.
pub fn frame_in(slot: &exporter::Slot) -> Frame<'_> {
    Frame::new(slot, slot.size(), Written::Cpu)
}

/// Returns a format with these caps.
pub fn format(caps: &str) -> Format {
    Format { caps: caps.into(), video: None }
}

/// Returns the byte at a position of a frame.
pub fn byte(seed: u64, index: u64) -> u8 {
    (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left((index % 61) as u32) >> 7) as u8 ^ index as u8
}

/// Writes the content of `seed`.
#[expect(unsafe_code, reason = "writing a slot that was just acquired")]
pub fn fill(start: *mut u8, size: u64, seed: u64) {
    for index in 0..size {
        // SAFETY: the slot has at least `size` bytes, and no other reference to it exists.
        unsafe { start.add(index as usize).write(byte(seed, index)) };
    }
}

/// Returns whether a frame has the content of `seed`.
pub fn holds(frame: &reader::Frame, seed: u64) -> bool {
    let bytes = frame.bytes();
    bytes.iter().zip(0..).all(|(found, index)| found.load(Ordering::Relaxed) == byte(seed, index))
}

/// Waits for a condition that another thread establishes.
pub fn until(mut condition: impl FnMut() -> bool) {
    for _ in 0..20_000 {
        if condition() {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("it did not come about within 20 seconds");
}
