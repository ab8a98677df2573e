// SPDX-License-Identifier: MIT OR Apache-2.0

//! Pending connections: their Hello has not arrived yet.
//!
//! A reader sends its Hello right after connecting, so pending connections are few unless a peer is
//! hostile. They are bounded per process, per user and in all. Beyond a bound the oldest one is
//! closed, never a newer one: an honest reader's Hello is about to arrive.

use crate::sys::{Peer, Socket, file_limit};
use std::time::{Duration, Instant};

/// Maximum time from the connection to the Hello.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of pending connections of one process.
const MAX_OF_PROCESS: usize = 16;
/// Bounds of the maximum number of pending connections in all. Between them it is an eighth of the
/// files that this process may open: a connection takes two.
const MAX_OF_ALL: (usize, usize) = (16, 256);

/// A pending connection.
#[derive(Debug)]
pub struct Connection {
    pub socket: Socket,
    pub peer: Peer,
    pub until: Instant,
}

impl Connection {
    pub fn new(socket: Socket, peer: Peer) -> Self {
        Self { socket, peer, until: Instant::now() + HELLO_TIMEOUT }
    }

    /// Returns whether both are of one process. A process with a pidfd lives as long as its pid
    /// identifies it.
    fn is_of_process(&self, other: &Peer) -> bool {
        let (ours, theirs) = (&self.peer, other);
        ours.gone.is_some() && theirs.gone.is_some() && ours.pid != 0 && ours.pid == theirs.pid
    }
}

/// The pending connections, oldest first.
#[derive(Debug)]
pub struct PendingConnections {
    connections: Vec<Connection>,
    max_of_all: usize,
}

impl PendingConnections {
    pub fn new() -> Self {
        let files = file_limit().map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        Self { connections: Vec::new(), max_of_all: (files / 8).clamp(MAX_OF_ALL.0, MAX_OF_ALL.1) }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.connections.iter()
    }

    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Takes all connections out.
    pub fn take(&mut self) -> Vec<Connection> {
        std::mem::take(&mut self.connections)
    }

    /// Adds a connection, and returns the one to close for it, if any: its Hello may have arrived
    /// meanwhile.
    pub fn add(&mut self, connection: Connection) -> Option<Connection> {
        self.connections.push(connection);
        let newest = &self.connections.last()?.peer;
        let of_process = |other: &Connection| other.is_of_process(newest);
        let of_user = |uid: u32| move |other: &Connection| other.peer.uid == uid;
        let has_process = newest.gone.is_some() && newest.pid != 0;
        // Without a pidfd, processes of one user cannot be told apart reliably.
        let max_of_user = if has_process { self.max_of_all / 2 } else { self.max_of_all / 8 };
        let oldest = if self.count(of_process) > MAX_OF_PROCESS {
            self.connections.iter().position(of_process)
        } else if self.count(of_user(newest.uid)) > max_of_user {
            self.connections.iter().position(of_user(newest.uid))
        } else if self.len() > self.max_of_all {
            let most = self.iter().map(|other| other.peer.uid).max_by_key(|uid| self.count(of_user(*uid)))?;
            self.connections.iter().position(of_user(most))
        } else {
            None
        };
        oldest.map(|index| self.connections.remove(index))
    }

    fn count(&self, is: impl Fn(&Connection) -> bool) -> usize {
        self.iter().filter(|other| is(other)).count()
    }
}
