//! Selection of the kinds of memory and fence, by the configuration and the abilities of both
//! sides.

use frameshare_cuda::{context::Context, fence, memory};
use frameshare_protocol::{FenceKind, MemoryKind};
use std::sync::Arc;

/// A selected kind, and the reason for it, for logs and statistics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice<Kind> {
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
pub fn memory_kinds(gpu: Option<&Arc<Context>>) -> Vec<MemoryKind> {
    let all = [MemoryKind::Host, MemoryKind::Vmm, MemoryKind::Pool, MemoryKind::Legacy];
    all.into_iter().filter(|kind| lacks_memory(*kind, gpu).is_none()).collect()
}

/// The kinds of fence that a device supports.
pub fn fence_kinds(gpu: Option<&Arc<Context>>) -> Vec<FenceKind> {
    let all = [FenceKind::None, FenceKind::Timeline, FenceKind::Event];
    all.into_iter().filter(|kind| lacks_fence(*kind, gpu).is_none()).collect()
}

/// Selects the kind of memory for a stream: the wanted one, or the best available.
pub fn memory(wanted: Option<MemoryKind>, gpu: Option<&Arc<Context>>) -> Result<Choice<MemoryKind>, Lacking> {
    if let Some(kind) = wanted {
        return match lacks_memory(kind, gpu) {
            Some(lack) => Err(Lacking(lack)),
            None => Ok(Choice { kind, why: "asked for".into() }),
        };
    }
    if gpu.is_none() {
        return Ok(Choice { kind: MemoryKind::Host, why: "no GPU is used".into() });
    }
    // vmm outlives its exporter and is mapped read-only; legacy next, since pools have the
    // strictest order of freeing.
    let mut reasons = Vec::new();
    for kind in [MemoryKind::Vmm, MemoryKind::Legacy, MemoryKind::Pool] {
        match lacks_memory(kind, gpu) {
            Some(lack) => reasons.push(lack),
            None if reasons.is_empty() => return Ok(Choice { kind, why: "the best that there is".into() }),
            None => return Ok(Choice { kind, why: reasons.join("; ") }),
        }
    }
    Err(Lacking(reasons.join("; ")))
}

/// Selects the kind of fence for one reader: the best that both sides support and the exporter
/// allows.
pub fn fence(
    wanted: Option<FenceKind>,
    memory: MemoryKind,
    ours: &[FenceKind],
    theirs: &[FenceKind],
) -> Result<Choice<FenceKind>, Lacking> {
    if memory == MemoryKind::Host {
        return Ok(Choice {
            kind: FenceKind::None,
            why: "host frames are complete when they are published".into(),
        });
    }
    let usable = |kind: &FenceKind| wanted.is_none_or(|wanted| wanted == *kind) && ours.contains(kind);
    let mut kinds = [FenceKind::Timeline, FenceKind::Event].into_iter();
    match kinds.find(|kind| usable(kind) && theirs.contains(kind)) {
        Some(kind) if wanted.is_some() => Ok(Choice { kind, why: "asked for".into() }),
        Some(FenceKind::Timeline) => {
            Ok(Choice { kind: FenceKind::Timeline, why: "the best that there is".into() })
        }
        Some(kind) => Ok(Choice { kind, why: "one side cannot use timeline words".into() }),
        None => {
            let list =
                |kinds: &[FenceKind]| kinds.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let wanted = wanted.map(|kind| format!(", {kind} is asked for")).unwrap_or_default();
            Err(Lacking(format!(
                "no kind of fence in common: the exporter can {}, the reader {}{wanted}",
                list(ours),
                list(theirs)
            )))
        }
    }
}

fn lacks_memory(kind: MemoryKind, gpu: Option<&Arc<Context>>) -> Option<String> {
    let kind = match kind {
        MemoryKind::Host => return None,
        MemoryKind::Vmm => memory::Kind::Vmm,
        MemoryKind::Pool => memory::Kind::Pool,
        MemoryKind::Legacy => memory::Kind::Legacy,
    };
    let Some(gpu) = gpu else { return Some(format!("{kind} memory needs a GPU")) };
    memory::supports(kind, gpu.device()).err().map(|error| error.to_string())
}

fn lacks_fence(kind: FenceKind, gpu: Option<&Arc<Context>>) -> Option<String> {
    let kind = match kind {
        FenceKind::None => return None,
        FenceKind::Event => fence::Kind::Event,
        FenceKind::Timeline => fence::Kind::Timeline,
    };
    let Some(gpu) = gpu else { return Some(format!("{kind} fences need a GPU")) };
    fence::supports(kind, gpu.device()).err().map(|error| error.to_string())
}
