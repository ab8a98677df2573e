// SPDX-License-Identifier: MIT OR Apache-2.0

//! Selection of the kind of memory, by the configuration and the abilities of the device.

pub use frameshare_core::selected::Selected;

use frameshare_cuda::{context::Context, device::Device, memory};
use frameshare_protocol::{FenceKind, MemoryKind};
use std::sync::Arc;

/// A reason why a kind of memory or fence cannot be used here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// No GPU is used.
    #[error("{0} memory needs a GPU")]
    NeedsGpu(MemoryKind),
    /// The device or its driver lacks an ability.
    #[error(transparent)]
    Driver(#[from] frameshare_cuda::Error),
    /// This version has no such kind.
    #[error("{0} memory is unknown to this version")]
    UnknownKind(MemoryKind),
    /// The exporter shares memory of this kind, and does not allocate it.
    #[error(
        "{0} memory is not allocated by the exporter: dma-bufs of other components are shared as they come"
    )]
    NotAllocated(MemoryKind),
    /// Fences of this kind are the GPU's.
    #[error("{0} fences need a GPU")]
    FenceNeedsGpu(FenceKind),
    /// This version has no such kind of fence.
    #[error("{0} fences are unknown to this version")]
    UnknownFence(FenceKind),
}

/// No kind of memory or fence can be selected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Lacking {
    /// This machine lacks every kind of memory that the configuration allows.
    #[error("{}", reasons(.0))]
    Memory(Vec<Unavailable>),
    /// An exporter and a reader have no kind of fence in common.
    #[error("no kind of fence in common: the exporter can {}, the reader {}{}", list(.ours), list(.theirs), requested(*.wanted))]
    Fence {
        /// The kinds of the exporter.
        ours: Vec<FenceKind>,
        /// The kinds of the reader.
        theirs: Vec<FenceKind>,
        /// The only kind that the configuration allows.
        wanted: Option<FenceKind>,
    },
}

fn reasons(reasons: &[Unavailable]) -> String {
    reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

fn list(kinds: &[FenceKind]) -> String {
    kinds.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn requested(wanted: Option<FenceKind>) -> String {
    wanted.map(|kind| format!(", {kind} is requested")).unwrap_or_default()
}

/// The kinds of memory that a device can share.
pub fn kinds(gpu: Option<&Arc<Context>>) -> Vec<MemoryKind> {
    kinds_on(gpu.map(|gpu| gpu.device()))
}

/// The kinds of memory that processes on a device can share; `None` is no GPU.
pub(crate) fn kinds_on(device: Option<&Device>) -> Vec<MemoryKind> {
    let all = [MemoryKind::Host, MemoryKind::Vmm, MemoryKind::Pool, MemoryKind::Legacy];
    all.into_iter().filter(|kind| supports(*kind, device).is_ok()).collect()
}

/// Returns the reason why a reader does not get the frames of a stream in place, if there is one.
/// `kinds` are those that it can import, `reaches` says whether its GPU reaches the exporter's.
pub(crate) fn why_not_in_place(
    kind: MemoryKind,
    kinds: &[MemoryKind],
    is_trusted: bool,
    reaches: bool,
    host_fallback: bool,
) -> Option<&'static str> {
    if is_trusted && kinds.contains(&kind) && (reaches || !host_fallback) {
        return None;
    }
    Some(match (is_trusted, reaches) {
        (false, _) => "it is not trusted with GPU memory",
        (true, false) => "it cannot read the exporter's GPU",
        (true, true) => "it cannot read GPU memory",
    })
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
        return match supports(kind, gpu.map(|gpu| gpu.device())) {
            Err(lack) => Err(Lacking::Memory(vec![lack])),
            Ok(()) => Ok(Selected { kind, why: "requested".into() }),
        };
    }
    let Some(gpu) = gpu else {
        return Ok(Selected { kind: MemoryKind::Host, why: "no GPU is used".into() });
    };
    // vmm outlives its exporter and is mapped read-only; legacy next, since pools have the
    // strictest order of freeing.
    let mut lacking = Vec::new();
    for kind in [MemoryKind::Vmm, MemoryKind::Legacy, MemoryKind::Pool] {
        match supports(kind, Some(gpu.device())) {
            Err(lack) => lacking.push(lack),
            Ok(()) if lacking.is_empty() => return Ok(Selected { kind, why: "the best available".into() }),
            Ok(()) => return Ok(Selected { kind, why: reasons(&lacking) }),
        }
    }
    Err(Lacking::Memory(lacking))
}

/// Checks that processes on a device can share this kind of memory; `None` is no GPU.
///
/// # Errors
/// [`Unavailable`] with the missing ability.
pub fn supports(kind: MemoryKind, device: Option<&Device>) -> Result<(), Unavailable> {
    let ability = match kind {
        MemoryKind::Host => return Ok(()),
        MemoryKind::Vmm => memory::Kind::Vmm,
        MemoryKind::Pool => memory::Kind::Pool,
        MemoryKind::Legacy => memory::Kind::Legacy,
        MemoryKind::DmaBuf => return Err(Unavailable::NotAllocated(kind)),
        kind => return Err(Unavailable::UnknownKind(kind)),
    };
    let device = device.ok_or(Unavailable::NeedsGpu(kind))?;
    memory::supports(ability, device).map_err(Unavailable::Driver)
}
