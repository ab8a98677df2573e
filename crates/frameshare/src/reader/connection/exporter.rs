// SPDX-License-Identifier: MIT OR Apache-2.0

//! The exporter as a reader sees it: its process, and how its connection ended.

use crate::{
    reader::error::ReadError,
    sys::{Peer, Socket, Timeout, is_ready, wait},
};
use frameshare_protocol::{Sequence, message::Reason};
use rustix::event::{PollFd, PollFlags};
use std::{mem, os::fd::OwnedFd, time::Duration};

/// The exporter of one connection.
#[derive(Debug)]
pub(super) struct RemoteExporter {
    peer: Peer,
    /// Found out once: readers ask for each frame, and the answer takes a system call.
    is_own_or_root: bool,
    state: State,
}

/// The end of a connection.
#[derive(Clone, Debug)]
pub(super) enum End {
    /// The exporter exited, or hung up without a close message.
    HungUp,
    /// A frame's ready fence missed its deadline.
    Stalled {
        /// The frame.
        sequence: Sequence,
        /// The deadline.
        limit: Duration,
    },
    /// The close message.
    Closed(Reason, String),
}

#[derive(Debug)]
enum State {
    Connected,
    /// Frames from before the end may be left to deliver.
    Ended(End),
    /// The application has the error; nothing else is delivered.
    Reported(End),
}

impl RemoteExporter {
    pub fn new(peer: Peer) -> Self {
        Self { is_own_or_root: peer.is_own_or_root(), peer, state: State::Connected }
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

    /// Returns whether the connection has not ended.
    pub fn is_connected(&self) -> bool {
        matches!(self.state, State::Connected)
    }

    /// Records the end of the connection; the first end counts.
    pub fn end(&mut self, end: End) {
        if self.is_connected() {
            self.state = State::Ended(end);
        }
    }

    /// Returns the end of the connection, if it has ended.
    pub fn ended(&self) -> Option<&End> {
        match &self.state {
            State::Connected => None,
            State::Ended(end) | State::Reported(end) => Some(end),
        }
    }

    /// Returns whether the end was reported.
    pub fn is_end_reported(&self) -> bool {
        matches!(self.state, State::Reported(_))
    }

    /// Marks the end as reported. Returns true for the first report.
    pub fn mark_reported(&mut self) -> bool {
        match mem::replace(&mut self.state, State::Connected) {
            State::Ended(end) => {
                self.state = State::Reported(end);
                true
            }
            state => {
                self.state = state;
                false
            }
        }
    }
}

impl End {
    /// Returns whether the exporter sent a close message.
    pub fn is_closed(&self) -> bool {
        matches!(self, Self::Closed(..))
    }

    /// Returns the error for the application, with the number of torn and of undelivered frames.
    pub fn to_error(&self, torn: u64, lost: u64) -> ReadError {
        match self {
            Self::HungUp => ReadError::Gone { torn, lost },
            &Self::Stalled { sequence, limit } => ReadError::Stalled { sequence, limit, torn, lost },
            Self::Closed(Reason::Stopped, text) => ReadError::Stopped(text.clone()),
            Self::Closed(reason, text) => ReadError::CutOff { reason: *reason, text: text.clone() },
        }
    }
}
