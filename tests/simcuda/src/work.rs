// SPDX-License-Identifier: MIT OR Apache-2.0

//! Effects of copies and memsets on memory.
//!
//! # Safety
//!
//! The addresses are device memory, which the queue checks against the table of regions and holds there while the work
//! runs, or host memory, which the caller keeps until the work is done, as CUDA asks.

/// Where the bytes come from.
#[derive(Debug)]
pub enum Source {
    /// Device memory, or host memory that the device can see.
    At { address: usize, device: bool },
    /// A copy of the caller's pageable memory, taken when the copy was asked for.
    Staged(Box<[u8]>),
    /// One value over and over, of 1, 2 or 4 bytes.
    Pattern { value: u32, size: usize },
}

/// One copy or memset of `height` rows of `width` bytes.
#[derive(Debug)]
pub struct Work {
    pub to: usize,
    pub to_pitch: usize,
    /// Whether the target is device memory or memory that the device can see.
    pub to_device: bool,
    pub from: Source,
    pub from_pitch: usize,
    pub width: usize,
    pub height: usize,
}

/// The bytes from the first row's start to the last row's end.
pub fn span(pitch: usize, width: usize, height: usize) -> usize {
    if height == 0 { 0 } else { pitch.saturating_mul(height - 1).saturating_add(width) }
}

impl Work {
    /// The range that is written, if it is the device's.
    pub fn written(&self) -> Option<(usize, usize)> {
        self.to_device.then(|| (self.to, span(self.to_pitch, self.width, self.height)))
    }

    /// The range that is read, if it is the device's.
    pub fn read(&self) -> Option<(usize, usize)> {
        match self.from {
            Source::At { address, device: true } => {
                Some((address, span(self.from_pitch, self.width, self.height)))
            }
            _ => None,
        }
    }

    /// Does a part of the rows. Allocates nothing, so that it can also run after the process's death.
    pub fn run(&self, rows: std::ops::Range<usize>) {
        for row in rows {
            let to = (self.to + row * self.to_pitch) as *mut u8;
            let from = match &self.from {
                Source::At { address, .. } => (address + row * self.from_pitch) as *const u8,
                Source::Staged(bytes) => bytes[row * self.from_pitch..].as_ptr(),
                &Source::Pattern { value, size } => {
                    fill(to, self.width, value, size);
                    continue;
                }
            };
            // SAFETY: see the file's header: both rows are valid for `width` bytes; they may overlap.
            unsafe { std::ptr::copy(from, to, self.width) }
        }
    }
}

fn fill(to: *mut u8, width: usize, value: u32, size: usize) {
    let bytes = value.to_le_bytes();
    if size == 1 {
        // SAFETY: see the file's header: the row is valid for `width` bytes.
        unsafe { std::ptr::write_bytes(to, bytes[0], width) };
        return;
    }
    for at in 0..width {
        // SAFETY: the same row.
        unsafe { to.add(at).write(bytes[at % size]) };
    }
}
