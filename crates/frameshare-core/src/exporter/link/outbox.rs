// SPDX-License-Identifier: MIT OR Apache-2.0

//! Outgoing messages of one connection: sent in order, and queued while the reader does not receive
//! earlier ones.
//!
//! The waiting ones are bounded in messages, bytes and files, and so are descriptors in flight.

use super::packet::Packet;
use crate::exporter::system::{Attachment, Connection, Sent};
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
pub struct Outbox<C: Connection> {
    waiting: VecDeque<Packet<C::Attachment>>,
    /// Number of packets sent so far.
    sent: u64,
    bytes: u64,
    files: usize,
    awaited: Option<Awaited>,
    connection: C,
    /// Returns the present time, from which retries are planned.
    clock: fn() -> Instant,
    /// Payload bytes that were sent since the reader was last known to have received everything.
    bytes_in_flight: u64,
    /// Memory that sent messages referred to, to be dropped with no lock held.
    spent: Vec<C::Attachment>,
}

impl<C: Connection<Attachment: Attachment>> Outbox<C> {
    /// The outbox of a connection. Retries are planned by this clock.
    pub fn new(connection: C, clock: fn() -> Instant) -> Self {
        Self {
            waiting: VecDeque::new(),
            sent: 0,
            bytes: 0,
            files: 0,
            awaited: None,
            connection,
            clock,
            bytes_in_flight: 0,
            spent: Vec::new(),
        }
    }

    /// The connection.
    pub fn connection(&self) -> &C {
        &self.connection
    }

    /// The same, to be asked.
    pub fn connection_mut(&mut self) -> &mut C {
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
    pub fn send(&mut self, packet: Packet<C::Attachment>) -> Result<(), Unsent> {
        self.bytes += packet.cost();
        self.files += packet.files();
        self.waiting.push_back(packet);
        self.flush()?;
        self.check()
    }

    /// Sends waiting messages until the socket is full or a limit is reached.
    pub fn flush(&mut self) -> Result<(), Unsent> {
        let mut pause = match self.awaited.take() {
            Some(Awaited::Time(_, pause)) => (pause * 2).min(LONGEST),
            Some(Awaited::Room) | None => SHORTEST,
        };
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
    pub fn take_spent(&mut self) -> Vec<C::Attachment> {
        mem::take(&mut self.spent)
    }

    fn pop(&mut self) {
        let Some(packet) = self.waiting.pop_front() else { return };
        self.bytes -= packet.cost();
        self.files -= packet.files();
        self.spent.extend(packet.into_attachments().into_iter().filter(Attachment::frees_memory));
    }

    fn retry_after(&mut self, pause: Duration) {
        self.awaited = Some(Awaited::Time((self.clock)() + pause, pause));
    }

    fn check(&mut self) -> Result<(), Unsent> {
        check_waiting(self.waiting.len(), self.files)?;
        if self.bytes + self.bytes_in_flight > MAX_BYTES && !self.has_received_all() {
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
        let fits =
            |connection: &C| connection.in_flight() + count <= MAX_IN_FLIGHT && connection.has_share(count);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exporter::fake::{self, GPU_MEMORY, SOCKET, message, number, with_file};
    use frameshare_queue::Sleeper;
    use std::sync::LazyLock;

    /// The time of the tests, in which none passes.
    static NOW: LazyLock<Instant> = LazyLock::new(Instant::now);

    /// A socket to a reader.
    #[derive(Debug)]
    struct Socket {
        /// The outcome of each attempt to send.
        outcome: Sent,
        /// Numbers of the messages that were sent.
        sent: Vec<u64>,
        /// Number of descriptors that the reader is not known to have received.
        in_flight: usize,
        /// The same, as the kernel tells it when it is asked.
        unreceived: usize,
        has_received_all: bool,
        has_share: bool,
    }

    impl Connection for Socket {
        type Attachment = fake::Attachment;
        type Sleepers = ();

        fn send(&mut self, message: &[u8], attachments: &[fake::Attachment]) -> Sent {
            if self.outcome == Sent::Whole {
                self.sent.push(number(message));
                self.in_flight += attachments.len();
            }
            self.outcome.clone()
        }
        fn shut_down(&self) {}
        fn in_flight(&self) -> usize {
            self.in_flight
        }
        fn has_received_all(&mut self) -> bool {
            self.in_flight = self.in_flight.min(self.unreceived);
            self.has_received_all
        }
        fn has_share(&self, _: usize) -> bool {
            self.has_share
        }
        fn add_to(&self, (): &mut (), _: Option<Sleeper>) {}
        fn reports_exit(&self) -> bool {
            true
        }
        fn check_at(&self) -> Option<Instant> {
            None
        }
        fn has_died(&mut self) -> bool {
            false
        }
    }

    /// The outbox of a reader that receives nothing, on a socket with this outcome.
    fn outbox(outcome: Sent) -> Outbox<Socket> {
        let (in_flight, unreceived, has_received_all) = (0, usize::MAX, false);
        let sent = Vec::new();
        let socket = Socket { outcome, sent, in_flight, unreceived, has_received_all, has_share: true };
        Outbox::new(socket, || *NOW)
    }

    fn packet(number: u64, fds: Vec<fake::Attachment>) -> Packet<fake::Attachment> {
        Packet::with(&message(number), fds).unwrap()
    }

    /// The limit that a message exceeds, if it exceeds one.
    fn exceeded(sent: Result<(), Unsent>) -> Option<String> {
        match sent {
            Ok(()) => None,
            Err(Unsent::TooMuch(limit)) => Some(limit),
            Err(Unsent::HungUp(why)) => panic!("{why}"),
        }
    }

    #[test]
    fn messages_wait_in_order_for_room_in_the_socket() {
        let mut outbox = outbox(Sent::Full);
        assert!(outbox.is_empty() && !outbox.awaits_room());
        for number in 1..=2 {
            outbox.send(packet(number, Vec::new())).unwrap();
        }
        assert!(!outbox.is_empty() && outbox.awaits_room() && outbox.retry_at().is_none());
        assert_eq!((outbox.len(), outbox.sent()), (2, 0));
        outbox.connection_mut().outcome = Sent::Whole;
        outbox.send(packet(3, Vec::new())).unwrap();
        assert!(outbox.is_empty() && !outbox.awaits_room());
        assert_eq!((outbox.len(), outbox.sent()), (0, 3));
        assert_eq!(outbox.connection().sent, [1, 2, 3]);
    }

    #[test]
    fn shortage_is_retried_after_growing_pauses() {
        let mut outbox = outbox(Sent::Short);
        for _ in 0..2 {
            outbox.send(packet(1, Vec::new())).unwrap();
            for ms in [2, 4, 8, 16, 32, 64, 100, 100] {
                outbox.flush().unwrap();
                assert_eq!(outbox.retry_at(), Some(*NOW + Duration::from_millis(ms)));
            }
            assert!(!outbox.awaits_room());
            outbox.connection_mut().outcome = Sent::Whole;
            outbox.flush().unwrap();
            assert!(outbox.is_empty() && outbox.retry_at().is_none());
            outbox.connection_mut().outcome = Sent::Short;
        }
    }

    #[test]
    fn end_of_the_connection_is_reported() {
        let mut outbox = outbox(Sent::HungUp("it exited".into()));
        let sent = outbox.send(packet(1, Vec::new()));
        assert!(matches!(&sent, Err(Unsent::HungUp(why)) if why == "it exited"), "{sent:?}");
    }

    #[test]
    fn cleared_messages_leave_only_their_memory() {
        let mut outbox = outbox(Sent::Full);
        let last = packet(3, vec![GPU_MEMORY]);
        let weight = (0, last.cost());
        for packet in [packet(1, vec![GPU_MEMORY, SOCKET]), with_file(2, 500), last] {
            assert!(!outbox.has_spent());
            outbox.send(packet).unwrap();
        }
        outbox.clear_before_last();
        assert_eq!((outbox.len(), outbox.weight()), (1, weight));
        assert!(outbox.has_spent());
        let spent = outbox.take_spent();
        assert!(spent.len() == 1 && spent[0].frees_memory && !outbox.has_spent(), "{spent:?}");
        outbox.clear();
        assert!(outbox.is_empty() && !outbox.awaits_room());
        assert_eq!((outbox.weight(), outbox.take_spent().len()), ((0, 0), 1));
    }

    #[test]
    fn waiting_payloads_weigh_unless_the_exporter_keeps_them() {
        let mut outbox = outbox(Sent::Full);
        let (first, second) = (with_file(1, 500), with_file(2, 70));
        let cost = first.cost() + second.cost();
        for packet in [first, with_file(9, 1000).kept(), second] {
            outbox.send(packet).unwrap();
        }
        assert_eq!(outbox.weight(), (2, cost));
        outbox.connection_mut().outcome = Sent::Whole;
        outbox.flush().unwrap();
        assert_eq!(outbox.weight(), (0, 0));
    }

    #[test]
    fn waiting_messages_and_files_are_limited() {
        for (most, payload, limit) in [(MAX_BACKLOG, 0, "1024 messages"), (MAX_FILES, 1, "128 messages with")]
        {
            let mut outbox = outbox(Sent::Full);
            for number in 0..most as u64 {
                outbox.send(with_file(number, payload)).unwrap();
            }
            let exceeded = exceeded(outbox.send(with_file(9, payload)));
            assert!(exceeded.as_ref().is_some_and(|found| found.starts_with(limit)), "{exceeded:?}");
        }
    }

    #[test]
    fn waiting_and_unreceived_bytes_are_limited() {
        let header = packet(1, Vec::new()).cost();
        let limit = || Some(format!("{MAX_BYTES} bytes"));
        // Only the kernel tells whether the reader has received bytes in flight.
        let mut outbox = outbox(Sent::Whole);
        assert_eq!(exceeded(outbox.send(with_file(1, MAX_BYTES))), None);
        assert_eq!(exceeded(outbox.send(with_file(2, 1))), limit());
        outbox.connection_mut().has_received_all = true;
        assert_eq!(exceeded(outbox.send(with_file(3, 1))), None);
        // The count of bytes in flight begins again, and waiting bytes are added to it.
        outbox.connection_mut().has_received_all = false;
        assert_eq!(exceeded(outbox.send(with_file(4, 100))), None);
        outbox.connection_mut().outcome = Sent::Full;
        assert_eq!(exceeded(outbox.send(with_file(5, MAX_BYTES - 100 - header))), None);
        assert_eq!(exceeded(outbox.send(packet(6, Vec::new()))), limit());
    }

    #[test]
    fn descriptors_in_flight_are_limited_unless_all_are_received() {
        const ALL: bool = true;
        const SHARE: bool = true;
        for (in_flight, unreceived, has_received_all, has_share, count, may_send) in [
            (15, 15, !ALL, SHARE, 1, true),
            (16, 16, !ALL, SHARE, 1, false),
            // The kernel tells that the reader has received some of them.
            (20, 15, !ALL, SHARE, 1, true),
            (16, 0, ALL, SHARE, 6, true),
            // All connections of this process together have too many in flight.
            (5, 5, !ALL, !SHARE, 1, false),
            (5, 5, ALL, !SHARE, 1, true),
            // No descriptor is in flight, or the message has none.
            (0, 0, !ALL, !SHARE, 17, true),
            (16, 16, !ALL, !SHARE, 0, true),
        ] {
            let mut outbox = outbox(Sent::Whole);
            let socket = outbox.connection_mut();
            (socket.in_flight, socket.unreceived) = (in_flight, unreceived);
            (socket.has_received_all, socket.has_share) = (has_received_all, has_share);
            assert_eq!(outbox.has_room(count), may_send, "{in_flight} {unreceived} {count}");
            outbox.send(packet(1, vec![SOCKET; count])).unwrap();
            assert_eq!(outbox.is_empty(), may_send);
            let retry_at = (!may_send).then_some(*NOW + SHORTEST);
            assert_eq!(outbox.retry_at(), retry_at, "nothing reports a reception");
            // No message overtakes a waiting one.
            assert_eq!(outbox.has_room(0), may_send);
        }
    }
}
