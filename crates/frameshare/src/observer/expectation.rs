// SPDX-License-Identifier: MIT OR Apache-2.0

//! Expected delivery of frames to a reader of this process.

use super::{Rights, Snapshot};
use crate::{
    fence,
    memory::select::{Lacking, Selected, kinds_on, why_not_in_place},
};
use frameshare_cuda::device::Device;
use frameshare_protocol::{FenceKind, MemoryKind};

/// Delivery of the frames of a stream to a reader.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Expectation {
    /// In place, with this kind of fence.
    InPlace(Selected<FenceKind>),
    /// As copies in host memory, for this reason.
    Copied(&'static str),
    /// Not at all.
    Refused(Lacking),
}

/// Decides as the exporter would for a reader that uses this GPU, or none, and takes copies in host
/// memory. The exporter's kinds of fence are assumed to be those of this GPU here.
pub fn expectation(snapshot: &Snapshot, rights: Rights, device: Option<&Device>) -> Expectation {
    let kind = snapshot.memory;
    let is_trusted = kind == MemoryKind::Host || rights.may_have_gpu_memory;
    let reaches = snapshot.gpu.is_none_or(|gpu| device.is_some_and(|device| reaches(device, gpu)));
    if let Some(why) = why_not_in_place(kind, &kinds_on(device), is_trusted, reaches, true) {
        return Expectation::Copied(why);
    }
    let fences = fence::select::kinds_on(device);
    match fence::select::select(snapshot.limits.fence, kind, &fences, &fences) {
        Ok(fence) => Expectation::InPlace(fence),
        Err(lacking) => Expectation::Refused(lacking),
    }
}

fn reaches(device: &Device, gpu: [u8; 16]) -> bool {
    let all = Device::all().unwrap_or_default();
    all.iter().any(|other| other.uuid().0 == gpu && device.can_access(other).unwrap_or(false))
}
