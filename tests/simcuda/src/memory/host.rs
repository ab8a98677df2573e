// SPDX-License-Identifier: MIT OR Apache-2.0

//! Host memory with device access: allocated by the driver, or registered with it.

use super::{Kind, READ, READ_WRITE, Region};
use crate::api::{
    Answer, HOST_MEMORY_ALREADY_REGISTERED, HOST_MEMORY_NOT_REGISTERED, INVALID_VALUE, NOT_SUPPORTED, Out,
};
use crate::queue::wait_until_unused;
use crate::sys::{self, Mapping, PAGE};
use crate::{config, context};
use std::ffi::c_void;

const READ_ONLY: u32 = 8;
const ALL_FLAGS: u32 = 15;

/// Attributes HOST_REGISTER_SUPPORTED and READ_ONLY_HOST_REGISTER_SUPPORTED.
const REGISTER: i32 = 99;
const REGISTER_READ_ONLY: i32 = 113;

fn allocate(out: Out<*mut c_void>, size: usize) -> Answer {
    out.check()?;
    let context = context::current()?;
    if size == 0 {
        return Err(INVALID_VALUE);
    }
    context.wait_for_frees();
    let mapping = Mapping::anonymous(sys::round_up(size, PAGE))?;
    let region =
        Region::new(mapping, size, context.state.device, context.handle, Kind::HostAllocated, READ_WRITE);
    out.set(super::insert(region).start as *mut c_void)
}

/// Returns whether a range is writable, or `None` if a part of it is not mapped or not readable.
fn mapped(start: usize, len: usize) -> Option<bool> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let (mut at, mut writable) = (start, true);
    for line in maps.lines() {
        let mut words = line.split(' ');
        let (from, to) = words.next()?.split_once('-')?;
        let (from, to) = (usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?);
        if from <= at && at < to {
            let rights = words.next()?;
            if !rights.starts_with('r') {
                return None;
            }
            writable &= rights[1..].starts_with('w');
            at = to;
            if at >= start + len {
                return Some(writable);
            }
        }
    }
    None
}

fn register(start: usize, len: usize, flags: u32) -> Answer {
    let context = context::current()?;
    if config::withheld(REGISTER) {
        return Err(NOT_SUPPORTED);
    }
    if start == 0 || len == 0 || flags & !ALL_FLAGS != 0 {
        return Err(INVALID_VALUE);
    }
    let read_only = flags & READ_ONLY != 0;
    if read_only && config::withheld(REGISTER_READ_ONLY) {
        return Err(NOT_SUPPORTED);
    }
    let writable = mapped(start, len).ok_or(INVALID_VALUE)?;
    if !writable && !read_only {
        return Err(INVALID_VALUE);
    }
    let mut table = super::regions_mut();
    let overlaps =
        super::find_in(&table, start).is_some() || table.range(start..start + len).next().is_some();
    if overlaps {
        return Err(HOST_MEMORY_ALREADY_REGISTERED);
    }
    let access = if read_only { READ } else { READ_WRITE };
    let device = context.state.device;
    let region = Region::at(start, len, len, device, context.handle, Kind::HostRegistered, access, None);
    table.insert(start, region.into());
    Ok(())
}

crate::export! {
    fn cuMemAllocHost_v2(out: Out<*mut c_void>, size: usize) {
        allocate(out, size)
    }

    fn cuMemHostAlloc(out: Out<*mut c_void>, size: usize, flags: u32) {
        if flags > 7 {
            return Err(INVALID_VALUE);
        }
        allocate(out, size)
    }

    fn cuMemFreeHost(address: *mut c_void) {
        let context = context::current()?;
        if address.is_null() {
            return Ok(());
        }
        let region = super::starting_at(address as usize).ok_or(INVALID_VALUE)?;
        if !matches!(region.kind, Kind::HostAllocated) {
            return Err(INVALID_VALUE);
        }
        wait_until_unused(region.start, region.len);
        context.wait_to_free();
        super::remove(region.start);
        Ok(())
    }

    fn cuMemHostRegister_v2(address: *mut c_void, size: usize, flags: u32) {
        register(address as usize, size, flags)
    }

    fn cuMemHostUnregister(address: *mut c_void) {
        let context = context::current()?;
        let region = super::starting_at(address as usize).ok_or(HOST_MEMORY_NOT_REGISTERED)?;
        if !matches!(region.kind, Kind::HostRegistered) {
            return Err(HOST_MEMORY_NOT_REGISTERED);
        }
        wait_until_unused(region.start, region.len);
        context.wait_to_free();
        super::remove(region.start);
        Ok(())
    }

    fn cuMemHostGetDevicePointer_v2(out: Out<u64>, address: *mut c_void, flags: u32) {
        context::current()?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        let region = super::find(address as usize).filter(|region| region.is_host()).ok_or(INVALID_VALUE)?;
        debug_assert!(region.len > 0);
        out.set(address as u64)
    }

    fn cuMemHostGetFlags(out: Out<u32>, address: *mut c_void) {
        context::current()?;
        super::find(address as usize).filter(|region| region.is_host()).ok_or(INVALID_VALUE)?;
        out.set(2)
    }

    fn cuMemAllocManaged(_place: Out<u64>, _size: usize, _flags: u32) {
        Err(NOT_SUPPORTED)
    }
}
