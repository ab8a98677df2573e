// SPDX-License-Identifier: MIT OR Apache-2.0

//! Hardware channels: the number of streams of a process that execute or wait at the same time.
//!
//! A stream takes a channel of its device for each item and returns it after the item. So an item
//! that waits for a value occupies a channel, and as many waiting streams as there are channels
//! hold back all other streams of the process: measured on an H200 with driver 580. Waits for local
//! events occupy none: the work for which they wait was queued before them.

use crate::config;
use crate::device;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Channels in use, by device.
static USED: Mutex<[usize; device::MAX]> = Mutex::new([0; device::MAX]);
static RETURNED: Condvar = Condvar::new();

/// A channel of a device, or of none if channels are not simulated.
pub struct Channel(Option<u32>);

fn used() -> MutexGuard<'static, [usize; device::MAX]> {
    USED.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Blocks until a channel is free or `cancel` returns true.
pub fn take(device: u32, cancel: impl Fn() -> bool) -> Channel {
    let Some(channels) = config::get().channels else { return Channel(None) };
    let mut used = used();
    while used[device as usize] >= channels {
        if cancel() {
            return Channel(None);
        }
        used = match RETURNED.wait_timeout(used, Duration::from_millis(20)) {
            Ok((used, _)) => used,
            Err(poisoned) => poisoned.into_inner().0,
        };
    }
    used[device as usize] += 1;
    Channel(Some(device))
}

impl Drop for Channel {
    fn drop(&mut self) {
        if let Some(device) = self.0 {
            used()[device as usize] -= 1;
            RETURNED.notify_one();
        }
    }
}
