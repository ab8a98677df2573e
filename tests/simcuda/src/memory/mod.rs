// SPDX-License-Identifier: MIT OR Apache-2.0

//! Table of all memory with device access, and the access that each device has.

pub mod access;
pub mod copy;
mod host;
pub mod ipc;
pub mod ipc_server;
pub mod place;
mod plain;
mod pointer;
pub mod pool;
mod vmm;

use crate::api::{Answer, Code, OUT_OF_MEMORY};
use crate::sys::Mapping;
use crate::work::Work;
use crate::{config, device, order, strict};
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Bound;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

pub const READ: u8 = 1;
pub const READ_WRITE: u8 = 3;

/// A contiguous address range with one kind of memory.
pub struct Region {
    pub start: usize,
    /// Accessible bytes.
    pub len: usize,
    /// Requested bytes.
    pub size: usize,
    /// Physical index of the device.
    pub device: u32,
    /// The owning context, or 0.
    pub context: usize,
    /// Unique in the process and never reused.
    pub id: u64,
    pub kind: Kind,
    /// Identity of the memory between processes, while operations are traced.
    place: Option<place::Place>,
    /// Access of each device.
    access: [AtomicU8; device::MAX],
    /// Set once a free of the region is queued or running.
    freeing: AtomicBool,
    /// Unmapped with the region. `None` for VMM regions, which lie in a reservation.
    _mapping: Option<Mapping>,
}

/// Kind of a region, with its resources.
pub enum Kind {
    Plain(plain::Block),
    Imported(ipc::Import),
    Vmm(vmm::Mapped),
    Pooled(pool::Allocation),
    PoolImported(pool::Import),
    HostAllocated,
    HostRegistered,
}

impl Kind {
    /// Returns the place of a region of this kind that starts at an address.
    fn place(&self, start: usize) -> Option<place::Place> {
        use place::Place;
        match self {
            Kind::Plain(block) => Place::in_file(&block.file, 0),
            Kind::Imported(import) => Place::in_file(import.file(), 0),
            Kind::Vmm(mapped) => Place::in_file(mapped.file(), 0),
            Kind::Pooled(allocation) => allocation.place(),
            Kind::PoolImported(import) => import.place(),
            Kind::HostAllocated => Some(Place::anonymous(start)),
            Kind::HostRegistered => place::of_host(start).map(|(place, _)| place),
        }
    }
}

type Table = BTreeMap<usize, Arc<Region>>;

static REGIONS: RwLock<Table> = RwLock::new(BTreeMap::new());

fn regions() -> RwLockReadGuard<'static, Table> {
    REGIONS.read().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Locks the table for writing. Blocks until running copies, which hold the read lock, have ended:
/// memory is not unmapped under them.
fn regions_mut() -> RwLockWriteGuard<'static, Table> {
    REGIONS.write().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Region {
    /// Returns a region of `mapping`'s size, with the same access for all devices.
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
            place: if order::is_on() { kind.place(start) } else { None },
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

    /// Returns the union of the access of all devices.
    fn widest_access(&self) -> u8 {
        self.access.iter().fold(0, |all, access| all | access.load(Ordering::Acquire))
    }

    fn is_host(&self) -> bool {
        matches!(self.kind, Kind::HostAllocated | Kind::HostRegistered)
    }

    /// Reports a violation if the memory's exporter has freed it.
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

/// Byte that fills fresh device memory, and the number of filled bytes. Filling whole allocations
/// would use up the machine's memory.
const FRESH_BYTE: u8 = 0xfd;
const FRESH_LEN: usize = 8 << 20;

/// Fills fresh device memory, which on the real driver may hold old contents.
fn fill_fresh(file: &OwnedFd, offset: usize, len: usize) -> Answer {
    let fill_fresh =
        || File::from(file.try_clone()?).write_all_at(&vec![FRESH_BYTE; len.min(FRESH_LEN)], offset as u64);
    fill_fresh().map_err(|_| OUT_OF_MEMORY)
}

fn insert(region: Region) -> Arc<Region> {
    let region = Arc::new(region);
    regions_mut().insert(region.start, region.clone());
    region
}

fn remove(start: usize) {
    let removed = regions_mut().remove(&start);
    // The mapping is dropped after the lock is released.
    drop(removed);
}

/// Returns the region that contains an address.
fn find(address: usize) -> Option<Arc<Region>> {
    find_in(&regions(), address).cloned()
}

fn find_in(table: &Table, address: usize) -> Option<&Arc<Region>> {
    let (_, region) = table.range((Bound::Unbounded, Bound::Included(address))).next_back()?;
    (address < region.end()).then_some(region)
}

/// Returns the region that starts at an address.
fn starting_at(address: usize) -> Option<Arc<Region>> {
    regions().get(&address).cloned()
}

/// Calls `each` for the regions that cover a range. Returns false if a part of the range is in no
/// region, or if `each` does.
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

/// Returns whether a range is known to the driver, with or without access.
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

/// Returns whether a range, or a part of it, is mapped read-only for a device.
pub fn read_only(device: u32, start: usize, len: usize) -> bool {
    let writable =
        |region: &Arc<Region>| !matches!(region.kind, Kind::Vmm(_)) || region.access(device) != READ;
    !walk(&regions(), start, len.max(1), writable)
}

/// Returns whether a device may access a range in this way.
pub fn allowed(device: u32, start: usize, len: usize, write: bool) -> bool {
    permits(&regions(), device, start, len, write)
}

/// Runs a work item while its memory is locked in place. Without access, returns false and touches
/// nothing.
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

/// Returns the bytes of a device's memory that this process has allocated.
pub fn used(device: u32) -> u64 {
    USED[device as usize].load(Ordering::Relaxed)
}

/// Device memory that counts as allocated until this is dropped.
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

/// Releases the memory that belongs to a destroyed context: its legacy allocations and its imports
/// of legacy handles.
pub fn release_context(context: usize) {
    let removed: Vec<_> = {
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
    for region in &removed {
        if let Kind::Plain(block) = &region.kind {
            block.free();
        }
    }
}
