// SPDX-License-Identifier: MIT OR Apache-2.0

//! Downloads that block a thread: the driver returns from a copy into host memory that is not
//! registered when the copy is done. A thread of the exporter's own makes them, one after the
//! other, from the first one on.
//!
//! # Safety
//!
//! Copies are started here, into slots and from slots that are held until they are done.
#![allow(unsafe_code)]

use crate::{
    exporter::slot::Slot,
    gpu::{DeferredDrop, poller::SHORTEST},
    memory::Address,
};
use frameshare_cuda::{Result, Status, context::Context, event::Event, stream::Stream};
use std::{
    io,
    sync::{
        Arc, OnceLock,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

/// The end of a copy, once it is done. The copy is not begun if nothing else holds it.
pub type Outcome = Arc<OnceLock<Result<()>>>;

/// A copy of the first `size` bytes from `offset` on.
#[derive(Debug)]
pub struct Copy {
    /// Behind the work that writes the source.
    pub written: Arc<Event>,
    pub from: Slot,
    pub offset: u64,
    pub size: usize,
    pub to: Slot,
}

enum Order {
    Copy(Copy, Outcome),
    /// The last one. The thread and its resources count as dropped, and not yet freed.
    End {
        _dropped: DeferredDrop,
    },
}

/// The thread. It ends when this is dropped, after the copy under way.
#[derive(Debug)]
pub struct Copier(Sender<Order>);

impl Copier {
    /// Starts the thread.
    ///
    /// # Errors
    /// Those of the system, which may grant no thread.
    pub fn start(gpu: &Arc<Context>) -> io::Result<Self> {
        let (sender, orders) = channel();
        let gpu = gpu.clone();
        thread::Builder::new().name("frameshare-copy".into()).spawn(move || run(gpu, &orders))?;
        Ok(Self(sender))
    }

    /// Makes a copy, after those before.
    pub fn copy(&self, copy: Copy) -> Outcome {
        let outcome = Outcome::default();
        // The thread receives until this is dropped.
        let _ = self.0.send(Order::Copy(copy, outcome.clone()));
        outcome
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        let _ = self.0.send(Order::End { _dropped: DeferredDrop::new() });
    }
}

fn run(gpu: Arc<Context>, orders: &Receiver<Order>) {
    let mut stream = None;
    let end = loop {
        match orders.recv() {
            Ok(Order::Copy(copy, outcome)) => {
                let Some(done) = make(&copy, &outcome, &gpu, &mut stream) else { continue };
                // The slots are free as soon as the copy is known to be done.
                drop(copy);
                let _ = outcome.set(done);
            }
            end => break end,
        }
    };
    drop((stream, gpu));
    drop(end);
}

/// Makes a copy when the source is written; `None` if nothing needs it any more.
fn make(
    copy: &Copy,
    outcome: &Outcome,
    gpu: &Arc<Context>,
    stream: &mut Option<Stream>,
) -> Option<Result<()>> {
    loop {
        match copy.written.query() {
            _ if Arc::strong_count(outcome) == 1 => return None,
            Ok(Status::Ready) => break,
            // The copy itself could wait with locks of the driver held.
            Ok(Status::Pending) => thread::sleep(SHORTEST),
            Err(error) => return Some(Err(error)),
        }
    }
    let copied = match stream {
        Some(stream) => copy.make_on(stream),
        None => Stream::new(gpu).and_then(|new| copy.make_on(stream.insert(new))),
    };
    Some(copied)
}

impl Copy {
    /// Queues the copy on a stream. The caller holds both slots until it is done.
    pub fn queue_on(&self, stream: &Stream) -> Result<()> {
        let (Address::Device(source), Some(target)) = (self.from.address(), self.to.as_ptr()) else {
            return Ok(());
        };
        // SAFETY: the range lies inside its slot and fits into the other; both are held until the
        // copy is done.
        unsafe { stream.download(target.as_ptr(), source + self.offset, self.size) }
    }

    /// Copies, and waits for the end.
    fn make_on(&self, stream: &Stream) -> Result<()> {
        self.queue_on(stream)?;
        stream.synchronize()
    }
}
