// SPDX-License-Identifier: MIT OR Apache-2.0

//! The table of all memory that a device may touch, and who may touch it how.

pub mod copy;
pub mod doorway;
mod host;
pub mod ipc;
mod plain;
mod pointer;
pub mod pool;
mod vmm;

use crate::api::{Answer, Code, OUT_OF_MEMORY};
use crate::sys::Mapping;
use crate::work::Work;
use crate::{config, device, strict};
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Bound;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

pub const READ: u8 = 1;
pub const READ_WRITE: u8 = 3;

/// One piece of memory at one place.
pub struct Region {
    pub start: usize,
    /// The bytes that can be touched.
    pub len: usize,
    /// The bytes that were asked for.
    pub size: usize,
    /// By its place on the machine.
    pub device: u32,
    /// The context that it belongs to, or 0.
    pub context: usize,
    /// Unique in the process, never used again.
    pub id: u64,
    pub kind: Kind,
    /// Access of each device.
    access: [AtomicU8; device::MAX],
    /// It is to be freed in stream order.
    freeing: AtomicBool,
    /// Given back with the region. VMM regions lie in a reservation instead.
    _mapping: Option<Mapping>,
}

/// Kind of a piece of memory, with the resources that it needs.
pub enum Kind {
    Plain(plain::Block),
    Imported(ipc::Import),
    Vmm(vmm::Mapped),
    Pooled(pool::Piece),
    PoolImported(pool::Import),
    HostAllocated,
    HostRegistered,
}

type Table = BTreeMap<usize, Arc<Region>>;

static REGIONS: RwLock<Table> = RwLock::new(BTreeMap::new());

fn regions() -> RwLockReadGuard<'static, Table> {
    REGIONS.read().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Waits for running copies, which hold the table: memory does not go from under them.
fn regions_mut() -> RwLockWriteGuard<'static, Table> {
    REGIONS.write().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Region {
    /// A region of `mapping`'s size, with the same access for all devices.
    fn new(mapping: Mapping, size: usize, device: u32, context: usize, kind: Kind, access: u8) -> Region {
        let (start, len) = (mapping.start(), mapping.len());
        Region::at(start, len, size, device, context, kind, access, Some(mapping))
    }

    fn at(
        start: usize,
        len: usize,
        size: usize,
        device: u32,
        context: usize,
        kind: Kind,
        access: u8,
        mapping: Option<Mapping>,
    ) -> Region {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Region {
            start,
            len,
            size,
            device,
            context,
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            kind,
            access: std::array::from_fn(|_| AtomicU8::new(access)),
            freeing: AtomicBool::new(false),
            _mapping: mapping,
        }
    }

    fn end(&self) -> usize {
        self.start + self.len
    }

    fn access(&self, device: u32) -> u8 {
        self.access[device as usize].load(Ordering::Acquire)
    }

    fn set_access(&self, device: u32, access: u8) {
        self.access[device as usize].store(access, Ordering::Release);
    }

    /// Union of the access of all devices.
    fn widest_access(&self) -> u8 {
        self.access.iter().fold(0, |all, access| all | access.load(Ordering::Acquire))
    }

    fn is_host(&self) -> bool {
        matches!(self.kind, Kind::HostAllocated | Kind::HostRegistered)
    }

    /// Says so if the memory's exporter has freed it.
    fn check_not_freed(&self) {
        let freed = match &self.kind {
            Kind::Imported(import) => import.is_freed(),
            Kind::PoolImported(import) => import.is_freed(),
            _ => false,
        };
        if freed {
            strict::violation("imported memory is used after its exporter freed it");
        }
    }
}

/// Byte in fresh device memory, and the number of bytes filled with it: filling all would need the
/// machine's memory.
const REMAINS: u8 = 0xfd;
const REMAINS_LEN: usize = 8 << 20;

/// Fills fresh device memory with remains, as of a previous owner.
fn soil(file: &OwnedFd, offset: usize, len: usize) -> Answer {
    let soil =
        || File::from(file.try_clone()?).write_all_at(&vec![REMAINS; len.min(REMAINS_LEN)], offset as u64);
    soil().map_err(|_| OUT_OF_MEMORY)
}

fn insert(region: Region) -> Arc<Region> {
    let region = Arc::new(region);
    regions_mut().insert(region.start, region.clone());
    region
}

fn remove(start: usize) {
    let removed = regions_mut().remove(&start);
    // Unmapped outside the lock.
    drop(removed);
}

/// The region that holds an address.
fn find(address: usize) -> Option<Arc<Region>> {
    find_in(&regions(), address).cloned()
}

fn find_in(table: &Table, address: usize) -> Option<&Arc<Region>> {
    let (_, region) = table.range((Bound::Unbounded, Bound::Included(address))).next_back()?;
    (address < region.end()).then_some(region)
}

/// The region that starts at an address.
fn starting_at(address: usize) -> Option<Arc<Region>> {
    regions().get(&address).cloned()
}

/// Calls `each` for the regions that hold a range; false if something in it is no region.
fn walk<'t>(
    table: &'t Table,
    start: usize,
    len: usize,
    mut each: impl FnMut(&'t Arc<Region>) -> bool,
) -> bool {
    let Some(end) = start.checked_add(len) else { return false };
    let mut at = start;
    loop {
        let Some(region) = find_in(table, at) else { return false };
        if !each(region) {
            return false;
        }
        at = region.end();
        if at >= end {
            return true;
        }
    }
}

/// Whether a range is memory that a device can be told to use, never mind in what way.
pub fn known(start: usize, len: usize) -> bool {
    walk(&regions(), start, len.max(1), |_| true)
}

fn permits(table: &Table, device: u32, start: usize, len: usize, write: bool) -> bool {
    let needed = if write { READ_WRITE } else { READ };
    walk(table, start, len.max(1), |region| {
        region.check_not_freed();
        region.access(device) & needed == needed
    })
}

/// Whether a range, or a part of it, is mapped for a device to read and not to write.
pub fn read_only(device: u32, start: usize, len: usize) -> bool {
    let writable =
        |region: &Arc<Region>| !matches!(region.kind, Kind::Vmm(_)) || region.access(device) != READ;
    !walk(&regions(), start, len.max(1), writable)
}

/// Whether a device may touch a range in this way.
pub fn allowed(device: u32, start: usize, len: usize, write: bool) -> bool {
    permits(&regions(), device, start, len, write)
}

/// Runs a piece of work while its memory stays; false, and nothing is touched, if the device may not.
pub fn with_access(device: u32, work: &Work, run: impl FnOnce()) -> bool {
    let table = regions();
    let may = work.written().is_none_or(|(start, len)| permits(&table, device, start, len, true))
        && work.read().is_none_or(|(start, len)| permits(&table, device, start, len, false));
    if may {
        run();
    }
    may
}

static USED: [AtomicU64; device::MAX] = [const { AtomicU64::new(0) }; device::MAX];

/// How much of a device's memory this process has taken.
pub fn used(device: u32) -> u64 {
    USED[device as usize].load(Ordering::Relaxed)
}

/// Device memory that counts as taken until dropped.
pub struct Charge {
    device: u32,
    bytes: u64,
}

impl Charge {
    fn take(device: u32, bytes: usize) -> Result<Charge, Code> {
        let bytes = bytes as u64;
        let add = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= config::get().memory);
        USED[device as usize]
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
            .map_err(|_| OUT_OF_MEMORY)?;
        Ok(Charge { device, bytes })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        USED[self.device as usize].fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Gives back what belongs to a context that is destroyed: its own memory and its imports.
pub fn release_context(context: usize) {
    let gone: Vec<_> = {
        let mut table = regions_mut();
        let starts: Vec<_> = table
            .values()
            .filter(|region| {
                region.context == context && matches!(region.kind, Kind::Plain(_) | Kind::Imported(_))
            })
            .map(|region| region.start)
            .collect();
        starts.iter().filter_map(|start| table.remove(start)).collect()
    };
    for region in &gone {
        if let Kind::Plain(block) = &region.kind {
            block.free();
        }
    }
}
