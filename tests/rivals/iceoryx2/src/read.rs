// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reader process.
//!
//! # Safety
//!
//! The bytes of a stamp are read from a received sample, whose exporter has written them.

use crate::{
    Run,
    service::{Byte, Services},
    stamp::{SIZE, Stamp},
    watch::{Report, Watch},
};
use anyhow::{Context, Result, bail};
use std::{
    io::{self, Read},
    slice,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

/// Reads frames: prints "joined" at the first one and the measurements at the end, and exits when
/// stdin closes.
pub fn read(run: &Run) -> Result<()> {
    let (watch, reports) = Watch::new(run.case.rate > 0);
    let ended = Arc::new(AtomicBool::new(false));
    let reader = {
        let (run, ended) = (run.clone(), ended.clone());
        thread::spawn(move || receive(&run, watch, &ended))
    };
    // The reports end if the thread fails.
    for report in reports {
        match report {
            Report::Joined => crate::say(&"joined")?,
            Report::Received(received) => {
                crate::say(&received)?;
                break;
            }
        }
    }
    // Frames are read until stdin closes, so that the other readers receive the end too.
    io::stdin().read_to_end(&mut Vec::new())?;
    ended.store(true, Ordering::Relaxed);
    match reader.join() {
        Ok(read) => read,
        Err(_) => bail!("the reader's thread panicked"),
    }
}

fn receive(run: &Run, mut watch: Watch, ended: &AtomicBool) -> Result<()> {
    let services = Services::open(run)?;
    let listener = services.wake.listener_builder().create().context("no listener")?;
    let subscriber = services.frames.subscriber_builder().create().context("no subscriber")?;
    while !ended.load(Ordering::Relaxed) {
        while let Some(sample) = subscriber.receive().context("cannot receive")? {
            watch.see(stamp(&sample), bytes(&sample));
        }
        listener.timed_wait(|_| (), Duration::from_millis(100)).context("cannot wait")?;
    }
    Ok(())
}

fn stamp(frame: &[Byte]) -> Option<Stamp> {
    Stamp::decode(bytes(frame))
}

/// Returns the bytes of the stamp.
#[expect(unsafe_code, reason = "see # Safety above")]
fn bytes(frame: &[Byte]) -> &[u8] {
    let stamp = frame.get(..SIZE).unwrap_or_default();
    // SAFETY: these bytes are those of the slice, and the exporter has written the first SIZE bytes
    // of each frame.
    unsafe { slice::from_raw_parts(stamp.as_ptr().cast(), stamp.len()) }
}
