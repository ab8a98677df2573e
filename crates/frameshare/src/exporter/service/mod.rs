// SPDX-License-Identifier: MIT OR Apache-2.0

//! Background work of an exporter: it admits readers, notices their ends, sends waiting messages,
//! reclaims. The service thread of the process does it (see [`service`](crate::service)).

mod connecting;
mod crowd;
mod handshake;
mod late_gpu;
mod links;
mod observers;
mod open;
mod pending;
mod serving;
#[cfg(test)]
pub mod stall;
#[cfg(test)]
mod tests;
mod unit_files;

pub use late_gpu::use_gpu;

use super::state::Shared;
use crate::{
    endpoint::Endpoint,
    service::{before_blocking, holds_baton},
    sys::Listener,
};
use open::Open;
use serving::Serving;
use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, channel},
    },
};

/// Handle of the background work.
#[derive(Debug)]
pub struct Service {
    stop: Arc<AtomicBool>,
    /// Gets the socket and the name when the stream is stopped.
    closed: Mutex<Receiver<Open>>,
    /// Disconnected at the end of the background work.
    ended: Mutex<Receiver<()>>,
}

impl Service {
    pub fn start(shared: &Arc<Shared>, endpoint: Endpoint, listener: Listener) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (closing, closed) = channel();
        let (ending, ended) = channel();
        let open = Open::new(listener, endpoint);
        shared.service.start(Serving::new(shared.clone(), open, stop.clone(), closing, ending))?;
        Ok(Self { stop, closed: Mutex::new(closed), ended: Mutex::new(ended) })
    }

    /// Closes the socket and releases the name, without waiting for peers. The background work
    /// continues while memory waits for readers to drop their imports.
    pub fn stop(&self, shared: &Shared) {
        let service = &shared.service;
        self.stop.store(true, Ordering::Release);
        service.wake();
        // A turn of this very stream may drop the exporter, with the user data of a frame. In a
        // forked child no thread serves the parent's streams.
        if service.runs_here() || service.is_of_parent() {
            return;
        }
        // The turn of another stream may, too.
        before_blocking();
        if holds_baton() {
            return;
        }
        // The file system may keep this thread waiting here, and no other stream.
        drop(self.closed.lock().unwrap_or_else(PoisonError::into_inner).recv());
        if !shared.lock().has_more_to_do() {
            // Nothing is ever sent: this returns when the other end is dropped.
            let _ = self.ended.lock().unwrap_or_else(PoisonError::into_inner).recv();
        }
        service.wait_for_threads();
    }
}
