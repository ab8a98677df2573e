// SPDX-License-Identifier: MIT OR Apache-2.0

//! Virtual memory management: separate allocations, address reservations and mappings. Allocations
//! are exported as fds.

use super::{Charge, Kind, READ, READ_WRITE, Region};
use crate::api::{
    Answer, Code, INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, In, NOT_FOUND, NOT_SUPPORTED, OUT_OF_MEMORY,
    Out, UNKNOWN,
};
use crate::sys::{self, GRANULE, Mapping};
use crate::{config, device};
use std::collections::{BTreeMap, HashMap};
use std::ffi::c_void;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard};

/// Attributes VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED and HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED.
const VMM: i32 = 102;
const POSIX_FD: i32 = 103;

/// Prefix of an allocation's file name; the device index follows.
const FILE: &str = "simcuda.vmm.";

/// CUmemLocation.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Location {
    pub kind: i32,
    pub id: i32,
}

impl Location {
    const DEVICE: i32 = 1;

    /// Returns the physical index of the device.
    pub fn device(self) -> Result<u32, Code> {
        if self.kind == Location::DEVICE { device::physical(self.id) } else { Err(INVALID_VALUE) }
    }
}

/// CUmemAllocationProp.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Properties {
    kind: u32,
    handle_types: u32,
    location: Location,
    _win32: usize,
    _compression: u8,
    _rdma: u8,
    _usage: u16,
    _reserved: [u8; 4],
}

/// CUmemAccessDesc.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AccessEntry {
    pub location: Location,
    pub flags: u32,
}

/// Memory without an address.
struct Allocation {
    file: OwnedFd,
    size: usize,
    device: u32,
    exportable: bool,
    _charge: Option<Charge>,
}

/// An allocation mapped at an address.
pub struct Mapped {
    allocation: Arc<Allocation>,
    /// The reservation that contains the address.
    reservation: Arc<Mapping>,
}

impl Mapped {
    pub fn file(&self) -> &OwnedFd {
        &self.allocation.file
    }

    pub fn is_exportable(&self) -> bool {
        self.allocation.exportable
    }
}

#[derive(Default)]
struct State {
    /// Handles with their use counts.
    handles: HashMap<u64, (Arc<Allocation>, u64)>,
    reserved: BTreeMap<usize, Arc<Mapping>>,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

fn state() -> MutexGuard<'static, Option<State>> {
    STATE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn with<T>(run: impl FnOnce(&mut State) -> T) -> T {
    run(state().get_or_insert_default())
}

fn supported() -> Answer {
    device::ready()?;
    if config::withheld(VMM) { Err(NOT_SUPPORTED) } else { Ok(()) }
}

fn new_handle(allocation: Allocation) -> u64 {
    let handle = crate::context::new_handle() as u64;
    with(|state| state.handles.insert(handle, (Arc::new(allocation), 1)));
    handle
}

fn by_handle(handle: u64) -> Result<Arc<Allocation>, Code> {
    with(|state| state.handles.get(&handle).map(|(allocation, _)| allocation.clone())).ok_or(INVALID_VALUE)
}

fn check_properties(properties: &Properties) -> Result<u32, Code> {
    if properties.kind != 1 {
        return Err(INVALID_VALUE);
    }
    if properties.handle_types & !1 != 0 || (properties.handle_types == 1 && config::withheld(POSIX_FD)) {
        return Err(NOT_SUPPORTED);
    }
    properties.location.device()
}

fn aligned(value: usize) -> bool {
    value != 0 && value.is_multiple_of(GRANULE)
}

fn import(fd: RawFd) -> Result<u64, Code> {
    // Measured: a descriptor that is not CUDA's fails with 999, not with 1.
    let name = sys::memory_file_name(fd).ok_or(UNKNOWN)?;
    let device = name.strip_prefix(FILE).and_then(|device| device.parse().ok()).ok_or(UNKNOWN)?;
    device::ordinal(device).ok_or(INVALID_DEVICE)?;
    let size = sys::size_of(fd).map_err(|_| INVALID_VALUE)? as usize;
    // The caller keeps its descriptor.
    let file = sys::duplicate(fd).map_err(|_| OUT_OF_MEMORY)?;
    Ok(new_handle(Allocation { file, size, device, exportable: true, _charge: None }))
}

fn map(address: usize, size: usize, handle: u64) -> Answer {
    let allocation = by_handle(handle)?;
    if !aligned(address) || !aligned(size) {
        return Err(INVALID_VALUE);
    }
    // Measured: 801.
    if size > allocation.size {
        return Err(NOT_SUPPORTED);
    }
    let reservation = with(|state| {
        let (_, reservation) = state.reserved.range(..=address).next_back()?;
        (address + size <= reservation.start() + reservation.len()).then(|| reservation.clone())
    });
    let reservation = reservation.ok_or(INVALID_VALUE)?;
    let mut table = super::regions_mut();
    if table.range(address..address + size).next().is_some() || super::find_in(&table, address).is_some() {
        return Err(INVALID_VALUE);
    }
    reservation.put(address, size, allocation.file.as_raw_fd())?;
    let device = allocation.device;
    let kind = Kind::Vmm(Mapped { allocation, reservation });
    table.insert(address, Arc::new(Region::at(address, size, size, device, 0, kind, 0, None)));
    Ok(())
}

/// Returns the mappings that exactly cover a range.
fn mappings(table: &super::Table, address: usize, size: usize) -> Result<Vec<Arc<Region>>, Code> {
    let mut found = Vec::new();
    let all = size > 0
        && super::walk(table, address, size, |region| {
            found.push(region.clone());
            matches!(region.kind, Kind::Vmm(_))
        });
    let whole = all && found.first().is_some_and(|first| first.start == address);
    if whole && found.last().is_some_and(|last| last.end() == address + size) {
        Ok(found)
    } else {
        Err(INVALID_VALUE)
    }
}

/// Unmaps a range without waiting for queued work, which fails when it accesses the range.
fn unmap(address: usize, size: usize) -> Answer {
    let mut table = super::regions_mut();
    for region in mappings(&table, address, size)? {
        table.remove(&region.start);
        if let Kind::Vmm(mapped) = &region.kind {
            mapped.reservation.take(region.start, region.len)?;
        }
    }
    Ok(())
}

fn set_access(address: usize, size: usize, entries: &[AccessEntry]) -> Answer {
    let table = super::regions();
    let found = mappings(&table, address, size)?;
    for entry in entries {
        let device = entry.location.device()?;
        let access = match entry.flags {
            0 => 0,
            1 => READ,
            3 => READ_WRITE,
            _ => return Err(INVALID_VALUE),
        };
        for region in &found {
            if !device::reaches(device, region.device) {
                return Err(NOT_SUPPORTED);
            }
            region.set_access(device, access);
        }
    }
    for region in &found {
        let access = region.widest_access();
        sys::protect(region.start, region.len, access & READ != 0, access == READ_WRITE);
    }
    Ok(())
}

crate::export! {
    fn cuMemGetAllocationGranularity(out: Out<usize>, properties: In<Properties>, _option: u32) {
        supported()?;
        check_properties(&properties.get()?)?;
        out.set(GRANULE)
    }

    fn cuMemCreate(out: Out<u64>, size: usize, properties: In<Properties>, flags: u64) {
        supported()?;
        out.check()?;
        let properties = properties.get()?;
        let device = check_properties(&properties)?;
        if !aligned(size) || flags != 0 {
            return Err(INVALID_VALUE);
        }
        let charge = Charge::take(device, size)?;
        let file = sys::memory_file(&format!("{FILE}{device}"), size)?;
        super::fill_fresh(&file, 0, size)?;
        let exportable = properties.handle_types == 1;
        out.set(new_handle(Allocation { file, size, device, exportable, _charge: Some(charge) }))
    }

    fn cuMemRelease(handle: u64) {
        supported()?;
        let removed = with(|state| {
            let entry = state.handles.get_mut(&handle).ok_or(INVALID_VALUE)?;
            entry.1 -= 1;
            Ok(if entry.1 == 0 { state.handles.remove(&handle) } else { None })
        })?;
        drop(removed);
        Ok(())
    }

    fn cuMemAddressReserve(out: Out<u64>, size: usize, alignment: usize, _wish: u64, flags: u64) {
        supported()?;
        out.check()?;
        let alignment_valid = alignment == 0 || alignment.is_power_of_two();
        if !aligned(size) || flags != 0 || alignment > GRANULE || !alignment_valid {
            return Err(INVALID_VALUE);
        }
        let mapping = Mapping::reserve(size)?;
        let start = mapping.start();
        with(|state| state.reserved.insert(start, Arc::new(mapping)));
        out.set(start as u64)
    }

    fn cuMemAddressFree(address: u64, size: usize) {
        supported()?;
        let address = address as usize;
        let table = super::regions();
        if table.range(address..address.saturating_add(size)).next().is_some() {
            return Err(INVALID_VALUE);
        }
        drop(table);
        let removed = with(|state| {
            let found = state.reserved.get(&address).filter(|reservation| reservation.len() == size);
            found.ok_or(INVALID_VALUE)?;
            Ok(state.reserved.remove(&address))
        })?;
        drop(removed);
        Ok(())
    }

    fn cuMemMap(address: u64, size: usize, offset: usize, handle: u64, flags: u64) {
        supported()?;
        if offset != 0 || flags != 0 {
            return Err(INVALID_VALUE);
        }
        map(address as usize, size, handle)
    }

    fn cuMemUnmap(address: u64, size: usize) {
        supported()?;
        unmap(address as usize, size)
    }

    fn cuMemSetAccess(address: u64, size: usize, entries: In<AccessEntry>, count: usize) {
        supported()?;
        let entries = (0..count).map(|index| entries.at(index)).collect::<Result<Vec<_>, _>>()?;
        set_access(address as usize, size, &entries)
    }

    fn cuMemGetAccess(flags: Out<u64>, location: In<Location>, address: u64) {
        supported()?;
        let device = location.get()?.device()?;
        let region = super::find(address as usize).ok_or(INVALID_VALUE)?;
        flags.set(region.access(device).into())
    }

    fn cuMemExportToShareableHandle(out: Out<RawFd>, handle: u64, kind: u32, flags: u64) {
        supported()?;
        out.check()?;
        let allocation = by_handle(handle)?;
        if kind != 1 || flags != 0 || !allocation.exportable {
            return Err(INVALID_VALUE);
        }
        let fd = sys::duplicate(allocation.file.as_raw_fd()).map_err(|_| OUT_OF_MEMORY)?;
        out.set(fd.into_raw_fd())
    }

    fn cuMemImportFromShareableHandle(out: Out<u64>, fd: *const c_void, kind: u32) {
        supported()?;
        out.check()?;
        if kind != 1 {
            return Err(INVALID_VALUE);
        }
        if config::withheld(POSIX_FD) {
            return Err(NOT_SUPPORTED);
        }
        out.set(import(fd as usize as RawFd)?)
    }

    fn cuMemGetAllocationPropertiesFromHandle(out: Out<Properties>, handle: u64) {
        supported()?;
        let allocation = by_handle(handle)?;
        let id = device::ordinal(allocation.device).ok_or(INVALID_DEVICE)?;
        out.set(Properties {
            kind: 1,
            handle_types: allocation.exportable.into(),
            location: Location { kind: Location::DEVICE, id },
            _win32: 0,
            _compression: 0,
            _rdma: 0,
            _usage: 0,
            _reserved: [0; 4],
        })
    }

    fn cuMemRetainAllocationHandle(out: Out<u64>, address: *const c_void) {
        supported()?;
        out.check()?;
        let region = super::find(address as usize).ok_or(INVALID_VALUE)?;
        let Kind::Vmm(mapped) = &region.kind else { return Err(INVALID_VALUE) };
        let handle = with(|state| {
            let mut handles = state.handles.iter_mut();
            let known = handles.find(|(_, (allocation, _))| Arc::ptr_eq(allocation, &mapped.allocation));
            known.map(|(handle, entry)| {
                entry.1 += 1;
                *handle
            })
        });
        out.set(handle.unwrap_or_else(|| {
            let handle = crate::context::new_handle() as u64;
            with(|state| state.handles.insert(handle, (mapped.allocation.clone(), 1)));
            handle
        }))
    }

    fn cuMemGetHandleForAddressRange(
        _handle: *mut c_void, address: u64, _size: usize, _kind: i32, _flags: u64,
    ) {
        supported()?;
        super::find(address as usize).ok_or(NOT_FOUND).map_err(|_| INVALID_HANDLE)?;
        // dma-buf is not supported, as attribute 124 says.
        Err(NOT_SUPPORTED)
    }
}
