//! Peers that mean harm: they speak the protocol by hand, with a GPU.

pub mod exporter;
mod lingering;
pub mod reader;

use std::time::Duration;

/// Nothing here takes so long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(10);
/// Where among the descriptors of a welcome the timeline page is.
const TIMELINE: usize = 4;
/// Index of the wake socket in the same list.
const WAKE: usize = 3;

/// Whether the kernel refused a descriptor where it was sent (SO_PASSRIGHTS, Linux 6.16): the attack did not take place.
fn is_refused_by_kernel(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let kind = cause.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        kind == Some(std::io::ErrorKind::PermissionDenied)
            || cause.downcast_ref::<rustix::io::Errno>() == Some(&rustix::io::Errno::PERM)
    })
}
