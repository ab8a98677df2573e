// SPDX-License-Identifier: MIT OR Apache-2.0

//! Effects of copies and memsets on memory.
//!
//! # Safety
//!
//! The addresses are device memory or host memory. For device memory, the queue checks them against
//! the table of regions and keeps the table locked while the work runs. Host memory is kept by the
//! caller until the work is complete, as CUDA requires.

use std::ops::Range;

/// Source of the bytes.
#[derive(Debug)]
pub enum Source {
    /// Device memory, or host memory with device access.
    At { address: usize, device: bool },
    /// A copy of the caller's pageable memory, taken when the copy was requested.
    Staged(Box<[u8]>),
    /// A repeated value of 1, 2 or 4 bytes.
    Pattern { value: u32, size: usize },
}

/// A part of the rows, or of the bytes of a single row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    All,
    FirstHalf,
    SecondHalf,
}

impl Part {
    /// Returns this part of `count` things; the halves meet at a multiple of `unit`.
    fn of(self, count: usize, unit: usize) -> Range<usize> {
        let middle = count / 2 / unit * unit;
        match self {
            Part::All => 0..count,
            Part::FirstHalf => 0..middle,
            Part::SecondHalf => middle..count,
        }
    }
}

/// One copy or memset of `height` rows of `width` bytes.
#[derive(Debug)]
pub struct Work {
    pub to: usize,
    pub to_pitch: usize,
    /// Whether the target is device memory or host memory with device access.
    pub to_device: bool,
    pub from: Source,
    pub from_pitch: usize,
    pub width: usize,
    pub height: usize,
}

/// Returns the number of bytes from the first row's start to the last row's end.
pub fn span(pitch: usize, width: usize, height: usize) -> usize {
    if height == 0 { 0 } else { pitch.saturating_mul(height - 1).saturating_add(width) }
}

impl Work {
    /// Returns the written range, if the device accesses it.
    pub fn written(&self) -> Option<(usize, usize)> {
        self.to_device.then(|| (self.to, span(self.to_pitch, self.width, self.height)))
    }

    /// Returns the read range, if the device accesses it.
    pub fn read(&self) -> Option<(usize, usize)> {
        match self.from {
            Source::At { address, device: true } => {
                Some((address, span(self.from_pitch, self.width, self.height)))
            }
            _ => None,
        }
    }

    /// Executes a part of the work. Allocates nothing, so that it can also run after the process's
    /// death.
    pub fn run(&self, part: Part) {
        // A pattern has at most 4 bytes.
        let (rows, bytes) = if self.height > 1 {
            (part.of(self.height, 1), 0..self.width)
        } else {
            (0..self.height, part.of(self.width, 4))
        };
        for row in rows {
            let to = (self.to + row * self.to_pitch + bytes.start) as *mut u8;
            let from = match &self.from {
                Source::At { address, .. } => (address + row * self.from_pitch + bytes.start) as *const u8,
                Source::Staged(staged) => staged[row * self.from_pitch + bytes.start..].as_ptr(),
                &Source::Pattern { value, size } => {
                    fill(to, bytes.len(), value, size);
                    continue;
                }
            };
            // SAFETY: see the module header: both rows are valid for `width` bytes, and this is a
            // part of them; they may overlap.
            unsafe { std::ptr::copy(from, to, bytes.len()) }
        }
    }
}

fn fill(to: *mut u8, width: usize, value: u32, size: usize) {
    let bytes = value.to_le_bytes();
    if size == 1 {
        // SAFETY: see the module header: the row is valid for `width` bytes.
        unsafe { std::ptr::write_bytes(to, bytes[0], width) };
        return;
    }
    for at in 0..width {
        // SAFETY: the same row.
        unsafe { to.add(at).write(bytes[at % size]) };
    }
}
