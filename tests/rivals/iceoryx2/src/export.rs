// SPDX-License-Identifier: MIT OR Apache-2.0

//! Exporter process.
//!
//! # Safety
//!
//! A sample is sent after a promise that its bytes are initialized.

use crate::{
    Run,
    pace::Pace,
    service::{Byte, Services},
    stamp::SIZE,
};
use anyhow::{Context, Result, bail};
use iceoryx2::{
    port::{backpressure_strategy::BackpressureStrategy, notifier::Notifier, publisher::Publisher},
    prelude::ipc,
};
use std::{
    io::{self, BufRead},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

/// Runs the exporter: prints "ready", starts at "go", prints its measurements, and exits when stdin
/// closes.
pub fn export(run: &Run) -> Result<()> {
    let go = Arc::new(AtomicBool::new(false));
    let (done, exported) = mpsc::channel();
    let report = move |exported| {
        // If the receiver was dropped, this process is about to exit.
        let _ = done.send(exported);
    };
    let pace = Pace::new(go.clone(), run.case.rate, run.warm, run.measure, report).with_daemon(None);
    let ended = Arc::new(AtomicBool::new(false));
    let (ready, begun) = mpsc::channel();
    let sender = {
        let (run, ended) = (run.clone(), ended.clone());
        thread::spawn(move || send(&run, pace, &ready, &ended))
    };
    // Fails if the thread has ended; its error is returned by the join below.
    if begun.recv().is_ok() {
        crate::say(&"ready")?;
    }
    let mut commands = io::stdin().lock().lines();
    commands.next().context("stdin closed before the go line")??;
    go.store(true, Ordering::Relaxed);
    loop {
        match exported.recv_timeout(Duration::from_millis(100)) {
            Ok(exported) => break crate::say(&exported)?,
            Err(_) if sender.is_finished() => break,
            Err(_) => {}
        }
    }
    // Slow frames continue until every reader has received the end.
    let _ = commands.next();
    ended.store(true, Ordering::Relaxed);
    match sender.join() {
        Ok(sent) => sent,
        Err(_) => bail!("the exporter's thread panicked"),
    }
}

fn send(run: &Run, mut pace: Pace, ready: &mpsc::Sender<()>, ended: &AtomicBool) -> Result<()> {
    let services = Services::open(run)?;
    let publisher = services
        .frames
        .publisher_builder()
        .initial_max_slice_len(run.bytes())
        .backpressure_strategy(BackpressureStrategy::RetryUntilDelivered)
        .create()
        .context("no publisher")?;
    let notifier = services.wake.notifier_builder().create().context("no notifier")?;
    ready.send(()).context("the main thread has ended")?;
    while !ended.load(Ordering::Relaxed) {
        publish(&publisher, &notifier, run.bytes(), &mut pace)?;
    }
    Ok(())
}

#[expect(unsafe_code, reason = "see # Safety above")]
fn publish(
    publisher: &Publisher<ipc::Service, [Byte], ()>,
    notifier: &Notifier<ipc::Service>,
    bytes: usize,
    pace: &mut Pace,
) -> Result<()> {
    // As with frameshare: the slot first, then the wait for the frame's time.
    let mut sample = publisher.loan_slice_uninit(bytes).context("no sample")?;
    let stamp = pace.stamp().encode();
    for (to, from) in sample.payload_mut()[..SIZE].iter_mut().zip(stamp) {
        to.write(Byte::new(from));
    }
    // SAFETY: elements are MaybeUninit<u8>, which are initialized whatever their memory contains.
    let sample = unsafe { sample.assume_init() };
    sample.send().context("cannot send")?;
    notifier.notify().context("cannot wake readers")?;
    Ok(())
}
