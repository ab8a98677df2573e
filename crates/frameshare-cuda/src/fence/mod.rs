//! Fences between processes: signalled by a GPU in one, waited for by a GPU or looked at by a CPU in another.
//!
//! | kind | what it is | a signaller's death | needs |
//! | --- | --- | --- | --- |
//! | [`ipc_event`] | an event that both processes opened | pending for ever: drop it and the streams that wait | one /dev/shm |
//! | [`timeline`] | a 64-bit word in shared memory | the survivor's CPU stores the value, and all goes on | a shared page |

pub mod ipc_event;
pub mod timeline;

use std::fmt;

use crate::Result;
use crate::device::{Attribute, Device};
use crate::memory::require;

/// A way to signal across processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// CUDA's interprocess events.
    Event,
    /// Words in shared memory that streams write and wait for.
    Timeline,
}

impl Kind {
    /// The word for the kind in properties and messages.
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

/// Whether fences of `kind` work on `device`. That both processes share a /dev/shm, for events, shows when one is opened.
///
/// # Errors
/// [`crate::Error::Unsupported`] with the kind, the device and what it lacks; [`crate::Error::NoDriver`].
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
