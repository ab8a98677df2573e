// SPDX-License-Identifier: MIT OR Apache-2.0

//! Descriptors that block close, fstat or poll, at every point where a reader receives one.

use super::{CAPS, SLOT, accept};
use crate::Result;
use frameshare::{Reason, Sequence};
use frameshare_protocol::message::{Payload, ToReader};
use frameshare_tests::raw::{
    Listener, Offer, PATIENCE, RawExporter, encoded,
    foreign::{self, Make, Trap},
};
use std::os::fd::AsFd;

const QUEUE: usize = 0;
const WAKE: usize = 3;

/// Sends the descriptor in place of the expected one.
fn instead(at: usize, make: Make, listener: &Listener) -> Result<RawExporter> {
    let fd = make()?;
    let mut offer = Offer::new(4, 2, 1)?;
    // The offer closes a copy, which cannot be the last one: that close would block this thread.
    offer.fds[at] = fd.as_fd().try_clone_to_owned()?;
    let exporter = offer.send(listener, PATIENCE)?;
    fd.sent();
    Ok(exporter)
}

fn as_slot(make: Make, listener: &Listener) -> Result<RawExporter> {
    let fd = make()?;
    let mut exporter = Offer::new(4, 2, 1)?.send(listener, PATIENCE)?;
    exporter.format(CAPS)?;
    exporter.slot_in(1, SLOT, fd.as_fd())?;
    exporter.publish(1, SLOT);
    fd.sent();
    Ok(exporter)
}

fn as_payload(make: Make, listener: &Listener) -> Result<RawExporter> {
    let fd = make()?;
    let mut exporter = accept(listener)?;
    let payload = Payload::Sealed(100);
    exporter.send_message(
        &ToReader::Event { before: Sequence(2), kind: 4, sticky: false, payload },
        Some(fd.as_fd()),
    )?;
    exporter.publish(1, SLOT);
    fd.sent();
    Ok(exporter)
}

/// Sends a message that ends the stream, and behind it the descriptor, which stays unread.
fn unread(make: Make, listener: &Listener) -> Result<RawExporter> {
    let fd = make()?;
    let exporter = accept(listener)?;
    exporter.channel.send(&[0xaa; 77], &[])?;
    exporter.channel.send(&[1], &[fd.as_fd()])?;
    fd.sent();
    Ok(exporter)
}

fn over_wake(make: Make, listener: &Listener) -> Result<RawExporter> {
    let fd = make()?;
    let exporter = accept(listener)?;
    foreign::send(&exporter.wake, &[fd.as_fd()])?;
    fd.sent();
    Ok(exporter)
}

/// Sends a refusal, which is final, and more behind it.
pub fn refused_then_lingering(listener: &Listener) -> Result<RawExporter> {
    let (fd, mut offer) = (foreign::lingering()?, Offer::new(4, 2, 1)?);
    offer.fds.clear();
    let channel = listener.accept(PATIENCE)?;
    let refusal = ToReader::Refused { reason: Reason::NoCreditLeft, text: "no".into() };
    channel.send(&encoded(refusal.encode()), &[])?;
    channel.send(&[1], &[fd.as_fd()])?;
    fd.sent();
    Ok(offer.on(channel))
}

/// Sends as many as one packet carries.
pub fn many(listener: &Listener) -> Result<RawExporter> {
    let exporter = accept(listener)?;
    let many: Vec<_> = (0..250).map(|_| foreign::lingering()).collect::<std::io::Result<_>>()?;
    let fds: Vec<_> = many.iter().map(AsFd::as_fd).collect();
    exporter.channel.send(&[1], &fds)?;
    many.into_iter().for_each(Trap::sent);
    Ok(exporter)
}

/// Closing the socket takes an hour.
pub fn wake_lingers(listener: &Listener) -> Result<RawExporter> {
    instead(WAKE, foreign::lingering, listener)
}

pub fn wake_is_nested(listener: &Listener) -> Result<RawExporter> {
    instead(WAKE, foreign::nested, listener)
}

pub fn queue_lingers(listener: &Listener) -> Result<RawExporter> {
    instead(QUEUE, foreign::lingering, listener)
}

pub fn slot_lingers(listener: &Listener) -> Result<RawExporter> {
    as_slot(foreign::lingering, listener)
}

pub fn slot_is_nested(listener: &Listener) -> Result<RawExporter> {
    as_slot(foreign::nested, listener)
}

pub fn payload_lingers(listener: &Listener) -> Result<RawExporter> {
    as_payload(foreign::lingering, listener)
}

pub fn lingering_unread(listener: &Listener) -> Result<RawExporter> {
    unread(foreign::lingering, listener)
}

pub fn nested_unread(listener: &Listener) -> Result<RawExporter> {
    unread(foreign::nested, listener)
}

pub fn lingering_over_wake(listener: &Listener) -> Result<RawExporter> {
    over_wake(foreign::lingering, listener)
}

pub fn nested_over_wake(listener: &Listener) -> Result<RawExporter> {
    over_wake(foreign::nested, listener)
}
