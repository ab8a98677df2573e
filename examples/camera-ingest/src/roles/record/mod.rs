// SPDX-License-Identifier: MIT OR Apache-2.0

//! Recorder: copies the encoded streams of cameras into segments, without decoding, with the
//! results of motion detection and the model beside them.
//!
//! One thread for each camera reads its streams and writes its files; no camera waits for another
//! one's disk. The main thread deletes old segments.

mod camera;
mod files;
mod recorder;
mod retention;
mod segment;
mod sidecar;
#[cfg(test)]
mod tests;
mod unit;

use super::Context;
use anyhow::Result;
use std::{
    thread,
    time::{Duration, SystemTime},
};

/// Time between two deletions of old segments.
const BETWEEN_DELETIONS: Duration = Duration::from_secs(5);

/// Records cameras until the role is stopped.
pub fn run(context: &Context) -> Result<()> {
    thread::scope(|scope| {
        let cameras = context.cameras.iter().filter(|camera| camera.record).map(|camera| {
            let recording = || camera::record(camera, context);
            thread::Builder::new().name(format!("record {}", camera.name)).spawn_scoped(scope, recording)
        });
        let threads = cameras.collect::<Result<Vec<_>, _>>();
        if threads.is_ok() {
            delete_old(context);
        }
        // Without all threads, none is left behind.
        context.stop.set();
        let results = threads?.into_iter().map(|thread| thread.join().expect("no recorder panics"));
        results.collect::<Result<Vec<_>>>()
    })?;
    Ok(())
}

/// Deletes old segments until the role is stopped.
fn delete_old(context: &Context) {
    let mut known = String::new();
    loop {
        match retention::apply(&context.config.recording, SystemTime::now()) {
            Ok(0) => known.clear(),
            Ok(deleted) => log::info!("deleted {deleted} old segments"),
            Err(error) => {
                let text = format!("cannot delete old segments: {error:#}");
                if text != known {
                    log::warn!("{text}");
                    known = text;
                }
            }
        }
        if !context.pause(BETWEEN_DELETIONS) {
            return;
        }
    }
}
