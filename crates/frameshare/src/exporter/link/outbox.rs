// SPDX-License-Identifier: MIT OR Apache-2.0

//! Outgoing messages of one connection: sent in order, and queued while the reader does not receive
//! earlier ones.
//!
//! The backlog is bounded in messages, bytes and files, and so are descriptors in flight (see
//! [`in_flight`]).

use super::in_flight::{self, InFlight};
use crate::{
    memory::{Accounts, Allocation, Allocator, host::HostFile},
    sys::{Socket, UntrustedFd, file_limit},
};
use frameshare_protocol::{
    limits::{MAX_BACKLOG, MAX_MESSAGE},
    message::{Payload, ToReader},
};
use rustix::io::Errno;
use std::{
    collections::VecDeque,
    io, mem,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    time::{Duration, Instant},
};

/// Maximum size in bytes of a payload in its message: there is room for the header and the other
/// fields.
pub const INLINE: usize = MAX_MESSAGE - 1024;
/// Maximum number of descriptors in flight on a connection.
const MAX_IN_FLIGHT: usize = 16;
/// Maximum number of unreceived bytes of messages and payloads: two of the largest payloads.
pub(super) const MAX_BYTES: u64 = 128 << 20;
/// Maximum number of payload files that wait for a reader.
pub(super) const MAX_FILES: usize = 128;
/// The shortest and the longest pause between attempts to send after a shortage.
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(100);

/// A descriptor that belongs to a message, by its owner.
#[derive(Clone, Debug)]
pub enum Attachment {
    File(Arc<OwnedFd>),
    /// The queue page of one reader.
    Queue(Arc<HostFile>),
    Payload(Arc<HostFile>),
    /// The reader's end of its wake-up socket.
    Lent(Arc<UntrustedFd>),
    Slot(Arc<dyn Allocation>),
    Pool(Arc<dyn Allocator>),
}

impl Attachment {
    /// Returns whether dropping this frees memory, of a GPU for example.
    fn frees_memory(&self) -> bool {
        match self {
            // Closing them frees their descriptors at once, which an exporter may lack.
            Self::File(_) | Self::Queue(_) | Self::Payload(_) | Self::Lent(_) => false,
            Self::Slot(memory) => Arc::strong_count(memory) == 1,
            Self::Pool(allocator) => Arc::strong_count(allocator) == 1,
        }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::File(file) => Some(file.as_fd()),
            Self::Queue(file) | Self::Payload(file) => Some(file.as_fd()),
            Self::Lent(socket) => Some(socket.as_fd()),
            Self::Slot(memory) => memory.handle().fd,
            Self::Pool(allocator) => allocator.fd(),
        }
    }
}

/// An encoded message, shared by all its readers.
#[derive(Clone, Debug)]
pub struct Packet {
    bytes: Arc<[u8]>,
    attachments: Vec<Attachment>,
    /// Size in bytes of a payload in a file of its own.
    payload: u64,
    is_ordered: bool,
    /// The exporter keeps it for joining readers anyway.
    is_kept: bool,
}

impl Packet {
    /// Encodes a message without a long payload.
    pub fn new(message: &ToReader) -> io::Result<Self> {
        Self::encode(message, Vec::new(), 0)
    }

    /// Encodes a message. A payload that is too long for one goes into a sealed memory file beside
    /// it: one that is used again if there are accounts.
    pub fn with_payload(message: &ToReader, accounts: Option<&Accounts>) -> io::Result<Self> {
        let bytes = match message {
            ToReader::Event { payload: Payload::Inline(bytes), .. }
            | ToReader::Metadata { payload: Payload::Inline(bytes), .. } => bytes.as_slice(),
            _ => &[],
        };
        if bytes.len() <= INLINE {
            return Self::new(message);
        }
        let (length, file) = (bytes.len() as u64, payload_file(bytes, accounts)?);
        let message = with_payload(message, Payload::Sealed(length));
        Self::encode(&message, vec![Attachment::Payload(file)], length)
    }

    /// Encodes a message with the descriptors that belong to it.
    pub fn with(message: &ToReader, attachments: Vec<Attachment>) -> io::Result<Self> {
        Self::encode(message, attachments, 0)
    }

    /// Encodes a message with the file of its payload of `payload` bytes.
    pub fn with_file(message: &ToReader, file: Attachment, payload: u64) -> io::Result<Self> {
        Self::encode(message, vec![file], payload)
    }

    fn encode(message: &ToReader, attachments: Vec<Attachment>, payload: u64) -> io::Result<Self> {
        let bytes = message.encode().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let is_ordered = message.is_ordered();
        Ok(Self { bytes: bytes.into(), attachments, payload, is_ordered, is_kept: false })
    }

    /// The payload in a file of its own, if it has one: its length and the file.
    pub fn sealed(&self) -> Option<(Payload, Vec<Attachment>)> {
        (self.payload > 0).then(|| (Payload::Sealed(self.payload), self.attachments.clone()))
    }

    /// The file of its payload, if it has one.
    pub(super) fn payload_file(&self) -> Option<&Arc<HostFile>> {
        self.attachments.iter().find_map(|attachment| match attachment {
            Attachment::Payload(file) => Some(file),
            _ => None,
        })
    }

    /// Marks the message as one that the exporter keeps anyway: it does not count against the
    /// reader.
    pub fn kept(self) -> Self {
        Self { is_kept: true, ..self }
    }

    pub fn is_ordered(&self) -> bool {
        self.is_ordered
    }

    pub(super) fn cost(&self) -> u64 {
        if self.is_kept { 0 } else { self.bytes.len() as u64 + self.payload }
    }

    pub(super) fn files(&self) -> usize {
        if self.is_kept || self.payload == 0 { 0 } else { self.attachments.len() }
    }
}

fn with_payload(message: &ToReader, payload: Payload) -> ToReader {
    match message {
        &ToReader::Event { before, kind, sticky, .. } => ToReader::Event { before, kind, sticky, payload },
        &ToReader::Metadata { sequence, .. } => ToReader::Metadata { sequence, payload },
        other => other.clone(),
    }
}

/// Writes a payload to a sealed memory file: one that is used again if there are accounts.
pub fn payload_file(bytes: &[u8], accounts: Option<&Accounts>) -> io::Result<Arc<HostFile>> {
    let (name, size) = ("frameshare-payload", bytes.len() as u64);
    let file = match accounts {
        Some(accounts) => accounts.file(name, size)?,
        None => Arc::new(HostFile::new(name, size)?),
    };
    file.store(bytes);
    Ok(file)
}

/// The reason why messages were not sent.
#[derive(Debug)]
pub enum Unsent {
    /// The reader has left too much unreceived; the text names the limit.
    TooMuch(String),
    /// The connection has ended.
    HungUp(io::Error),
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
pub struct Outbox {
    waiting: VecDeque<Packet>,
    /// Number of packets sent so far.
    sent: u64,
    bytes: u64,
    files: usize,
    awaited: Option<Awaited>,
    in_flight: InFlight,
    /// Payload bytes that were sent since the reader was last known to have received everything.
    bytes_in_flight: u64,
    /// Memory that sent messages referred to, to be dropped with no lock held.
    spent: Vec<Attachment>,
}

impl Outbox {
    /// The outbox of a connection to a process of user `uid`. Dropping it shuts the connection
    /// down.
    pub fn new(socket: Arc<Socket>, uid: u32) -> Self {
        Self {
            waiting: VecDeque::new(),
            sent: 0,
            bytes: 0,
            files: 0,
            awaited: None,
            in_flight: InFlight::new(socket, uid),
            bytes_in_flight: 0,
            spent: Vec::new(),
        }
    }

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
    pub fn send(&mut self, packet: Packet) -> Result<(), Unsent> {
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
            let (count, payload) =
                (packet.attachments.len(), if packet.is_kept { 0 } else { packet.payload });
            if !self.may_send(count) {
                self.retry_after(pause);
                break;
            }
            let Some(packet) = self.waiting.front() else { break };
            let fds: Vec<_> = packet.attachments.iter().filter_map(Attachment::fd).collect();
            match self.in_flight.send(&packet.bytes, &fds) {
                Ok(()) => {
                    self.sent += 1;
                    self.bytes_in_flight += payload;
                    pause = SHORTEST;
                    self.pop();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.awaited = Some(Awaited::Room);
                    break;
                }
                Err(error) if is_shortage(&error) => {
                    self.retry_after(pause);
                    break;
                }
                Err(error) => return Err(Unsent::HungUp(error)),
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

    /// Returns whether sent messages referred to memory that is to be dropped.
    pub fn has_spent(&self) -> bool {
        !self.spent.is_empty()
    }

    /// Takes memory that sent messages referred to, to be dropped with no lock held.
    pub fn take_spent(&mut self) -> Vec<Attachment> {
        mem::take(&mut self.spent)
    }

    fn pop(&mut self) {
        let Some(packet) = self.waiting.pop_front() else { return };
        self.bytes -= packet.cost();
        self.files -= packet.files();
        self.spent.extend(packet.attachments.into_iter().filter(Attachment::frees_memory));
    }

    fn retry_after(&mut self, pause: Duration) {
        self.awaited = Some(Awaited::Time(Instant::now() + pause, pause));
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
        if count == 0 || self.in_flight.count() == 0 {
            return true;
        }
        let share = file_limit().map_or(usize::MAX, |limit| usize::try_from(limit / 4).unwrap_or(usize::MAX));
        let fits = |in_flight: &InFlight| {
            in_flight.count() + count <= MAX_IN_FLIGHT && in_flight::total() + count <= share
        };
        fits(&self.in_flight) || self.has_received_all() || fits(&self.in_flight)
    }

    /// Asks the kernel whether the reader has received all that was sent.
    fn has_received_all(&mut self) -> bool {
        let all = self.in_flight.check();
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

/// Returns whether sendmsg(2) failed because of a temporary shortage: too many descriptors in
/// flight (ETOOMANYREFS), or memory (ENOBUFS, ENOMEM).
pub fn is_shortage(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM))
}

/// Returns whether this process lacks files or memory, possibly because of unreceived messages.
pub fn is_exhausted(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOSPC))
}
