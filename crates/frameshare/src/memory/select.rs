// SPDX-License-Identifier: MIT OR Apache-2.0

//! Selection of the kind of memory, by the configuration and the abilities of the device.

use frameshare_cuda::{context::Context, memory};
use frameshare_protocol::MemoryKind;
use std::sync::Arc;

/// A selected kind, and the reason for it, for logs and statistics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selected<Kind> {
    /// The selected kind.
    pub kind: Kind,
    /// The reason.
    pub why: String,
}

/// A kind that this machine lacks: the text names the kind, the device and the missing ability.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Lacking(pub String);

/// The kinds of memory that a device can share.
pub fn kinds(gpu: Option<&Arc<Context>>) -> Vec<MemoryKind> {
    let all = [MemoryKind::Host, MemoryKind::Vmm, MemoryKind::Pool, MemoryKind::Legacy];
    all.into_iter().filter(|kind| lacks(*kind, gpu).is_none()).collect()
}

/// Selects the kind of memory for a stream: the wanted one, or the best available.
///
/// # Errors
/// [`Lacking`] with the reason for each kind.
pub fn select(
    wanted: Option<MemoryKind>,
    gpu: Option<&Arc<Context>>,
) -> Result<Selected<MemoryKind>, Lacking> {
    if let Some(kind) = wanted {
        return match lacks(kind, gpu) {
            Some(lack) => Err(Lacking(lack)),
            None => Ok(Selected { kind, why: "requested".into() }),
        };
    }
    if gpu.is_none() {
        return Ok(Selected { kind: MemoryKind::Host, why: "no GPU is used".into() });
    }
    // vmm outlives its exporter and is mapped read-only; legacy next, since pools have the
    // strictest order of freeing.
    let mut reasons = Vec::new();
    for kind in [MemoryKind::Vmm, MemoryKind::Legacy, MemoryKind::Pool] {
        match lacks(kind, gpu) {
            Some(lack) => reasons.push(lack),
            None if reasons.is_empty() => return Ok(Selected { kind, why: "the best available".into() }),
            None => return Ok(Selected { kind, why: reasons.join("; ") }),
        }
    }
    Err(Lacking(reasons.join("; ")))
}

fn lacks(kind: MemoryKind, gpu: Option<&Arc<Context>>) -> Option<String> {
    let kind = match kind {
        MemoryKind::Host => return None,
        MemoryKind::Vmm => memory::Kind::Vmm,
        MemoryKind::Pool => memory::Kind::Pool,
        MemoryKind::Legacy => memory::Kind::Legacy,
    };
    let Some(gpu) = gpu else { return Some(format!("{kind} memory needs a GPU")) };
    memory::supports(kind, gpu.device()).err().map(|error| error.to_string())
}
