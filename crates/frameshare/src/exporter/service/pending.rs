// SPDX-License-Identifier: MIT OR Apache-2.0

//! Pending connections: their Hello has not arrived yet.
//!
//! A reader sends its Hello right after connecting, so pending connections are few unless a peer is
//! hostile. They are bounded per process, per user and in all. Beyond a bound the oldest one is
//! closed, never a newer one: an honest reader's Hello is about to arrive.

use super::crowd;
use crate::sys::{Peer, Socket};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Maximum time from the connection to the Hello.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(2);
/// Bounds of the maximum number of pending connections in all.
const MAX_OF_ALL: (usize, usize) = (16, 256);

/// A pending connection.
#[derive(Debug)]
pub struct Connection {
    pub socket: Arc<Socket>,
    pub peer: Peer,
    pub until: Instant,
    /// Unique among the pending connections of one exporter; 0 until it is added to them.
    pub id: u64,
}

impl Connection {
    pub fn new(socket: Socket, peer: Peer) -> Self {
        Self { socket: Arc::new(socket), peer, until: Instant::now() + HELLO_TIMEOUT, id: 0 }
    }
}

/// The pending connections, oldest first.
#[derive(Debug)]
pub struct PendingConnections {
    connections: Vec<Connection>,
    last_id: u64,
    max_of_all: usize,
}

impl PendingConnections {
    pub fn new() -> Self {
        Self { connections: Vec::new(), last_id: 0, max_of_all: crowd::max_of_all(MAX_OF_ALL) }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.connections.iter()
    }

    /// Drops all connections.
    pub fn clear(&mut self) {
        self.connections.clear();
    }

    /// Takes out those of the connections `ready` and those whose time is over.
    pub fn take_ready(&mut self, ready: &[u64]) -> Vec<Connection> {
        let now = Instant::now();
        let is_ready =
            |connection: &mut Connection| ready.contains(&connection.id) || connection.until <= now;
        self.connections.extract_if(.., is_ready).collect()
    }

    /// Adds a connection, and returns the one to close for it, if any: its Hello may have arrived
    /// meanwhile.
    pub fn add(&mut self, connection: Connection) -> Option<Connection> {
        self.last_id += 1;
        self.connections.push(Connection { id: self.last_id, ..connection });
        let peers: Vec<&Peer> = self.iter().map(|connection| &connection.peer).collect();
        let oldest = crowd::surplus(&peers, self.max_of_all);
        oldest.map(|index| self.connections.remove(index))
    }
}
