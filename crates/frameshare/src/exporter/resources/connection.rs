// SPDX-License-Identifier: MIT OR Apache-2.0

//! The sockets that connect the exporter with one reader.

use super::{
    Liveness,
    attachment::{Attachment, is_shortage},
    in_flight::{self, InFlight},
};
use crate::sys::{Peer, Sleepers, Socket, Wake, WakeGroup, file_limit};
use frameshare_core::exporter::system::{self as core, Sent};
use frameshare_queue::Sleeper;
use std::{io, os::fd::OwnedFd, sync::Arc, time::Instant};

/// Owns the sockets of one reader, what it sleeps on, and what shows the end of its process. It
/// decides nothing. Dropping it shuts the connection down.
#[derive(Debug)]
pub struct Connection {
    socket: Arc<Socket>,
    in_flight: InFlight,
    wake: Arc<Wake>,
    /// The futex of the readers of this user, if this reader may sleep on it.
    group: Option<Arc<WakeGroup>>,
    peer: Peer,
    /// A pidfd: readable when the process has ended.
    gone: Option<Arc<OwnedFd>>,
    /// Set if `gone` is not.
    liveness: Option<Liveness>,
}

impl Connection {
    /// The connection to a reader that sleeps on `wake`, or on the futex of `group`. A pidfd of the
    /// peer, or else its record lock, shows the end of its process.
    pub fn new(
        socket: Arc<Socket>,
        wake: Wake,
        group: Option<Arc<WakeGroup>>,
        mut peer: Peer,
        liveness: Option<Liveness>,
    ) -> Self {
        let (in_flight, gone) = (InFlight::new(socket.clone(), peer.uid), peer.gone.take().map(Arc::new));
        Self { socket, in_flight, wake: Arc::new(wake), group, peer, gone, liveness }
    }

    pub fn socket(&self) -> &Arc<Socket> {
        &self.socket
    }

    /// The wake-up socket.
    pub fn wake(&self) -> &Arc<Wake> {
        &self.wake
    }

    /// The reader's process, without its pidfd.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// A pidfd, readable when the process has ended, if the kernel offers one.
    pub fn pidfd(&self) -> Option<&Arc<OwnedFd>> {
        self.gone.as_ref()
    }
}

impl core::Connection for Connection {
    type Attachment = Attachment;
    type Sleepers = Sleepers;

    fn send(&mut self, message: &[u8], attachments: &[Attachment]) -> Sent {
        let fds: Vec<_> = attachments.iter().filter_map(Attachment::fd).collect();
        match self.in_flight.send(message, &fds) {
            Ok(()) => Sent::Whole,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Sent::Full,
            Err(error) if is_shortage(&error) => Sent::Short,
            Err(error) => Sent::HungUp(error.to_string()),
        }
    }

    fn shut_down(&self) {
        self.socket.shut_down();
    }

    fn in_flight(&self) -> usize {
        self.in_flight.count()
    }

    fn has_received_all(&mut self) -> bool {
        self.in_flight.check()
    }

    /// The connections of a process share a quarter of the kernel's limit for its user.
    fn has_share(&self, descriptors: usize) -> bool {
        let share = file_limit().map_or(usize::MAX, |limit| usize::try_from(limit / 4).unwrap_or(usize::MAX));
        in_flight::total() + descriptors <= share
    }

    fn add_to(&self, sleepers: &mut Sleepers, sleeper: Option<Sleeper>) {
        match &self.group {
            Some(group) if sleeper == Some(Sleeper::Futex) => sleepers.add_group(group),
            // A reader that does not sleep may be polling its wake-up socket.
            _ => sleepers.add(&self.wake),
        }
    }

    fn reports_exit(&self) -> bool {
        self.gone.is_some()
    }

    fn check_at(&self) -> Option<Instant> {
        self.liveness.as_ref().map(Liveness::next)
    }

    fn has_died(&mut self) -> bool {
        self.liveness.as_mut().is_some_and(Liveness::is_over)
    }
}
