// SPDX-License-Identifier: MIT OR Apache-2.0

//! Stream memory operations: 32-bit and 64-bit values that a stream writes or waits for.
//!
//! # Safety
//!
//! The addresses belong to memory that was registered or allocated when the operation was queued.
//! Unregistering and freeing wait for the operation.

use crate::context_state::{ContextState, poll};
use crate::memory::{self, access};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Condition that ends a stream's wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    AtLeast,
    Equal,
    AnyOf,
    NotAll,
}

/// One operation of a batch.
#[derive(Clone, Copy, Debug)]
pub struct MemOp {
    pub address: usize,
    pub value: u64,
    pub wide: bool,
    /// The condition of a wait, `None` for a write.
    pub until: Option<Until>,
    /// Whether this is a barrier or a flush: no effect, because values are written in order.
    pub no_op: bool,
}

impl MemOp {
    fn load(&self) -> u64 {
        if self.wide {
            // SAFETY: see the module header; the address was checked to be a multiple of 8.
            unsafe { &*(self.address as *const AtomicU64) }.load(Ordering::Acquire)
        } else {
            // SAFETY: as above, with a multiple of 4.
            unsafe { &*(self.address as *const AtomicU32) }.load(Ordering::Acquire).into()
        }
    }

    fn store(&self) {
        // Release: a thread that reads this value also sees the stream's earlier writes.
        if self.wide {
            // SAFETY: see the module header; the address was checked to be a multiple of 8.
            unsafe { &*(self.address as *const AtomicU64) }.store(self.value, Ordering::Release);
        } else {
            // SAFETY: as above, with a multiple of 4.
            unsafe { &*(self.address as *const AtomicU32) }.store(self.value as u32, Ordering::Release);
        }
    }

    fn satisfied(&self, until: Until) -> bool {
        let (now, value) = (self.load(), self.value);
        match until {
            // Cyclic, as documented: the difference, as a signed number, is not negative.
            Until::AtLeast if self.wide => (now.wrapping_sub(value) as i64) >= 0,
            Until::AtLeast => ((now as u32).wrapping_sub(value as u32) as i32) >= 0,
            Until::Equal if self.wide => now == value,
            Until::Equal => now as u32 == value as u32,
            Until::AnyOf => now & value != 0,
            Until::NotAll if self.wide => !(now | value) != 0,
            Until::NotAll => !(now as u32 | value as u32) != 0,
        }
    }

    /// Executes the operation, waiting if necessary. Returns false if the device has no access to
    /// the address or the wait was canceled.
    pub fn run(&self, state: &ContextState, cancel: impl Fn() -> bool) -> bool {
        if self.no_op {
            return true;
        }
        let size = if self.wide { 8 } else { 4 };
        if !memory::allowed(state.device, self.address, size, self.until.is_none()) {
            return false;
        }
        match self.until {
            None => {
                access::releases(self.address, Some(self.value));
                self.store();
                true
            }
            Some(until) => {
                let ended = poll(|| self.satisfied(until), cancel);
                if ended {
                    access::acquired(self.address, (until == Until::AtLeast).then_some(self.value));
                }
                ended
            }
        }
    }

    /// Executes a write, or checks a wait without blocking. Used by the post-mortem helper.
    pub fn run_once(&self) -> bool {
        match self.until {
            _ if self.no_op => true,
            Some(until) => self.satisfied(until),
            None => {
                self.store();
                true
            }
        }
    }
}
