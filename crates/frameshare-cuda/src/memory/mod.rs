// SPDX-License-Identifier: MIT OR Apache-2.0

//! GPU memory that other processes can import, in three kinds, and export of adopted allocations.
//! [`private`] has memory that no other process can import.
//!
//! | kind | token | who may import | after the exporter's death |
//! | --- | --- | --- | --- |
//! | [`vmm`] | one fd per allocation | any process that has the fd; may map read-only | readers keep it |
//! | [`pool`] | one fd per pool, 64 bytes per allocation | any process that has both | measured: readable; undocumented |
//! | [`legacy`] | 64 bytes per allocation | any process that has them | measured: readable; undefined by CUDA |
//!
//! An import is mapped in the context it is created with, for the device of that context. This may
//! differ from the device of the memory if the two have peer access
//! ([`crate::device::Device::can_access`]).
//!
//! **Freeing order.** `vmm`: any. `legacy` and `pool`: every import must be closed before the
//! exporter frees; for pools, the importer's stream must have executed the close.

pub mod adopted;
pub mod legacy;
pub mod pool;
pub mod private;
pub mod vmm;

use std::fmt;

use crate::device::{Attribute, Device};
use crate::error::{Lack, Unsupported};
use crate::{Result, driver};

/// Mechanism for sharing GPU memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Physical memory shared by file descriptor and mapped at any address on each side.
    Vmm,
    /// Allocations from a stream-ordered pool that is shared by file descriptor.
    Pool,
    /// Whole blocks shared by legacy CUDA IPC handle.
    Legacy,
}

impl Kind {
    /// Returns the name of the kind in properties and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Vmm => "vmm",
            Kind::Pool => "pool",
            Kind::Legacy => "legacy",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Checks whether memory of `kind` can be shared on `device`.
///
/// Success for `legacy` is not conclusive on boards with an integrated GPU, where the attribute
/// covers events only: there, only [`legacy::Allocation::new`] shows whether sharing works.
///
/// # Errors
/// [`crate::Error::Unsupported`] with the kind, the device and the missing capability;
/// [`crate::Error::NoDriver`].
///
/// # References
/// CUDA driver API, cuDeviceGetAttribute.
pub fn supports(kind: Kind, device: &Device) -> Result<()> {
    const POSIX_FD: i32 = crate::abi::flag::HANDLE_POSIX_FD.cast_signed();
    let (attributes, calls): (&[(Attribute, i32)], &[&'static str]) = match kind {
        Kind::Vmm => (
            &[
                (Attribute::VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, !0),
                (Attribute::HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, !0),
            ],
            &["cuMemCreate", "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle"],
        ),
        Kind::Pool => (
            &[(Attribute::MEMORY_POOLS_SUPPORTED, !0), (Attribute::MEMPOOL_SUPPORTED_HANDLE_TYPES, POSIX_FD)],
            &["cuMemPoolExportToShareableHandle", "cuMemPoolImportFromShareableHandle", "cuMemFreeAsync"],
        ),
        Kind::Legacy => (
            &[(Attribute::UNIFIED_ADDRESSING, !0), (Attribute::IPC_EVENT_SUPPORTED, !0)],
            &["cuIpcGetMemHandle", "cuIpcOpenMemHandle_v2"],
        ),
    };
    require(kind.name(), device, attributes, calls)
}

/// Checks that a device has the attributes (under their bit masks), and the driver the calls.
pub(crate) fn require(
    kind: &'static str,
    device: &Device,
    attributes: &[(Attribute, i32)],
    calls: &[&'static str],
) -> Result<()> {
    let driver = driver::get()?;
    let attribute = attributes.iter().find(|(attribute, mask)| !device.offers(*attribute, *mask));
    let lacks = match attribute {
        Some((attribute, _)) => Lack::Attribute(*attribute),
        None => match calls.iter().find(|call| !driver.has(call)) {
            Some(call) => Lack::Call(call),
            None => return Ok(()),
        },
    };
    Err(Box::new(Unsupported { kind, device: device.to_string(), lacks }).into())
}

/// Rounds `size` up to a multiple of `step`, a power of two; `None` on overflow.
pub(crate) fn round_up(size: usize, step: usize) -> Option<usize> {
    size.checked_next_multiple_of(step)
}
