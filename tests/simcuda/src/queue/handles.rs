// SPDX-License-Identifier: MIT OR Apache-2.0

//! Handles of the streams that a program created.

use super::Stream;
use crate::handles::Handles;
use std::collections::HashMap;
use std::sync::{Arc, RwLock, RwLockWriteGuard};

static HANDLES: Handles = Handles::new();
static STREAMS: RwLock<Option<HashMap<usize, Arc<Stream>>>> = RwLock::new(None);

fn write() -> RwLockWriteGuard<'static, Option<HashMap<usize, Arc<Stream>>>> {
    STREAMS.write().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Returns the handle of a stream that is about to be created.
pub fn take() -> usize {
    HANDLES.take()
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
    write().get_or_insert_default().remove(&handle)
}

/// Makes the handle of a removed stream available for the next stream.
pub fn release(handle: usize) {
    HANDLES.release(handle);
}
