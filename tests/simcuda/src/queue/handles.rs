// SPDX-License-Identifier: MIT OR Apache-2.0

//! Handles of the streams that a program created.

use super::Stream;
use crate::config;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockWriteGuard};

/// Handles of destroyed streams that are given out again, the last one first.
static FREE: Mutex<Vec<usize>> = Mutex::new(Vec::new());
static STREAMS: RwLock<Option<HashMap<usize, Arc<Stream>>>> = RwLock::new(None);

fn write() -> RwLockWriteGuard<'static, Option<HashMap<usize, Arc<Stream>>>> {
    STREAMS.write().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn free() -> MutexGuard<'static, Vec<usize>> {
    FREE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Returns a handle to be given out again, if there is one.
pub fn reuse() -> Option<usize> {
    free().pop()
}

/// Returns the stream with this handle.
pub fn find(handle: usize) -> Option<Arc<Stream>> {
    let streams = STREAMS.read().unwrap_or_else(|poisoned| poisoned.into_inner());
    streams.as_ref().and_then(|streams| streams.get(&handle)).cloned()
}

/// Adds a stream under its handle.
pub fn add(stream: Arc<Stream>) {
    write().get_or_insert_default().insert(stream.handle, stream);
}

/// Removes the handle of a stream, and returns the stream.
pub fn remove(handle: usize) -> Option<Arc<Stream>> {
    let removed = write().get_or_insert_default().remove(&handle);
    if removed.is_some() && config::get().reuses_streams {
        free().push(handle);
    }
    removed
}
