// SPDX-License-Identifier: MIT OR Apache-2.0

//! Pointer attributes.

use super::{Kind, Region};
use crate::api::{Answer, Code, INVALID_VALUE, In, NOT_SUPPORTED, Out};
use crate::device;
use std::ffi::c_void;

const HOST: u64 = 1;
const DEVICE: u64 = 2;

/// Returns an attribute's value and its size in bytes.
fn attribute(region: &Region, address: usize, attribute: u32) -> Result<(u64, usize), Code> {
    let is_host = region.is_host();
    let context = if region.context == 0 { 0 } else { region.context as u64 };
    Ok(match attribute {
        1 => (context, 8),
        2 => (if is_host { HOST } else { DEVICE }, 4),
        3 => (address as u64, 8),
        4 if is_host => (address as u64, 8),
        // Device memory has no host address with the real driver; here the device address would be
        // one.
        4 => return Err(INVALID_VALUE),
        6 | 8 => (0, 4),
        7 => (region.id, 8),
        9 => (device::ordinal(region.device).map_or(u64::MAX, |ordinal| ordinal as u64), 4),
        10 => (matches!(region.kind, Kind::Plain(_)).into(), 4),
        11 | 19 => (region.start as u64, 8),
        12 | 18 => (region.size as u64, 8),
        13 => (1, 4),
        14 => {
            let exportable = match &region.kind {
                Kind::Vmm(mapped) => mapped.is_exportable(),
                Kind::Pooled(allocation) => allocation.pool.is_exportable(),
                _ => false,
            };
            (exportable.into(), 8)
        }
        15 => (0, 4),
        16 => (region.widest_access().into(), 4),
        17 => match &region.kind {
            Kind::Pooled(allocation) => (allocation.pool.handle() as u64, 8),
            _ => (0, 8),
        },
        20 => (region.id, 8),
        _ => return Err(INVALID_VALUE),
    })
}

fn write(out: &Out<u8>, value: u64, size: usize) -> Answer {
    value.to_le_bytes()[..size].iter().enumerate().try_for_each(|(index, &byte)| out.set_at(index, byte))
}

crate::export! {
    fn cuPointerGetAttribute(out: Out<u8>, name: u32, address: u64) {
        device::ready()?;
        let region = super::find(address as usize).ok_or(INVALID_VALUE)?;
        let (value, size) = attribute(&region, address as usize, name)?;
        write(&out, value, size)
    }

    // For a pointer unknown to CUDA the results are zeros, without an error.
    fn cuPointerGetAttributes(count: u32, names: In<u32>, outs: In<*mut u8>, address: u64) {
        device::ready()?;
        let region = super::find(address as usize);
        for index in 0..count as usize {
            let (name, out) = (names.at(index)?, outs.at(index)?);
            let known = region.as_ref().and_then(|region| attribute(region, address as usize, name).ok());
            let size = if matches!(name, 2 | 6 | 8 | 9 | 10 | 13 | 15 | 16) { 4 } else { 8 };
            let (value, size) = known.unwrap_or((if name == 9 { u64::MAX } else { 0 }, size));
            write(&Out::at(out), value, size)?;
        }
        Ok(())
    }

    fn cuPointerSetAttribute(_value: *const c_void, _name: u32, _address: u64) {
        Err(NOT_SUPPORTED)
    }
}
