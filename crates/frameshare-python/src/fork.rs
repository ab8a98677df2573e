// SPDX-License-Identifier: MIT OR Apache-2.0

//! Objects after fork(2): the child neither uses nor drops those of its parent.
//!
//! Parent and child share the pages of a connection and its sockets. A child that dropped a frame
//! would end the parent's lease, and one that dropped a stream would close the parent's.

use crate::error::Error;
use frameshare::process_number;
use pyo3::{PyErr, PyResult};
use std::{fmt::Display, mem, ops::Deref, process, sync::Arc};

/// The process that made an object.
#[derive(Clone, Copy, Debug)]
pub struct Process {
    number: u64,
    pid: u32,
}

impl Process {
    /// The present process.
    pub fn current() -> Self {
        Self { number: process_number(), pid: process::id() }
    }

    /// Returns whether it is the present process.
    pub fn is_current(self) -> bool {
        self.number == process_number()
    }

    /// Checks that it is the present process, before a lock is taken that another thread of the
    /// parent may have held at the fork.
    ///
    /// # Errors
    /// `Error` in a child.
    pub fn check(self, object: impl Display) -> PyResult<()> {
        if self.is_current() { Ok(()) } else { Err(self.refusal(&object)) }
    }

    fn refusal(self, object: &dyn Display) -> PyErr {
        Error::new_err(format!(
            "{object} belongs to process {}, and this is its forked child {}: open the stream again in the child \
             (copy.copy of a Stream does)",
            self.pid,
            process::id()
        ))
    }
}

/// A value that only the process that made it drops.
#[derive(Debug)]
pub struct OfProcess<T> {
    /// In a child, a clone is leaked, so that the value is never dropped.
    value: Arc<T>,
    process: Process,
}

impl<T> OfProcess<T> {
    /// A value of the present process.
    pub fn new(value: T) -> Self {
        Self { value: Arc::new(value), process: Process::current() }
    }

    /// The value; `None` in a child.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        Arc::get_mut(&mut self.value).filter(|_| self.process.is_current())
    }
}

impl<T> Deref for OfProcess<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if !self.process.is_current() {
            mem::forget(Arc::clone(&self.value));
        }
    }
}
