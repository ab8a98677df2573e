// SPDX-License-Identifier: MIT OR Apache-2.0

//! Legacy allocations (cuMemAlloc), which other processes may open by handle.
//!
//! Each allocation is a memory file of whole granules and one more page, which tells importers that
//! the allocation was freed.

use super::{Charge, Kind, READ_WRITE, Region, access};
use crate::api::{Answer, Code, INVALID_VALUE, Out};
use crate::context::{self, Context};
use crate::queue::wait_until_unused;
use crate::strict;
use crate::sys::{self, GRANULE, Mapping, PAGE};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// The file of an allocation.
pub struct Block {
    pub file: OwnedFd,
    /// Identifies this allocation in handles.
    pub nonce: u64,
    status: StatusPage,
    _charge: Charge,
}

/// The page that the exporter and the importers of an allocation share: its number, and whether it
/// was freed.
pub struct StatusPage(Mapping);

impl StatusPage {
    /// Maps the page that follows `len` bytes of memory.
    pub fn of(file: &OwnedFd, len: usize) -> Result<StatusPage, Code> {
        Ok(StatusPage(Mapping::of_page(file.as_raw_fd(), len, PAGE)?))
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < 2);
        // SAFETY: within the page, which lives as long as this struct; all access to it is atomic.
        unsafe { &*((self.0.start() + index * 8) as *const AtomicU64) }
    }

    pub fn nonce(&self) -> u64 {
        self.word(0).load(Ordering::Acquire)
    }

    pub fn is_freed(&self) -> bool {
        self.word(1).load(Ordering::Acquire) != 0
    }
}

impl Block {
    /// Marks the allocation as freed. Reports a violation if another process has it open.
    pub fn free(&self) {
        if sys::is_in_use(&self.file, 0, 0) {
            strict::violation("memory is freed while another process has it open (close, then free)");
        }
        self.status.word(1).store(1, Ordering::Release);
    }
}

fn allocate(context: &Context, size: usize) -> Result<usize, Code> {
    if size == 0 {
        return Err(INVALID_VALUE);
    }
    context.wait_for_frees();
    let device = context.state.device;
    let len = sys::round_up(size, GRANULE);
    let charge = Charge::take(device, len)?;
    let file = sys::memory_file("simcuda.plain", len + PAGE)?;
    super::fill_fresh(&file, 0, len)?;
    let mapping = Mapping::of_file(file.as_raw_fd(), 0, len)?;
    let status = StatusPage::of(&file, len)?;
    let nonce = sys::random();
    status.word(0).store(nonce, Ordering::Release);
    let block = Block { file, nonce, status, _charge: charge };
    let region = Region::new(mapping, size, device, context.handle, Kind::Plain(block), READ_WRITE);
    Ok(super::insert(region).start)
}

/// Frees device memory after the queued work that touches it.
fn free(context: &Context, address: usize) -> Answer {
    if address == 0 {
        return Ok(());
    }
    let region = super::starting_at(address).ok_or(INVALID_VALUE)?;
    match &region.kind {
        Kind::Plain(block) => {
            wait_until_unused(region.start, region.len);
            context.wait_to_free();
            access::accessed("cuMemFree", (region.start, region.len), true);
            block.free();
            super::remove(address);
            Ok(())
        }
        Kind::Pooled(_) | Kind::PoolImported(_) => super::pool::free_now(&region),
        _ => Err(INVALID_VALUE),
    }
}

crate::export! {
    fn cuMemAlloc_v2(out: Out<u64>, size: usize) {
        out.check()?;
        out.set(allocate(&*context::current()?, size)? as u64)
    }

    fn cuMemAllocPitch_v2(out: Out<u64>, pitch: Out<usize>, width: usize, height: usize, _element: u32) {
        out.check()?;
        pitch.check()?;
        let row = sys::round_up(width, 512);
        let size = row.checked_mul(height).ok_or(INVALID_VALUE)?;
        out.set(allocate(&*context::current()?, size)? as u64)?;
        pitch.set(row)
    }

    fn cuMemFree_v2(address: u64) {
        free(&*context::current()?, address as usize)
    }

    fn cuMemGetAddressRange_v2(base: Out<u64>, size: Out<usize>, address: u64) {
        context::current()?;
        let region = super::find(address as usize).ok_or(INVALID_VALUE)?;
        // VMM mappings are not allocations: the real driver is reported to return 500.
        if matches!(region.kind, Kind::Vmm(_)) {
            return Err(crate::api::NOT_FOUND);
        }
        base.set_if_wanted(region.start as u64);
        size.set_if_wanted(region.size);
        Ok(())
    }
}
