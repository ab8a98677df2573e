// SPDX-License-Identifier: MIT OR Apache-2.0

//! Attacks by the queue page, the claims page and the wake socket.

use super::{AFTERWARDS, CAPS, SLOT, accept};
use crate::{Result, scribble};
use frameshare::{EntryIndex, Sequence};
use frameshare_protocol::page::{Claim, ClaimState, claim_at, claims_size, queue, queue_size};
use frameshare_tests::raw::{Listener, Offer, PATIENCE, Page, RawExporter};
use rustix::net::{SendFlags, Shutdown, send, shutdown};
use std::{
    process::Child,
    sync::atomic::Ordering::Relaxed,
    thread,
    time::{Duration, Instant},
};

/// The frame's descriptor changes between any two loads of it.
pub fn flicker(listener: &Listener) -> Result<RawExporter> {
    let exporter = accept(listener)?;
    exporter.queue[queue::HEAD].store(u64::MAX, Relaxed);
    let end = Instant::now() + Duration::from_secs(3);
    let mut sequence = 10;
    while Instant::now() < end {
        for _ in 0..100_000 {
            sequence += 1;
            let claim = Claim { sequence: Sequence(sequence), state: ClaimState::Published };
            exporter.claims[claim_at(EntryIndex(0))].store(claim.encode(), Relaxed);
        }
        exporter.wake_reader();
        if exporter.channel.hangs_up(Duration::ZERO) {
            break;
        }
    }
    Ok(exporter)
}

/// Publishes while another process writes all over a page.
fn publish(listener: &Listener, offer: Offer, mut child: Child) -> Result<RawExporter> {
    let mut exporter = offer.send(listener, PATIENCE)?;
    exporter.format(CAPS)?;
    exporter.slot(1, SLOT)?;
    while child.try_wait()?.is_none() {
        exporter.publish(1, SLOT);
        thread::sleep(Duration::from_micros(200));
    }
    Ok(exporter)
}

pub fn claims_scribbled(listener: &Listener) -> Result<RawExporter> {
    let offer = Offer::new(4, 2, 1)?;
    let child = scribble::start(&offer.fds[1], claims_size(4), Duration::from_millis(500))?;
    publish(listener, offer, child)
}

/// The other process maps the queue before it is sealed, since it could not afterwards.
pub fn queue_scribbled(listener: &Listener) -> Result<RawExporter> {
    let offer = Offer::unsealed(4, 2, 1)?;
    let page = Page::writable(&offer.fds[0], queue_size(4))?;
    let words = || Vec::from_iter(page.iter().map(|word| word.load(Relaxed)));
    let before = words();
    let child = scribble::start(&offer.fds[0], queue_size(4), Duration::from_millis(700))?;
    let end = Instant::now() + PATIENCE;
    while words() == before {
        if Instant::now() > end {
            return Err("nothing scribbles".into());
        }
        thread::sleep(Duration::from_millis(1));
    }
    offer.seal()?;
    publish(listener, offer, child)
}

pub fn wake_closed(listener: &Listener) -> Result<RawExporter> {
    let mut exporter = accept(listener)?;
    exporter.wake = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?;
    Ok(exporter)
}

/// The socket stays readable.
pub fn wake_half_closed(listener: &Listener) -> Result<RawExporter> {
    let exporter = accept(listener)?;
    shutdown(&exporter.wake, Shutdown::Write)?;
    Ok(exporter)
}

pub fn wake_flood(listener: &Listener) -> Result<RawExporter> {
    let exporter = accept(listener)?;
    let end = Instant::now() + AFTERWARDS;
    while Instant::now() < end {
        let _ = send(&exporter.wake, &[1; 4096], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
    Ok(exporter)
}
