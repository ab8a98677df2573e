// SPDX-License-Identifier: MIT OR Apache-2.0

//! The decisions of an exporter: who is admitted, who gets which frame, which slot is free, and
//! what is freed when. See [`state::State`].

pub mod accounts;
pub mod ending;
#[cfg(test)]
mod fake;
pub mod limits;
pub mod link;
pub mod notice;
pub mod now;
pub mod parts;
pub mod peer;
pub mod service;
pub mod shortage;
pub mod slot;
pub mod state;
pub mod statistics;
pub mod system;
pub mod unit;
pub mod unpublished;
pub mod wait;

use frameshare_protocol::MemoryKind;

/// Returns whether every import has to be closed before the exporter may free: otherwise the
/// behavior is undefined (CUDA driver API, cuIpcCloseMemHandle and cuMemPoolImportPointer).
pub fn frees_imports_first(kind: MemoryKind) -> bool {
    matches!(kind, MemoryKind::Legacy | MemoryKind::Pool)
}
