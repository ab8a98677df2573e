// SPDX-License-Identifier: MIT OR Apache-2.0

//! Adopted memory that a reader cannot read.

use frameshare_protocol::MemoryKind;

/// The reasons why a reader cannot read adopted memory, by its kind.
#[derive(Clone, Debug, Default)]
pub struct CannotAdopt {
    /// CUDA memory.
    pub cuda: Option<String>,
    /// Dma-bufs.
    pub dma_buf: Option<String>,
}

impl CannotAdopt {
    /// The reason for memory of this kind, if there is one.
    pub fn of(&self, kind: MemoryKind) -> Option<&str> {
        if kind == MemoryKind::DmaBuf { self.dma_buf.as_deref() } else { self.cuda.as_deref() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_is_of_the_kind_of_memory() {
        let reasons = CannotAdopt { cuda: Some("no GPU".into()), dma_buf: Some("no modifiers".into()) };
        assert_eq!(reasons.of(MemoryKind::DmaBuf), Some("no modifiers"));
        assert_eq!(reasons.of(MemoryKind::Vmm), Some("no GPU"));
        assert_eq!(CannotAdopt { cuda: None, ..reasons }.of(MemoryKind::Vmm), None);
    }
}
