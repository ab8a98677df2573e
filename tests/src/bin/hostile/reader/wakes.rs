// SPDX-License-Identifier: MIT OR Apache-2.0

//! Attacks by the wake sockets.

use super::{Fate, cut_off, take};
use crate::Result;
use frameshare::Policy;
use frameshare_tests::raw::{RawReader, hello};
use rustix::{
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    net::{SendFlags, Shutdown, send, shutdown},
};
use std::{path::Path, thread, time::Duration};

/// Joins as a lossless reader at its credit limit, which the exporter must wait for.
fn lossless(path: &Path) -> Result<RawReader> {
    let reader = RawReader::join(path, hello(Policy::Lossless, 2))?;
    take(&reader)?;
    take(&reader)?;
    Ok(reader)
}

fn fill_up(reader: &RawReader) {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    while send(&reader.fds[3], &[1; 4096], flags).is_ok() {}
}

/// Fills the wake socket, never drains its own, and exceeds the reader timeout.
pub fn fill(path: &Path) -> Result<Fate> {
    let reader = lossless(path)?;
    for _ in 0..50 {
        fill_up(&reader);
        thread::sleep(Duration::from_millis(1));
    }
    Ok(Fate::Left)
}

/// The exporter does not wait for a reader whose wake socket is closed.
pub fn close(path: &Path) -> Result<Fate> {
    let mut reader = lossless(path)?;
    drop(reader.fds.pop());
    cut_off(&reader)?;
    Ok(Fate::Left)
}

/// A half-closed socket stays readable.
pub fn half_close(path: &Path) -> Result<Fate> {
    let reader = lossless(path)?;
    shutdown(&reader.fds[3], Shutdown::Write)?;
    cut_off(&reader)?;
    Ok(Fate::Left)
}

/// Clears O_NONBLOCK on all shared sockets, then fills the wake socket.
pub fn blocking(path: &Path) -> Result<Fate> {
    let reader = lossless(path)?;
    for fd in &reader.fds {
        let flags = fcntl_getfl(fd)?;
        fcntl_setfl(fd, flags - OFlags::NONBLOCK)?;
    }
    let flags = fcntl_getfl(&reader.channel)?;
    fcntl_setfl(&reader.channel, flags - OFlags::NONBLOCK)?;
    fill_up(&reader);
    thread::sleep(Duration::from_millis(50));
    Ok(Fate::Left)
}
