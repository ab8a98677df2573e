// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory pools and stream-ordered allocation.
//!
//! An exportable pool is one large memory file: a head that lists the allocations, then the
//! allocations, each in granules of its own. The exported fd of the pool is the file's fd: an
//! importer needs only this fd and the 64 bytes of an allocation.
//!
//! Two uses that are undefined in CUDA are reported: an exporter's free before an importer's free,
//! and a use of the memory after that free.

use super::access;
use super::place::Place;
use super::vmm::{AccessEntry, Location};
use super::{Charge, Kind, READ_WRITE, Region};
use crate::api::{
    ALREADY_MAPPED, Answer, Blob, Code, INVALID_DEVICE, INVALID_VALUE, In, NOT_SUPPORTED, OUT_OF_MEMORY, Out,
};
use crate::context::{self, submit};
use crate::handles::Handles;
use crate::queue::{Op, wait_until_unused};
use crate::sys::{self, GRANULE, Mapping};
use crate::{config, device, stream, strict};
use std::collections::HashMap;
use std::ffi::c_void;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Attributes MEMORY_POOLS_SUPPORTED and MEMPOOL_SUPPORTED_HANDLE_TYPES.
const POOLS: i32 = 115;
const HANDLE_TYPES: i32 = 119;

const FILE: &str = "simcuda.pool.";
/// Address space of a pool's file. Only touched pages take memory.
const SPACE: usize = 64 << 30;

/// CUmemPoolProps.
#[repr(C)]
#[derive(Clone, Copy)]
struct Properties {
    kind: u32,
    handle_types: u32,
    location: Location,
    _win32: usize,
    _max_size: usize,
    _reserved: [u8; 56],
}

/// The head of a pool's file: the pool's number, then for each granule the number of the allocation
/// that starts there.
struct Head(Mapping);

impl Head {
    fn of(file: &OwnedFd) -> Result<Head, Code> {
        Ok(Head(Mapping::of_page(file.as_raw_fd(), 0, GRANULE)?))
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < GRANULE / 8);
        // SAFETY: within the mapping, which lives as long as the head; all access to it is atomic.
        unsafe { &*((self.0.start() + index * 8) as *const AtomicU64) }
    }

    /// Returns the pool's number.
    fn pool(&self) -> &AtomicU64 {
        self.word(0)
    }

    /// Returns the number of the allocation at an offset, 0 if there is none.
    fn at(&self, offset: usize) -> &AtomicU64 {
        self.word(512 + offset / GRANULE)
    }
}

/// A pool.
pub struct Pool {
    handle: usize,
    device: u32,
    exportable: bool,
    /// Whether the pool was exported. Pointers can be exported only afterwards.
    exported: AtomicBool,
    imported: bool,
    file: OwnedFd,
    head: Head,
    nonce: u64,
    /// Access of each device; the pool's own device always has full access.
    access: [AtomicU8; device::MAX],
    threshold: AtomicU64,
    free: Mutex<Space>,
}

struct Space {
    next: usize,
    /// Offsets and lengths of freed allocations.
    holes: Vec<(usize, usize)>,
}

/// An allocation in a pool of this process.
pub struct Allocation {
    pub pool: Arc<Pool>,
    offset: usize,
    nonce: u64,
    _charge: Charge,
}

/// An allocation in another process's pool.
pub struct Import {
    pool: Arc<Pool>,
    offset: usize,
    nonce: u64,
}

impl Allocation {
    pub fn place(&self) -> Option<Place> {
        Place::in_file(&self.pool.file, self.offset)
    }
}

impl Import {
    pub fn place(&self) -> Option<Place> {
        Place::in_file(&self.pool.file, self.offset)
    }

    pub fn is_freed(&self) -> bool {
        self.pool.head.at(self.offset).load(Ordering::Acquire) != self.nonce
    }
}

impl Pool {
    /// Returns the handle, which is also an attribute of the pool's pointers.
    pub fn handle(&self) -> usize {
        self.handle
    }

    pub fn is_exportable(&self) -> bool {
        self.exportable && !self.imported
    }

    fn create(device: u32, exportable: bool) -> Result<Arc<Pool>, Code> {
        let file = sys::memory_file(&format!("{FILE}{device}"), SPACE)?;
        let head = Head::of(&file)?;
        let nonce = sys::random();
        head.pool().store(nonce, Ordering::Release);
        Ok(Pool::register(device, exportable, false, file, head, nonce))
    }

    fn register(
        device: u32,
        exportable: bool,
        imported: bool,
        file: OwnedFd,
        head: Head,
        nonce: u64,
    ) -> Arc<Pool> {
        let pool = Arc::new(Pool {
            handle: HANDLES.take(),
            device,
            exportable,
            exported: AtomicBool::new(false),
            imported,
            file,
            head,
            nonce,
            access: std::array::from_fn(|index| {
                AtomicU8::new(if index == device as usize { READ_WRITE } else { 0 })
            }),
            threshold: AtomicU64::new(0),
            free: Mutex::new(Space { next: GRANULE, holes: Vec::new() }),
        });
        let mut pools = POOLS_BY_HANDLE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        pools.get_or_insert_default().insert(pool.handle, pool.clone());
        pool
    }

    fn apply_access(&self, region: &Region) {
        for (index, access) in self.access.iter().enumerate() {
            region.set_access(index as u32, access.load(Ordering::Acquire));
        }
    }

    fn take_space(&self, len: usize) -> Result<usize, Code> {
        let mut space = self.free.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // The last freed first.
        if let Some(index) = space.holes.iter().rposition(|&(_, hole)| hole == len) {
            return Ok(space.holes.remove(index).0);
        }
        let offset = space.next;
        space.next = offset.checked_add(len).filter(|&end| end <= SPACE).ok_or(OUT_OF_MEMORY)?;
        Ok(offset)
    }
}

static HANDLES: Handles = Handles::new();
static POOLS_BY_HANDLE: Mutex<Option<HashMap<usize, Arc<Pool>>>> = Mutex::new(None);

fn find(handle: usize) -> Result<Arc<Pool>, Code> {
    let pools = POOLS_BY_HANDLE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    pools.as_ref().and_then(|pools| pools.get(&handle)).cloned().ok_or(INVALID_VALUE)
}

fn supported() -> Answer {
    device::ready()?;
    if config::withheld(POOLS) { Err(NOT_SUPPORTED) } else { Ok(()) }
}

fn fds_supported() -> Answer {
    supported()?;
    if config::withheld(HANDLE_TYPES) { Err(NOT_SUPPORTED) } else { Ok(()) }
}

/// Returns the handle of a device's default pool, from which cuMemAllocAsync allocates.
pub fn default_of(device: u32) -> Result<usize, Code> {
    static DEFAULT: Mutex<Option<HashMap<u32, usize>>> = Mutex::new(None);
    supported()?;
    let mut default = DEFAULT.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let default = default.get_or_insert_default();
    if let Some(&handle) = default.get(&device) {
        return Ok(handle);
    }
    let handle = Pool::create(device, false)?.handle;
    default.insert(device, handle);
    Ok(handle)
}

fn allocate(size: usize, pool: Arc<Pool>, stream: usize) -> Result<usize, Code> {
    let stream = stream::find(stream)?;
    if size == 0 || pool.imported {
        return Err(INVALID_VALUE);
    }
    let len = sys::round_up(size, GRANULE);
    let charge = Charge::take(pool.device, len)?;
    let offset = pool.take_space(len)?;
    super::fill_fresh(&pool.file, offset, len)?;
    let mapping = Mapping::of_file(pool.file.as_raw_fd(), offset, len)?;
    let nonce = sys::random() | 1;
    pool.head.at(offset).store(nonce, Ordering::Release);
    let allocation = Allocation { pool: pool.clone(), offset, nonce, _charge: charge };
    let region = Region::new(mapping, size, pool.device, 0, Kind::Pooled(allocation), 0);
    pool.apply_access(&region);
    let start = super::insert(region).start;
    submit(&stream, Op::Allocate((start, len)), Vec::new(), vec![(start, len)])?;
    Ok(start)
}

/// Completes a free of an allocation or an import, when the stream has reached it.
fn finish_free(region: &Region) {
    match &region.kind {
        Kind::Pooled(allocation) => {
            let pool = &allocation.pool;
            access::freed((region.start, region.len));
            if sys::is_in_use(&pool.file, allocation.offset as u64, region.len as u64) {
                strict::violation("pool memory is freed before its importer freed it (importers first)");
            }
            pool.head.at(allocation.offset).store(0, Ordering::Release);
            super::remove(region.start);
            // An importer that still has it reads other contents.
            // SAFETY: a valid descriptor and a range of the file.
            unsafe {
                libc::fallocate(
                    pool.file.as_raw_fd(),
                    libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                    allocation.offset as libc::off_t,
                    region.len as libc::off_t,
                )
            };
            let mut space = pool.free.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            space.holes.push((allocation.offset, region.len));
        }
        Kind::PoolImported(import) => {
            if import.is_freed() {
                strict::violation(
                    "imported pool memory is freed after its exporter freed it (importers first)",
                );
            }
            super::remove(region.start);
            if let Ok(file) = import.pool.file.try_clone() {
                // A clone of the same open file description: unlocking through it removes the
                // pool's lock.
                sys::mark_in_use(&File::from(file), import.offset as u64, false);
            }
        }
        _ => {}
    }
}

fn start_freeing(region: &Region) -> Answer {
    if region.freeing.swap(true, Ordering::AcqRel) { Err(INVALID_VALUE) } else { Ok(()) }
}

/// Frees pool memory by cuMemFree, without a stream.
pub fn free_now(region: &Arc<Region>) -> Answer {
    start_freeing(region)?;
    wait_until_unused(region.start, region.len);
    finish_free(region);
    Ok(())
}

fn free_in_order(address: usize, stream: usize) -> Answer {
    let stream = stream::find(stream)?;
    let region = super::starting_at(address).ok_or(INVALID_VALUE)?;
    if !matches!(region.kind, Kind::Pooled(_) | Kind::PoolImported(_)) {
        return Err(INVALID_VALUE);
    }
    start_freeing(&region)?;
    let (start, len) = (region.start, region.len);
    // Its addresses are free when the item is complete.
    let region = Mutex::new(Some(region));
    let free = move || {
        if let Some(region) = region.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take() {
            finish_free(&region);
        }
    };
    submit(&stream, Op::Driver(Box::new(free)), Vec::new(), vec![(start, len)])?;
    Ok(())
}

fn export_pointer(address: usize) -> Result<Blob, Code> {
    let region = super::starting_at(address).ok_or(INVALID_VALUE)?;
    let Kind::Pooled(allocation) = &region.kind else { return Err(INVALID_VALUE) };
    if !allocation.pool.is_exportable() || !allocation.pool.exported.load(Ordering::Acquire) {
        return Err(INVALID_VALUE);
    }
    let numbers = [
        allocation.pool.nonce,
        allocation.offset as u64,
        region.len as u64,
        region.size as u64,
        allocation.nonce,
    ];
    Ok(Blob::pack(&numbers))
}

fn import_pool(fd: RawFd) -> Result<usize, Code> {
    let name = sys::memory_file_name(fd).ok_or(INVALID_VALUE)?;
    let device = name.strip_prefix(FILE).and_then(|device| device.parse().ok()).ok_or(INVALID_VALUE)?;
    device::ordinal(device).ok_or(INVALID_DEVICE)?;
    let file: OwnedFd = sys::reopen(fd).map_err(|_| OUT_OF_MEMORY)?.into();
    let head = Head::of(&file)?;
    let nonce = head.pool().load(Ordering::Acquire);
    Ok(Pool::register(device, false, true, file, head, nonce).handle)
}

fn import_pointer(pool: &Arc<Pool>, blob: &Blob) -> Result<usize, Code> {
    static IMPORTING: Mutex<()> = Mutex::new(());
    let [of, offset, len, size, nonce, ..] = blob.unpack();
    let (offset, len, size) = (offset as usize, len as usize, size as usize);
    let plausible = offset >= GRANULE
        && offset.is_multiple_of(GRANULE)
        && len.is_multiple_of(GRANULE)
        && size <= len
        && offset.checked_add(len).is_some_and(|end| end <= SPACE);
    if !pool.imported || of != pool.nonce || !plausible || len == 0 {
        return Err(INVALID_VALUE);
    }
    if pool.head.at(offset).load(Ordering::Acquire) != nonce {
        return Err(INVALID_VALUE);
    }
    let _importing = IMPORTING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let twice = super::regions()
        .values()
        .any(|region| matches!(&region.kind, Kind::PoolImported(import) if import.nonce == nonce));
    if twice {
        return Err(ALREADY_MAPPED);
    }
    let mapping = Mapping::of_file(pool.file.as_raw_fd(), offset, len)?;
    let file = File::from(pool.file.try_clone().map_err(|_| OUT_OF_MEMORY)?);
    sys::mark_in_use(&file, offset as u64, true);
    let kind = Kind::PoolImported(Import { pool: pool.clone(), offset, nonce });
    let region = Region::new(mapping, size, pool.device, 0, kind, 0);
    pool.apply_access(&region);
    Ok(super::insert(region).start)
}

crate::export! {
    fn cuMemPoolCreate(out: Out<usize>, properties: In<Properties>) {
        supported()?;
        out.check()?;
        let properties = properties.get()?;
        if properties.kind != 1 {
            return Err(INVALID_VALUE);
        }
        let exportable = match properties.handle_types {
            0 => false,
            1 => {
                fds_supported()?;
                true
            }
            _ => return Err(NOT_SUPPORTED),
        };
        out.set(Pool::create(properties.location.device()?, exportable)?.handle)
    }

    // The pool lives on until its last allocation is freed.
    fn cuMemPoolDestroy(handle: usize) {
        supported()?;
        let removed = {
            let mut pools = POOLS_BY_HANDLE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            pools.get_or_insert_default().remove(&handle)
        };
        removed.ok_or(INVALID_VALUE)?;
        HANDLES.release(handle);
        Ok(())
    }

    fn cuMemAllocFromPoolAsync(out: Out<u64>, size: usize, pool: usize, stream: usize) {
        supported()?;
        out.check()?;
        out.set(allocate(size, find(pool)?, stream)? as u64)
    }

    fn cuMemAllocAsync(out: Out<u64>, size: usize, stream: usize) {
        supported()?;
        out.check()?;
        let pool = default_of(stream::find(stream)?.state.device)?;
        out.set(allocate(size, find(pool)?, stream)? as u64)
    }

    fn cuMemFreeAsync(address: u64, stream: usize) {
        supported()?;
        free_in_order(address as usize, stream)
    }

    fn cuMemPoolTrimTo(handle: usize, _keep: usize) {
        supported()?;
        find(handle)?;
        Ok(())
    }

    fn cuMemPoolSetAttribute(handle: usize, attribute: u32, value: In<u64>) {
        supported()?;
        let pool = find(handle)?;
        if attribute == 4 {
            pool.threshold.store(value.get()?, Ordering::Relaxed);
        }
        Ok(())
    }

    fn cuMemPoolGetAttribute(handle: usize, attribute: u32, value: Out<u64>) {
        supported()?;
        let pool = find(handle)?;
        let live = || {
            let table = super::regions();
            let own = table.values().filter(|region| match &region.kind {
                Kind::Pooled(allocation) => Arc::ptr_eq(&allocation.pool, &pool),
                Kind::PoolImported(import) => Arc::ptr_eq(&import.pool, &pool),
                _ => false,
            });
            own.map(|region| region.len as u64).sum()
        };
        match attribute {
            4 => value.set(pool.threshold.load(Ordering::Relaxed)),
            5..=8 => value.set(live()),
            _ => value.set(0),
        }
    }

    fn cuMemPoolSetAccess(handle: usize, entries: In<AccessEntry>, count: usize) {
        supported()?;
        let pool = find(handle)?;
        for index in 0..count {
            let entry = entries.at(index)?;
            let device = entry.location.device()?;
            let access = match entry.flags {
                0 if device == pool.device => return Err(INVALID_VALUE),
                0 => 0,
                // Measured: pools have no read-only access.
                1 => return Err(NOT_SUPPORTED),
                3 => READ_WRITE,
                _ => return Err(INVALID_VALUE),
            };
            if !device::reaches(device, pool.device) {
                return Err(INVALID_DEVICE);
            }
            pool.access[device as usize].store(access, Ordering::Release);
        }
        for region in super::regions().values() {
            match &region.kind {
                Kind::Pooled(Allocation { pool: other, .. }) | Kind::PoolImported(Import { pool: other, .. })
                    if Arc::ptr_eq(other, &pool) =>
                {
                    pool.apply_access(region);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn cuMemPoolGetAccess(flags: Out<u32>, handle: usize, location: In<Location>) {
        supported()?;
        let device = location.get()?.device()?;
        flags.set(find(handle)?.access[device as usize].load(Ordering::Acquire).into())
    }

    fn cuMemPoolExportToShareableHandle(out: Out<RawFd>, handle: usize, kind: u32, flags: u64) {
        fds_supported()?;
        out.check()?;
        let pool = find(handle)?;
        if kind != 1 || flags != 0 || !pool.is_exportable() {
            return Err(INVALID_VALUE);
        }
        let fd = pool.file.as_fd().try_clone_to_owned().map_err(|_| OUT_OF_MEMORY)?;
        pool.exported.store(true, Ordering::Release);
        out.set(fd.into_raw_fd())
    }

    fn cuMemPoolImportFromShareableHandle(out: Out<usize>, fd: *const c_void, kind: u32, flags: u64) {
        fds_supported()?;
        out.check()?;
        if kind != 1 || flags != 0 {
            return Err(INVALID_VALUE);
        }
        out.set(import_pool(fd as usize as RawFd)?)
    }

    fn cuMemPoolExportPointer(out: Out<Blob>, address: u64) {
        fds_supported()?;
        out.set(export_pointer(address as usize)?)
    }

    fn cuMemPoolImportPointer(out: Out<u64>, handle: usize, blob: In<Blob>) {
        fds_supported()?;
        out.check()?;
        context::current()?;
        out.set(import_pointer(&find(handle)?, &blob.get()?)? as u64)
    }
}
