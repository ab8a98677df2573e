// SPDX-License-Identifier: MIT OR Apache-2.0

//! A file whose server does not answer, at every point where a reader receives a descriptor.

use super::{CAPS, SLOT, accept, memory};
use crate::Result;
use frameshare::Sequence;
use frameshare_protocol::message::{Payload, ToReader};
use frameshare_tests::raw::foreign::Trap;
use frameshare_tests::raw::{Listener, Offer, PATIENCE, RawExporter, encoded};
use std::os::fd::AsFd;

type Harm = fn(Trap, &Listener) -> Result<RawExporter>;

/// All attacks. They need `hostile fuse`.
pub const ATTACKS: [(&str, Harm); 5] = [
    ("fuse-as-queue", as_queue),
    ("fuse-as-wake", as_wake),
    ("fuse-as-slot", as_slot),
    ("fuse-as-dma-buf", as_dma_buf),
    ("fuse-as-payload", as_payload),
];

fn as_queue(fd: Trap, listener: &Listener) -> Result<RawExporter> {
    instead(0, fd, listener)
}

fn as_wake(fd: Trap, listener: &Listener) -> Result<RawExporter> {
    instead(3, fd, listener)
}

/// Sends it in place of a descriptor of the welcome.
fn instead(at: usize, fd: Trap, listener: &Listener) -> Result<RawExporter> {
    let offer = Offer::new(4, 2, 1)?;
    let channel = listener.accept(PATIENCE)?;
    channel.receive(PATIENCE)?;
    let mut fds: Vec<_> = offer.fds.iter().map(AsFd::as_fd).collect();
    fds[at] = fd.as_fd();
    let sent = channel.send(&encoded(ToReader::Welcome(offer.welcome.clone()).encode()), &fds);
    fd.sent();
    sent?;
    Ok(offer.on(channel))
}

fn as_slot(fd: Trap, listener: &Listener) -> Result<RawExporter> {
    let mut exporter = Offer::new(4, 2, 1)?.send(listener, PATIENCE)?;
    exporter.format(CAPS)?;
    let sent = exporter.slot_in(1, SLOT, fd.as_fd());
    fd.sent();
    sent?;
    exporter.publish(1, SLOT);
    Ok(exporter)
}

fn as_dma_buf(fd: Trap, listener: &Listener) -> Result<RawExporter> {
    let sent = memory::as_dma_buf(listener, true, fd.as_fd());
    fd.sent();
    sent
}

fn as_payload(fd: Trap, listener: &Listener) -> Result<RawExporter> {
    let mut exporter = accept(listener)?;
    let event =
        ToReader::Event { before: Sequence(2), kind: 4, sticky: false, payload: Payload::Sealed(100) };
    let sent = exporter.send_message(&event, Some(fd.as_fd()));
    fd.sent();
    sent?;
    exporter.publish(1, SLOT);
    Ok(exporter)
}
