// SPDX-License-Identifier: MIT OR Apache-2.0

//! Devices: initialization, ordinals, UUIDs and attributes.

use crate::api::{Answer, Code, INVALID_DEVICE, INVALID_VALUE, NOT_INITIALIZED};
use crate::{config, mps};
use std::sync::atomic::{AtomicU32, Ordering};

/// Maximum number of simulated devices.
pub const MAX: usize = 8;

/// The process that called cuInit. In a forked child the driver is not initialized.
static INITIALIZED_IN: AtomicU32 = AtomicU32::new(0);

/// Returns an error unless cuInit was called in this process.
pub fn ready() -> Answer {
    if INITIALIZED_IN.load(Ordering::Acquire) == std::process::id() { Ok(()) } else { Err(NOT_INITIALIZED) }
}

/// Initializes the driver in this process, with `prepare` on the first call. If the parent has done
/// so, a forked child stays uninitialized, as with CUDA.
pub fn initialize(prepare: impl FnOnce()) -> Answer {
    if INITIALIZED_IN.load(Ordering::Acquire) == 0 {
        prepare();
        let process = std::process::id();
        let _ = INITIALIZED_IN.compare_exchange(0, process, Ordering::AcqRel, Ordering::Acquire);
    }
    ready()
}

/// Returns the physical index of a device, which is the same in all processes.
pub fn physical(ordinal: i32) -> Result<u32, Code> {
    ready()?;
    let index = usize::try_from(ordinal).map_err(|_| INVALID_DEVICE)?;
    config::get().visible.get(index).copied().ok_or(INVALID_DEVICE)
}

/// Returns this process's ordinal of a device, if the device is visible here.
pub fn ordinal(physical: u32) -> Option<i32> {
    config::get().visible.iter().position(|&device| device == physical).map(|index| index as i32)
}

/// Returns whether a device can access another device's memory.
pub fn reaches(from: u32, to: u32) -> bool {
    from == to || !config::get().no_peers
}

pub fn uuid(physical: u32) -> [u8; 16] {
    let mut uuid = *b"\x5f\x51\xc0\xda\x7e\x57\x4a\x11\x80\x00frames";
    uuid[9] = physical as u8;
    uuid
}

/// Returns the UUID in the format of `CUDA_VISIBLE_DEVICES`.
pub fn uuid_text(physical: u32) -> String {
    let hex: Vec<String> = uuid(physical).iter().map(|byte| format!("{byte:02x}")).collect();
    let part = |from: usize, to: usize| hex[from..to].concat();
    format!("GPU-{}-{}-{}-{}-{}", part(0, 4), part(4, 6), part(6, 8), part(8, 10), part(10, 16))
}

/// Returns the value of an attribute by its CUDA number, 0 for attributes without a meaning here.
pub fn attribute(attribute: i32, physical: u32) -> Result<i32, Code> {
    if let Some(entry) = config::get().withheld.iter().find(|entry| entry.attribute == attribute) {
        return if entry.unknown { Err(INVALID_VALUE) } else { Ok(0) };
    }
    Ok(match attribute {
        1..=3 => 1024,                    // threads per block
        4 => 64,                          // block depth
        5 => i32::MAX,                    // grid
        6 | 7 => 65_535,                  // grid
        8 => 49_152,                      // shared memory per block
        9 => 65_536,                      // constant memory
        10 => 32,                         // warp
        11 => i32::MAX,                   // pitch
        12 | 82 => 65_536,                // registers
        13 => 1_980_000,                  // clock, kHz
        14 | 30 => 512,                   // texture and surface alignment
        51 => 32,                         // texture pitch alignment
        15 | 19 | 31 | 41 | 78 | 90 => 1, // overlap, host memory, concurrent kernels, UVA, priorities
        16 => 132,                        // multiprocessors
        21..=23 => 131_072,               // texture sizes
        24..=26 => 16_384,
        33 => physical as i32 + 1, // PCI bus
        34 | 50 => 0,              // PCI device and domain
        36 => 3_201_000,           // memory clock, kHz
        37 => 6144,                // memory bus
        38 => 62_914_560,          // L2 cache
        39 => 2048,                // threads per multiprocessor
        40 => 3,                   // copy engines
        75 => 9,                   // compute capability
        76 => 0,
        91 | 99 | 113 => 1, // host pointers of registered memory, (read-only) registration
        92..=94 => 0,       // stream memory operations v1, which drivers disable
        102 | 103 => 1,     // VMM, POSIX fds
        115 | 119 => 1,     // pools, their POSIX fds
        122 | 123 | 125 => 1, // 64-bit stream memory operations, NOR waits, IPC events
        133 => i32::from(mps::is_client()),
        attribute if (1..=162).contains(&attribute) => 0,
        _ => return Err(INVALID_VALUE),
    })
}
