// SPDX-License-Identifier: MIT OR Apache-2.0

//! Abilities of this machine's kernel and driver that streams depend on, and the users of this
//! namespace.

pub use crate::sys::{SocketFeatures, Udmabuf, overflow_uid};

use crate::{
    cuda,
    sys::{self, SealedAgainst, memfd},
};
use std::io;

/// Tries to make a memory file that is sealed like a slot.
///
/// # Errors
/// The error of a system call: without such files nothing can be shared.
pub fn sealed_memory() -> io::Result<()> {
    SealedAgainst::ResizingAndWriting.seal(memfd("frameshare-probe", 4096)?)
}

/// Returns whether sleeping readers of this process can be woken by futex (futex_waitv, Linux
/// 5.16): one system call of the exporter wakes all readers of one user then. Otherwise it wakes
/// each through its socket.
#[must_use]
pub fn has_futex_waitv() -> bool {
    sys::has_futex_waitv()
}

/// Returns the version of CUDA that the driver is for, as 1000 * major + 10 * minor.
///
/// # Errors
/// [`cuda::Error::NoDriver`] without a usable libcuda.
pub fn cuda_version() -> cuda::Result<i32> {
    frameshare_cuda::version()
}

/// Returns whether `/dev/udmabuf` lets readers write into host memory that is shared with them. An
/// exporter then refuses readers of other users. Tried once per process.
pub fn udmabuf() -> &'static Udmabuf {
    sys::udmabuf()
}
