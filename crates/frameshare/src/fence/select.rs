// SPDX-License-Identifier: MIT OR Apache-2.0

//! Selection of the kind of fence, by the configuration and the abilities of both sides.

use crate::memory::select::{Lacking, Selected, Unavailable};
use frameshare_cuda::{context::Context, device::Device, fence};
use frameshare_protocol::{FenceKind, MemoryKind};
use std::sync::Arc;

/// The kinds of fence that a device supports.
pub fn kinds(gpu: Option<&Arc<Context>>) -> Vec<FenceKind> {
    kinds_on(gpu.map(|gpu| gpu.device()))
}

/// The kinds of fence that processes on a device can use; `None` is no GPU.
pub(crate) fn kinds_on(device: Option<&Device>) -> Vec<FenceKind> {
    let all = [FenceKind::None, FenceKind::Timeline, FenceKind::Event];
    all.into_iter().filter(|kind| supports(*kind, device).is_ok()).collect()
}

/// Selects the kind of fence for one reader: the best that both sides support and the exporter
/// allows.
///
/// # Errors
/// [`Lacking`] with the kinds of both sides.
pub fn select(
    wanted: Option<FenceKind>,
    memory: MemoryKind,
    ours: &[FenceKind],
    theirs: &[FenceKind],
) -> Result<Selected<FenceKind>, Lacking> {
    if memory == MemoryKind::Host {
        return Ok(Selected {
            kind: FenceKind::None,
            why: "host frames are complete when they are published".into(),
        });
    }
    let usable = |kind: &FenceKind| wanted.is_none_or(|wanted| wanted == *kind) && ours.contains(kind);
    let mut kinds = [FenceKind::Timeline, FenceKind::Event].into_iter();
    match kinds.find(|kind| usable(kind) && theirs.contains(kind)) {
        Some(kind) if wanted.is_some() => Ok(Selected { kind, why: "requested".into() }),
        Some(FenceKind::Timeline) => {
            Ok(Selected { kind: FenceKind::Timeline, why: "the best available".into() })
        }
        Some(kind) => Ok(Selected { kind, why: "one side cannot use timeline words".into() }),
        None => Err(Lacking::Fence { ours: ours.to_vec(), theirs: theirs.to_vec(), wanted }),
    }
}

/// Checks that processes on a device can use this kind of fence; `None` is no GPU.
///
/// # Errors
/// [`Unavailable`] with the missing ability.
pub fn supports(kind: FenceKind, device: Option<&Device>) -> Result<(), Unavailable> {
    let ability = match kind {
        FenceKind::None => return Ok(()),
        FenceKind::Event => fence::Kind::Event,
        FenceKind::Timeline => fence::Kind::Timeline,
        kind => return Err(Unavailable::UnknownFence(kind)),
    };
    let device = device.ok_or(Unavailable::FenceNeedsGpu(kind))?;
    fence::supports(ability, device).map_err(Unavailable::Driver)
}
