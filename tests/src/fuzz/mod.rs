// SPDX-License-Identifier: MIT OR Apache-2.0

//! Fuzz targets. `make test` runs them on the inputs in tests/fuzz/corpus.
//!
//! Each function accepts arbitrary bytes. A bug shows as a panic, as a hang or as a sanitizer
//! report.

mod exporter;
mod messages;
mod reader;

pub use exporter::exporter;
pub use messages::{to_exporter, to_reader};
pub use reader::reader;

/// Name of a target, which is also its folder in the corpus, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 4] =
    [("to_exporter", to_exporter), ("to_reader", to_reader), ("exporter", exporter), ("reader", reader)];

/// Decisions read from the bytes of an input. They are 0 past its end.
struct Choices<'a>(&'a [u8]);

impl<'a> Choices<'a> {
    fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// Returns a number below `end`.
    fn below(&mut self, end: usize) -> usize {
        usize::from(u16::from_le_bytes([self.byte(), self.byte()])) % end.max(1)
    }

    /// Returns any number, often one at a limit.
    fn number(&mut self) -> u64 {
        match self.byte() {
            small @ 0..=127 => small.into(),
            128 => u64::MAX,
            129 => u64::MAX - 1,
            130 => 1 << 62,
            131 => (1 << 62) - 1,
            132 => 1 << 32,
            133 => u32::MAX.into(),
            134 => 4096,
            135 => 4097,
            _ => u64::from_le_bytes(std::array::from_fn(|_| self.byte())),
        }
    }

    /// Returns the next bytes: as many as the input says, at most `most`.
    fn some_bytes(&mut self, most: usize) -> &'a [u8] {
        let len = self.below(most + 1).min(self.0.len());
        let (taken, rest) = self.0.split_at(len);
        self.0 = rest;
        taken
    }
}
