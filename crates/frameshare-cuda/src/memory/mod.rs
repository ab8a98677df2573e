//! GPU memory that other processes can import, in three kinds, and the export of memory that others allocated.
//!
//! | kind | token | who may import | after the exporter's death |
//! | --- | --- | --- | --- |
//! | [`vmm`] | one fd an allocation | who holds the fd; may map read-only | readers keep it |
//! | [`pool`] | one fd a pool, 64 bytes an allocation | who holds both | measured: readable; undocumented |
//! | [`legacy`] | 64 bytes an allocation | who knows them | measured: readable; undefined by CUDA |
//!
//! An import is mapped in the context that it is made with, so for the device of that context; that may be another
//! device than the memory's where the two can reach each other ([`crate::device::Device::can_access`]).
//!
//! **Order of freeing.** `vmm`: any. `legacy` and `pool`: every import is closed, and for pools the close has been done
//! by the importer's stream, before the exporter frees.

pub mod foreign;
pub mod legacy;
pub mod pool;
pub mod vmm;

use std::fmt;

use crate::device::{Attribute, Device};
use crate::error::{Lack, Unsupported};
use crate::{Result, driver};

/// A way to share GPU memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Physical memory with a file descriptor, mapped where each side likes.
    Vmm,
    /// Allocations from a stream-ordered pool with a file descriptor.
    Pool,
    /// Whole blocks by CUDA's first interface for this.
    Legacy,
}

impl Kind {
    /// The word for the kind in properties and messages.
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

/// Whether memory of `kind` can be shared on `device`.
///
/// A yes to `legacy` is not final on boards with an integrated GPU, where the attribute speaks of events only: there
/// [`legacy::Allocation::new`] has the last word.
///
/// # Errors
/// [`crate::Error::Unsupported`] with the kind, the device and what it lacks; [`crate::Error::NoDriver`].
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

/// Checks a list of attributes (with the bits that count) and calls.
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

/// `size` rounded up to a multiple of `step`, which is a power of two; `None` on overflow.
pub(crate) fn round_up(size: usize, step: usize) -> Option<usize> {
    size.checked_next_multiple_of(step)
}
