// SPDX-License-Identifier: MIT OR Apache-2.0

//! Another user of a peer's context: a thread that captures a stream of it into graphs, one after
//! the other.
//!
//! # Safety
//! This file fills scratch memory that the thread owns.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Result, anyhow};
use frameshare_cuda::capture;
use frameshare_cuda::context::Context;
use frameshare_cuda::memory::vmm;
use frameshare_cuda::stream::Stream;
use frameshare_gpu_harness::graph;

use crate::job::{CaptureLoop, Captured};

/// Duration of a capture, and of the pause between two.
const DURATION: Duration = Duration::from_millis(2);

/// The thread, which runs until this object is dropped or ended.
pub struct Graphs {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Captured>>>,
}

impl Graphs {
    /// Starts the thread.
    pub fn start(context: &Arc<Context>, job: CaptureLoop) -> Result<Graphs> {
        let stream = match job.blocking {
            true => graph::blocking_stream(context).map_err(|error| anyhow!(error))?,
            false => Stream::new(context)?,
        };
        let scratch = vmm::Allocation::new(context, 2 << 20)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || run(&stream, &scratch, &job, &stopped));
        Ok(Graphs { stop, thread: Some(thread) })
    }

    /// Ends the thread and returns its counts.
    pub fn end(mut self) -> Result<Captured> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("ended once");
        thread.join().map_err(|_| anyhow!("the capturing thread panicked"))?
    }
}

impl Drop for Graphs {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn run(
    stream: &Stream,
    scratch: &vmm::Allocation,
    job: &CaptureLoop,
    stopped: &AtomicBool,
) -> Result<Captured> {
    let mut captured = Captured::default();
    while !stopped.load(Ordering::Relaxed) {
        let announced = job.announced.then(capture::announce);
        graph::begin(stream, job.mode).map_err(|error| anyhow!(error))?;
        for _ in 0..4 {
            // SAFETY: the thread owns the memory, and no graph is launched. An invalidated capture
            // refuses the call.
            let _ = unsafe { stream.fill(scratch.ptr(), 1, scratch.size()) };
            thread::sleep(DURATION / 4);
        }
        captured.graphs += 1;
        match graph::end(stream) {
            Ok(()) => {}
            Err(error) if error.contains("901") => captured.broken += 1,
            Err(error) => return Err(anyhow!(error)),
        }
        drop(announced);
        thread::sleep(DURATION);
    }
    Ok(captured)
}
