// SPDX-License-Identifier: MIT OR Apache-2.0

//! Calls that queue stream memory operations.

use crate::api::{Answer, Code, INVALID_VALUE, In, NOT_SUPPORTED};
use crate::context::submit;
use crate::memop::{MemOp, Until};
use crate::queue::Op;
use crate::{config, memory, stream};

/// CUstreamBatchMemOpParams.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct BatchEntry {
    operation: u32,
    _padding: u32,
    address: u64,
    value: u64,
    flags: u32,
    _padding_2: u32,
    _alias: u64,
    _reserved: u64,
}

/// Attribute CAN_USE_64_BIT_STREAM_MEM_OPS. Its v1 counterpart, attribute 93, is 0.
const WIDE_OPS: i32 = 122;
/// Attribute CAN_USE_STREAM_WAIT_VALUE_NOR.
const NOR: i32 = 123;
const FLUSH: u32 = 1 << 30;

fn op(address: u64, value: u64, wide: bool, until: Option<Until>) -> Result<MemOp, Code> {
    if wide && config::withheld(WIDE_OPS) {
        return Err(NOT_SUPPORTED);
    }
    let (address, size) = (address as usize, if wide { 8 } else { 4 });
    if !address.is_multiple_of(size) || !memory::known(address, size) {
        return Err(INVALID_VALUE);
    }
    Ok(MemOp { address, value, wide, until, no_op: false })
}

fn write(address: u64, value: u64, flags: u32, wide: bool) -> Result<MemOp, Code> {
    if flags > 1 { Err(INVALID_VALUE) } else { op(address, value, wide, None) }
}

fn wait(address: u64, value: u64, flags: u32, wide: bool) -> Result<MemOp, Code> {
    let until = match flags & !FLUSH {
        0 => Until::AtLeast,
        1 => Until::Equal,
        2 => Until::AnyOf,
        3 if config::withheld(NOR) => return Err(NOT_SUPPORTED),
        3 => Until::NotAll,
        _ => return Err(INVALID_VALUE),
    };
    op(address, value, wide, Some(until))
}

fn queue(stream: usize, ops: Vec<MemOp>) -> Answer {
    let stream = stream::find(stream)?;
    let ranges = ops.iter().filter(|op| !op.no_op).map(|op| (op.address, 8)).collect();
    submit(&stream, Op::MemOps(ops), Vec::new(), ranges)?;
    Ok(())
}

crate::export! {
    fn cuStreamWriteValue64_v2(stream: usize, address: u64, value: u64, flags: u32) {
        queue(stream, vec![write(address, value, flags, true)?])
    }

    fn cuStreamWriteValue32_v2(stream: usize, address: u64, value: u32, flags: u32) {
        queue(stream, vec![write(address, value.into(), flags, false)?])
    }

    fn cuStreamWaitValue64_v2(stream: usize, address: u64, value: u64, flags: u32) {
        queue(stream, vec![wait(address, value, flags, true)?])
    }

    fn cuStreamWaitValue32_v2(stream: usize, address: u64, value: u32, flags: u32) {
        queue(stream, vec![wait(address, value.into(), flags, false)?])
    }

    fn cuStreamBatchMemOp_v2(stream: usize, count: u32, entries: In<BatchEntry>, flags: u32) {
        // Fewer than 256 operations, as documented.
        if count >= 256 || flags != 0 {
            return Err(INVALID_VALUE);
        }
        let ops = (0..count as usize).map(|index| {
            let entry = entries.at(index)?;
            match entry.operation {
                1 => wait(entry.address, entry.value & u64::from(u32::MAX), entry.flags, false),
                2 => write(entry.address, entry.value & u64::from(u32::MAX), entry.flags, false),
                4 => wait(entry.address, entry.value, entry.flags, true),
                5 => write(entry.address, entry.value, entry.flags, true),
                3 | 6 => Ok(MemOp { address: 0, value: 0, wide: true, until: None, no_op: true }),
                _ => Err(INVALID_VALUE),
            }
        });
        queue(stream, ops.collect::<Result<_, _>>()?)
    }

    // Version 1 of the interface, which drivers disable by default: no program may depend on it.
    fn cuStreamWriteValue64(_stream: usize, _address: u64, _value: u64, _flags: u32) {
        Err(NOT_SUPPORTED)
    }

    fn cuStreamWriteValue32(_stream: usize, _address: u64, _value: u32, _flags: u32) {
        Err(NOT_SUPPORTED)
    }

    fn cuStreamWaitValue64(_stream: usize, _address: u64, _value: u64, _flags: u32) {
        Err(NOT_SUPPORTED)
    }

    fn cuStreamWaitValue32(_stream: usize, _address: u64, _value: u32, _flags: u32) {
        Err(NOT_SUPPORTED)
    }

    fn cuStreamBatchMemOp(_stream: usize, _count: u32, _entries: In<BatchEntry>, _flags: u32) {
        Err(NOT_SUPPORTED)
    }
}
