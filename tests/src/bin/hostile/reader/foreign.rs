// SPDX-License-Identifier: MIT OR Apache-2.0

//! Descriptors that take long to close, over each socket of a reader.

use super::{Fate, cut_off, join, take};
use crate::Result;
use frameshare::{Policy, Reason};
use frameshare_protocol::message::ToReader;
use frameshare_tests::raw::{
    Channel, PATIENCE, RawReader,
    foreign::{self, Make, Trap},
    hello,
};
use std::{io, os::fd::AsFd, path::Path, thread, time::Duration};

/// The exporter waits for this reader when the descriptor arrives.
fn over_wake(path: &Path, make: Make) -> Result<Fate> {
    let fd = make()?;
    let reader = RawReader::join(path, hello(Policy::Lossless, 2))?;
    take(&reader)?;
    take(&reader)?;
    thread::sleep(Duration::from_millis(50));
    foreign::send(&reader.fds[3], &[fd.as_fd()])?;
    fd.sent();
    cut_off(&reader)
}

fn over_control(path: &Path, make: Make) -> Result<Fate> {
    let fd = make()?;
    let reader = join(path)?;
    reader.channel.send(&[1], &[fd.as_fd()])?;
    fd.sent();
    cut_off(&reader)
}

/// Sends a packet for which the exporter disconnects the reader, if there is one, and behind it the
/// descriptor. Returns false if the connection ended before.
pub fn behind(first: &[u8], channel: &Channel, fd: impl AsFd) -> Result<bool> {
    let before = if first.is_empty() { Ok(()) } else { channel.send(first, &[]) };
    match before.and_then(|()| channel.send(&[1], &[fd.as_fd()])) {
        Ok(()) => Ok(true),
        // The exporter closed the connection first.
        Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

/// The exporter closes the connection because of the packet before the descriptor, which stays
/// unread.
fn unread(path: &Path, make: Make) -> Result<Fate> {
    let fd = make()?;
    loop {
        let reader = join(path)?;
        if behind(&[0xaa; 999], &reader.channel, &fd)? {
            fd.sent();
            cut_off(&reader)?;
            return Ok(Fate::Left);
        }
    }
}

/// Sends the descriptor before the exporter reads from the connection, which it refuses. Users
/// without permission to read can do this too.
pub fn unread_before_hello(path: &Path) -> Result<Fate> {
    let fd = foreign::lingering()?;
    loop {
        let channel = Channel::connect(path)?;
        if behind(&[0xaa; 99], &channel, &fd)? {
            fd.sent();
            return if channel.hangs_up(PATIENCE) { Ok(Fate::Refused) } else { Err("it stays".into()) };
        }
    }
}

/// Opens one connection after the other, until the exporter refuses the user for its unclosed
/// descriptors.
pub fn in_many_connections(path: &Path) -> Result<Fate> {
    for _ in 0..2000 {
        let fd = foreign::lingering()?;
        let channel = Channel::connect(path)?;
        // The exporter may refuse the connection before it reads the descriptor.
        behind(&[], &channel, &fd)?;
        fd.sent();
        let answer = channel.receive(PATIENCE)?.map(|(packet, _)| ToReader::decode(&packet));
        if matches!(answer, Some(Ok(ToReader::Refused { reason: Reason::LimitExceeded, .. }))) {
            return Ok(Fate::Refused);
        }
    }
    Err("there is no end to it".into())
}

pub fn lingering_over_wake(path: &Path) -> Result<Fate> {
    over_wake(path, foreign::lingering)
}

pub fn nested_over_wake(path: &Path) -> Result<Fate> {
    over_wake(path, foreign::nested)
}

pub fn lingering_over_control(path: &Path) -> Result<Fate> {
    over_control(path, foreign::lingering)
}

pub fn nested_over_control(path: &Path) -> Result<Fate> {
    over_control(path, foreign::nested)
}

pub fn lingering_unread(path: &Path) -> Result<Fate> {
    unread(path, foreign::lingering)
}

pub fn nested_unread(path: &Path) -> Result<Fate> {
    unread(path, foreign::nested)
}

/// Sends 200 in one packet over the wake socket.
pub fn many_over_wake(path: &Path) -> Result<Fate> {
    // Created first, since the exporter evicts a reader that holds the stream up for too long.
    let many: Vec<_> = (0..200).map(|_| foreign::lingering()).collect::<std::io::Result<_>>()?;
    let reader = RawReader::join(path, hello(Policy::Lossless, 2))?;
    take(&reader)?;
    take(&reader)?;
    let fds: Vec<_> = many.iter().map(AsFd::as_fd).collect();
    foreign::send(&reader.fds[3], &fds)?;
    many.into_iter().for_each(Trap::sent);
    cut_off(&reader)
}
