// SPDX-License-Identifier: MIT OR Apache-2.0

//! Calls that the real driver does not have: programs find them with dlsym, and tell by them what
//! the driver cannot see.

use crate::api::{Answer, INVALID_VALUE, In};
use crate::context::submit;
use crate::memory::access::{self, Access};
use crate::queue::Op;
use crate::{memory, order, stream};
use std::ffi::c_void;

/// A range of memory that a kernel accesses.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KernelRange {
    address: u64,
    len: u64,
    write: u32,
    _padding: u32,
}

// The next four are no calls of the driver: they are allowed in host functions, in forked children,
// and while the process exits.

/// The calling process is about to store a word that orders accesses of several processes.
// SAFETY: no other library has a symbol of this name.
#[unsafe(no_mangle)]
extern "C" fn simcudaRelease(address: *const c_void) {
    access::releases(address as usize, None);
}

/// The calling process has loaded such a word.
// SAFETY: as above.
#[unsafe(no_mangle)]
extern "C" fn simcudaAcquire(address: *const c_void) {
    access::acquired(address as usize, None);
}

/// A message to another process is about to be sent, or was received; its number is unique.
// SAFETY: as above.
#[unsafe(no_mangle)]
extern "C" fn simcudaMessage(number: u64, received: i32) {
    let message = format_args!("message.{number:x}");
    if received == 0 { order::releases(message, None) } else { order::acquired(message, None) }
}

/// The CPU accesses memory.
// SAFETY: as above.
#[unsafe(no_mangle)]
extern "C" fn simcudaAccess(address: *const c_void, len: usize, write: i32) {
    access::accessed("CPU", (address as usize, len), write != 0);
}

fn launch(handle: usize, count: usize, ranges: &In<KernelRange>) -> Answer {
    let stream = stream::find(handle)?;
    let mut accesses = Vec::new();
    for index in 0..count {
        let range = ranges.at(index)?;
        let (start, len) = (range.address as usize, range.len as usize);
        if !memory::known(start, len) {
            return Err(INVALID_VALUE);
        }
        accesses.push(Access { range: (start, len), write: range.write != 0 });
    }
    let ranges = accesses.iter().map(|access| access.range).collect();
    submit(&stream, Op::Kernel(accesses), Vec::new(), ranges)?;
    Ok(())
}

crate::export! {
    // A kernel that accesses these ranges, and changes no byte.
    fn simcudaLaunch(stream: usize, count: usize, ranges: In<KernelRange>) {
        launch(stream, count, &ranges)
    }
}
