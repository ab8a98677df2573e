// SPDX-License-Identifier: MIT OR Apache-2.0

//! Calls that initialize the driver and describe its devices.

use crate::api::{Blob, INVALID_DEVICE, INVALID_VALUE, In, NO_DEVICE, NOT_SUPPORTED, Name, Out};
use crate::device::{self, attribute, physical, reaches, ready, uuid};
use crate::queue::post_mortem;
use crate::{config, memory, teardown};
use std::ffi::{c_char, c_void};

crate::export! {
    fn cuInit(flags: u32) {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        if config::get().visible.is_empty() {
            return Err(NO_DEVICE);
        }
        device::initialize(|| {
            post_mortem::start();
            teardown::register();
        })
    }

    fn cuDriverGetVersion(version: Out<i32>) {
        version.set(config::get().version)
    }

    fn cuDeviceGetCount(count: Out<i32>) {
        ready()?;
        count.set(config::get().visible.len() as i32)
    }

    fn cuDeviceGet(device: Out<i32>, ordinal: i32) {
        physical(ordinal)?;
        device.set(ordinal)
    }

    fn cuDeviceGetName(name: Out<c_char>, len: i32, device: i32) {
        let physical = physical(device)?;
        let text = format!("Simulated GPU {physical}");
        let len = usize::try_from(len).ok().filter(|&len| len > 0).ok_or(INVALID_VALUE)?;
        let shown = text.bytes().take(len - 1).chain(std::iter::once(0));
        shown.enumerate().try_for_each(|(index, byte)| name.set_at(index, byte as c_char))
    }

    fn cuDeviceGetUuid(out: Out<[u8; 16]>, device: i32) {
        // That of the whole GPU, also for its MIG instances.
        let whole = config::get().mig.then_some(u32::from(u8::MAX));
        out.set(uuid(whole.unwrap_or(physical(device)?)))
    }

    fn cuDeviceGetUuid_v2(out: Out<[u8; 16]>, device: i32) {
        out.set(uuid(physical(device)?))
    }

    fn cuDeviceGetAttribute(value: Out<i32>, name: i32, device: i32) {
        value.set(attribute(name, physical(device)?)?)
    }

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: i32) {
        physical(device)?;
        bytes.set(config::get().memory as usize)
    }

    fn cuDeviceGetPCIBusId(name: Out<c_char>, len: i32, device: i32) {
        let text = format!("0000:{:02X}:00.0\0", physical(device)? + 1);
        if usize::try_from(len).is_ok_and(|len| len >= text.len()) {
            text.bytes().enumerate().try_for_each(|(index, byte)| name.set_at(index, byte as c_char))
        } else {
            Err(INVALID_VALUE)
        }
    }

    fn cuDeviceGetByPCIBusId(device: Out<i32>, name: Name) {
        ready()?;
        let name = name.get()?.to_str().map_err(|_| INVALID_VALUE)?;
        let visible = &config::get().visible;
        let found = visible.iter().position(|physical| name == format!("0000:{:02X}:00.0", physical + 1));
        device.set(found.ok_or(INVALID_DEVICE)? as i32)
    }

    fn cuDeviceCanAccessPeer(can: Out<i32>, device: i32, peer: i32) {
        let (device, peer) = (physical(device)?, physical(peer)?);
        can.set((device != peer && reaches(device, peer)).into())
    }

    fn cuDeviceGetP2PAttribute(value: Out<i32>, attribute: i32, device: i32, peer: i32) {
        let (device, peer) = (physical(device)?, physical(peer)?);
        // Attributes 2 and 3 are access and native atomics. Attribute 1, the performance rank, is 0
        // for the only link.
        value.set((device != peer && reaches(device, peer) && matches!(attribute, 2 | 3)).into())
    }

    fn cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, device: i32) {
        physical(device)?;
        major.set(9)?;
        minor.set(0)
    }

    fn cuDeviceGetDefaultMemPool(pool: Out<usize>, device: i32) {
        pool.set(memory::pool::default_of(physical(device)?)?)
    }

    fn cuDeviceGetMemPool(pool: Out<usize>, device: i32) {
        pool.set(memory::pool::default_of(physical(device)?)?)
    }

    fn cuGetExportTable(_table: Out<*const c_void>, _id: In<Blob>) {
        Err(NOT_SUPPORTED)
    }
}
