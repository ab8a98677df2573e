// SPDX-License-Identifier: MIT OR Apache-2.0

//! Copies out of host memory of this process.
//!
//! # Safety
//!
//! An [`Allocation`] in host memory is mapped for reading as long as it lives, and the copied range
//! is checked against its size. No other process can write it, unless it is a dma-buf, whose
//! readers are trusted. The exporter's own writer has finished: it hands the frame over for
//! publication.
#![allow(unsafe_code)]

use super::{Address, Allocation, dma_buf::DmaBuf};

/// Copies `size` bytes at `offset`; `None` for memory that is not the host's, or a range outside of
/// it. The caller is publishing the frame in this range, which nothing writes meanwhile.
pub(crate) fn copy_out(memory: &dyn Allocation, offset: u64, size: u64) -> Option<Box<[u8]>> {
    let Address::Host(start) = memory.address() else { return None };
    if offset.checked_add(size)? > memory.size() {
        return None;
    }
    let (offset, size) = (usize::try_from(offset).ok()?, usize::try_from(size).ok()?);
    // Waits for devices that write it.
    memory.dma_buf().map(DmaBuf::begin_cpu_read).transpose().ok()?;
    // SAFETY: the range lies inside the allocation, which is mapped while `memory` is borrowed;
    // nothing writes it (see above).
    let bytes = unsafe { std::slice::from_raw_parts(start.as_ptr().add(offset), size) };
    let copied = bytes.into();
    // The copy is made, whatever the driver says.
    _ = memory.dma_buf().map(DmaBuf::end_cpu_read);
    Some(copied)
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Allocator as _, host::Host},
        *,
    };

    #[test]
    fn range_outside_allocation_is_not_copied() {
        let memory = Host::default().allocate(4096).unwrap();
        assert_eq!(copy_out(&*memory, 4000, 96).unwrap().len(), 96);
        assert!(copy_out(&*memory, 4000, 97).is_none());
        assert!(copy_out(&*memory, u64::MAX, 2).is_none());
    }
}
