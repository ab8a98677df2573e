// SPDX-License-Identifier: MIT OR Apache-2.0

//! Outgoing messages of one connection: sent in order, and queued while the reader does not receive
//! earlier ones.
//!
//! The waiting ones are bounded in messages, bytes and files, and so are descriptors in flight.

use super::packet::Packet;
use crate::exporter::system::{Attachment, Connection, Sent, System};
use frameshare_protocol::limits::MAX_BACKLOG;
use std::{
    collections::VecDeque,
    mem,
    time::{Duration, Instant},
};

/// Maximum number of descriptors in flight on a connection.
const MAX_IN_FLIGHT: usize = 16;
/// Maximum number of unreceived bytes of messages and payloads: two of the largest payloads.
pub(super) const MAX_BYTES: u64 = 128 << 20;
/// Maximum number of payload files that wait for a reader.
pub(super) const MAX_FILES: usize = 128;
/// The shortest and the longest pause between attempts to send after a shortage.
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(100);

/// The reason why messages were not sent.
#[derive(Debug)]
pub enum Unsent {
    /// The reader has left too much unreceived; the text names the limit.
    TooMuch(String),
    /// The connection has ended.
    HungUp(String),
}

/// The event that unblocks the first waiting message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    /// Room in the socket, which poll(2) reports.
    Room,
    /// Descriptors or memory, without a notification: the next attempt is due at this time, after
    /// this pause.
    Time(Instant, Duration),
}

/// Waiting messages, and accounts of sent ones.
#[derive(Debug)]
pub struct Outbox<S: System> {
    waiting: VecDeque<Packet<S::Attachment>>,
    /// Number of packets sent so far.
    sent: u64,
    bytes: u64,
    files: usize,
    awaited: Option<Awaited>,
    connection: S::Connection,
    /// Payload bytes that were sent since the reader was last known to have received everything.
    bytes_in_flight: u64,
    /// Memory that sent messages referred to, to be dropped with no lock held.
    spent: Vec<S::Attachment>,
}

impl<S: System> Outbox<S> {
    /// The outbox of a connection.
    pub fn new(connection: S::Connection) -> Self {
        Self {
            waiting: VecDeque::new(),
            sent: 0,
            bytes: 0,
            files: 0,
            awaited: None,
            connection,
            bytes_in_flight: 0,
            spent: Vec::new(),
        }
    }

    /// The connection.
    pub fn connection(&self) -> &S::Connection {
        &self.connection
    }

    /// The same, to be asked.
    pub fn connection_mut(&mut self) -> &mut S::Connection {
        &mut self.connection
    }

    /// Returns whether no message waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Number of packets sent so far.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Number of waiting messages.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns whether poll(2) reports when to continue.
    pub fn awaits_room(&self) -> bool {
        self.awaited == Some(Awaited::Room)
    }

    /// Time of the next attempt, if poll(2) does not report it.
    pub fn retry_at(&self) -> Option<Instant> {
        match self.awaited {
            Some(Awaited::Time(at, _)) => Some(at),
            Some(Awaited::Room) | None => None,
        }
    }

    /// Number of payload files and bytes that wait for this reader, ordered by weight.
    pub fn weight(&self) -> (usize, u64) {
        (self.files, self.bytes)
    }

    /// Sends a message after the waiting ones.
    pub fn send(&mut self, packet: Packet<S::Attachment>) -> Result<(), Unsent> {
        self.bytes += packet.cost();
        self.files += packet.files();
        self.waiting.push_back(packet);
        self.flush()?;
        self.check()
    }

    /// Sends waiting messages until the socket is full or a limit is reached.
    pub fn flush(&mut self) -> Result<(), Unsent> {
        let pause = match self.awaited.take() {
            Some(Awaited::Time(_, pause)) => (pause * 2).min(LONGEST),
            Some(Awaited::Room) | None => SHORTEST,
        };
        let mut pause = pause;
        while let Some(packet) = self.waiting.front() {
            let count = packet.attachments().len();
            if !self.may_send(count) {
                self.retry_after(pause);
                break;
            }
            let Some(packet) = self.waiting.front() else { break };
            match self.connection.send(packet.bytes(), packet.attachments()) {
                Sent::Whole => {
                    self.sent += 1;
                    self.bytes_in_flight += packet.payload();
                    pause = SHORTEST;
                    self.pop();
                }
                Sent::Full => {
                    self.awaited = Some(Awaited::Room);
                    break;
                }
                Sent::Short => {
                    self.retry_after(pause);
                    break;
                }
                Sent::HungUp(why) => return Err(Unsent::HungUp(why)),
            }
        }
        Ok(())
    }

    /// Drops all waiting messages: the reader gets none of them.
    pub fn clear(&mut self) {
        while !self.waiting.is_empty() {
            self.pop();
        }
        self.awaited = None;
    }

    /// Drops all waiting messages but the last one.
    pub fn clear_before_last(&mut self) {
        while self.waiting.len() > 1 {
            self.pop();
        }
    }

    /// Returns whether sent messages referred to memory that is to be dropped.
    pub fn has_spent(&self) -> bool {
        !self.spent.is_empty()
    }

    /// Takes memory that sent messages referred to, to be dropped with no lock held.
    pub fn take_spent(&mut self) -> Vec<S::Attachment> {
        mem::take(&mut self.spent)
    }

    fn pop(&mut self) {
        let Some(packet) = self.waiting.pop_front() else { return };
        self.bytes -= packet.cost();
        self.files -= packet.files();
        self.spent.extend(packet.into_attachments().into_iter().filter(Attachment::frees_memory));
    }

    fn retry_after(&mut self, pause: Duration) {
        self.awaited = Some(Awaited::Time(S::now() + pause, pause));
    }

    fn check(&mut self) -> Result<(), Unsent> {
        check_waiting(self.waiting.len(), self.files)?;
        let unread = |outbox: &Self| outbox.bytes + outbox.bytes_in_flight;
        if unread(self) > MAX_BYTES && !self.has_received_all() && unread(self) > MAX_BYTES {
            return Err(Unsent::TooMuch(format!("{MAX_BYTES} bytes")));
        }
        Ok(())
    }

    /// Returns whether the limits allow a message with `count` descriptors to be sent at once.
    pub fn has_room(&mut self, count: usize) -> bool {
        self.waiting.is_empty() && self.may_send(count)
    }

    /// Returns whether `count` more descriptors may be in flight. A reader that has received
    /// everything gets a message in any case; the others share a quarter of the kernel's limit for
    /// this process's user.
    fn may_send(&mut self, count: usize) -> bool {
        if count == 0 || self.connection.in_flight() == 0 {
            return true;
        }
        let fits = |connection: &S::Connection| {
            connection.in_flight() + count <= MAX_IN_FLIGHT && connection.has_share(count)
        };
        fits(&self.connection) || self.has_received_all() || fits(&self.connection)
    }

    /// Asks the kernel whether the reader has received all that was sent.
    fn has_received_all(&mut self) -> bool {
        let all = self.connection.has_received_all();
        if all {
            self.bytes_in_flight = 0;
        }
        all
    }
}

/// Checks the numbers of messages and of payload files that wait for a reader.
pub(super) fn check_waiting(messages: usize, files: usize) -> Result<(), Unsent> {
    if messages > MAX_BACKLOG {
        return Err(Unsent::TooMuch(format!("{MAX_BACKLOG} messages")));
    }
    if files > MAX_FILES {
        return Err(Unsent::TooMuch(format!("{MAX_FILES} messages with files")));
    }
    Ok(())
}
