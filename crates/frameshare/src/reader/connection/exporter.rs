// SPDX-License-Identifier: MIT OR Apache-2.0

//! The exporter as a reader sees it: its process.

use crate::sys::{Peer, Socket, Timeout, is_ready, wait};
use rustix::event::{PollFd, PollFlags};
use std::{os::fd::OwnedFd, time::Duration};

/// The exporter of one connection.
#[derive(Debug)]
pub(super) struct RemoteExporter {
    peer: Peer,
    /// Found out once: readers ask for each frame, and the answer takes a system call.
    is_own_or_root: bool,
}

impl RemoteExporter {
    pub fn new(peer: Peer) -> Self {
        Self { is_own_or_root: peer.is_own_or_root(), peer }
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.peer.pid
    }

    /// Whether it runs as the reader's own user, or as root.
    pub fn is_own_or_root(&self) -> bool {
        self.is_own_or_root
    }

    /// Readable when its process has ended, if the kernel provides that.
    pub fn gone(&self) -> Option<&OwnedFd> {
        self.peer.gone.as_ref()
    }

    /// As [`RemoteExporter::gone`], and gives it away.
    pub fn take_gone(&mut self) -> Option<OwnedFd> {
        self.peer.gone.take()
    }

    /// Returns whether its process has ended, even if a forked child keeps its socket open.
    pub fn has_exited(&self) -> bool {
        let Some(gone) = &self.peer.gone else { return false };
        let mut fds = [PollFd::new(gone, PollFlags::IN)];
        wait(&mut fds, Timeout::after(Some(Duration::ZERO))).is_ok() && is_ready(&fds[0])
    }

    /// Returns whether it is dying: its driver releases its memory shortly before the kernel
    /// reports the process's end.
    pub fn is_exiting(&self, socket: &Socket) -> bool {
        const GRACE: Duration = Duration::from_millis(500);
        let mut fds = match &self.peer.gone {
            Some(gone) => [PollFd::new(gone, PollFlags::IN)],
            // Only the hang-up is known.
            None => [PollFd::new(socket, PollFlags::empty())],
        };
        wait(&mut fds, Timeout::after(Some(GRACE))).is_ok() && is_ready(&fds[0])
    }
}
