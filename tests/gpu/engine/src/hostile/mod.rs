// SPDX-License-Identifier: MIT OR Apache-2.0

//! Hostile peers: implement the protocol by hand, with a GPU.

pub mod exporter;
pub mod reader;

use std::time::Duration;

/// Time limit for each step; longer means that it hangs.
const PATIENCE: Duration = Duration::from_secs(10);
/// Index of the timeline page among the descriptors of a welcome.
const TIMELINE: usize = 4;
/// Index of the wake-up socket in the same list.
const WAKE: usize = 3;

/// Returns whether the kernel refused a descriptor on the sender's side (SO_PASSRIGHTS, Linux
/// 6.16): the attack did not take place.
fn is_refused_by_kernel(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let kind = cause.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        kind == Some(std::io::ErrorKind::PermissionDenied)
            || cause.downcast_ref::<rustix::io::Errno>() == Some(&rustix::io::Errno::PERM)
    })
}
