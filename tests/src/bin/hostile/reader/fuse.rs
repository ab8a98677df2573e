// SPDX-License-Identifier: MIT OR Apache-2.0

//! Files whose server does not answer, over each socket of a reader.

use super::{Attack, Fate, cut_off, foreign::behind, join, take};
use crate::{Result, fuse};
use frameshare::Policy;
use frameshare_tests::raw::{RawReader, foreign, hello};
use std::{os::fd::AsFd, path::Path};

/// All attacks. They need `hostile fuse`.
pub const ATTACKS: [Attack; 3] =
    [("fuse-over-wake", over_wake), ("fuse-over-control", over_control), ("fuse-unread", unread)];

/// The exporter waits for this reader when the descriptor arrives.
fn over_wake(path: &Path) -> Result<Fate> {
    let fd = fuse::file(path)?;
    let reader = RawReader::join(path, hello(Policy::Lossless, 2))?;
    take(&reader)?;
    take(&reader)?;
    let sent = foreign::send(&reader.fds[3], &[fd.as_fd()]);
    fd.sent();
    sent?;
    cut_off(&reader)
}

fn over_control(path: &Path) -> Result<Fate> {
    let fd = fuse::file(path)?;
    let reader = join(path)?;
    let sent = reader.channel.send(&[1], &[fd.as_fd()]);
    fd.sent();
    sent?;
    cut_off(&reader)
}

/// The exporter closes the connection because of the message before the descriptor.
fn unread(path: &Path) -> Result<Fate> {
    let fd = fuse::file(path)?;
    let sent = loop {
        let reader = join(path)?;
        match behind(&[0xaa; 999], &reader.channel, &fd) {
            Ok(true) => break Ok(reader),
            // The exporter closed the connection first.
            Ok(false) => {}
            Err(error) => break Err(error),
        }
    };
    fd.sent();
    cut_off(&sent?)
}
