//! The sockets that the two wake each other by.

use super::{Fate, cut_off, take};
use crate::Result;
use frameshare::Policy;
use frameshare_tests::raw::{RawReader, hello};
use rustix::{
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    net::{SendFlags, Shutdown, send, shutdown},
};
use std::{path::Path, thread, time::Duration};

/// One that the exporter has to wait for: it is lossless, and holds all that it may.
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

/// Rings as much as the socket takes, takes nothing of what the exporter rings, and is soon too slow.
pub fn fill(path: &Path) -> Result<Fate> {
    let reader = lossless(path)?;
    for _ in 0..50 {
        fill_up(&reader);
        thread::sleep(Duration::from_millis(1));
    }
    Ok(Fate::Left)
}

/// Whom nobody can ring is not waited for.
pub fn close(path: &Path) -> Result<Fate> {
    let mut reader = lossless(path)?;
    drop(reader.fds.pop());
    cut_off(&reader)?;
    Ok(Fate::Left)
}

/// A socket that is half closed is readable for ever.
pub fn half_close(path: &Path) -> Result<Fate> {
    let reader = lossless(path)?;
    shutdown(&reader.fds[3], Shutdown::Write)?;
    cut_off(&reader)?;
    Ok(Fate::Left)
}

/// Clears O_NONBLOCK on all that is shared, and then fills it.
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
