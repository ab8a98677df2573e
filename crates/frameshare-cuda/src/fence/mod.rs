// SPDX-License-Identifier: MIT OR Apache-2.0

//! Fences between processes: signaled by a GPU in one process, waited for by a GPU or polled by a
//! CPU in another.
//!
//! | kind | mechanism | if the signaler dies | requires |
//! | --- | --- | --- | --- |
//! | [`ipc_event`] | an event opened by both processes | pending forever: drop it and the waiting streams | a shared /dev/shm |
//! | [`timeline`] | a 64-bit value in shared memory | the survivor's CPU stores the value, releasing waiters | a shared page |

pub mod ipc_event;
pub mod timeline;

use std::fmt;

use crate::Result;
use crate::device::{Attribute, Device};
use crate::memory::require;

/// Mechanism for signaling across processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// CUDA interprocess events.
    Event,
    /// Timeline values: 64-bit words in shared memory that streams write and wait for.
    Timeline,
}

impl Kind {
    /// Returns the name of the kind in properties and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Event => "event",
            Kind::Timeline => "timeline",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Checks whether fences of `kind` work on `device`. For events, a missing shared /dev/shm is
/// detected only when an event is opened.
///
/// # Errors
/// [`crate::Error::Unsupported`] with the kind, the device and the missing capability;
/// [`crate::Error::NoDriver`].
///
/// # References
/// CUDA driver API, cuDeviceGetAttribute.
pub fn supports(kind: Kind, device: &Device) -> Result<()> {
    let (attributes, calls): (&[(Attribute, i32)], &[&'static str]) = match kind {
        Kind::Event => (
            &[(Attribute::UNIFIED_ADDRESSING, !0), (Attribute::IPC_EVENT_SUPPORTED, !0)],
            &["cuIpcGetEventHandle", "cuIpcOpenEventHandle"],
        ),
        Kind::Timeline => (
            &[(Attribute::CAN_USE_64_BIT_STREAM_MEM_OPS, !0), (Attribute::HOST_REGISTER_SUPPORTED, !0)],
            &[
                "cuStreamWriteValue64_v2",
                "cuStreamWaitValue64_v2",
                "cuStreamBatchMemOp_v2",
                "cuMemHostRegister_v2",
            ],
        ),
    };
    require(kind.name(), device, attributes, calls)
}
