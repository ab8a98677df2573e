// SPDX-License-Identifier: MIT OR Apache-2.0

//! Observation of a stream without taking part in it.
//!
//! An [`Observer`] gets snapshots: the format, the limits and the counters of the stream, each of
//! its readers, and the last evictions and refusals. It gets no frames, takes no credit, needs no
//! CUDA context and is not counted as a reader. The exporter admits the users that may read.
//!
//! ```no_run
//! use frameshare::{Endpoint, observer::Observer};
//! use std::time::Duration;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let cam0 = Endpoint::of_stream(&"cam0".parse()?)?;
//! let observer = Observer::connect(&cam0, Duration::from_secs(2))?;
//! for reader in &observer.latest().readers {
//!     println!("{} of process {} holds {} frames and lost {}", reader.name, reader.pid, reader.held, reader.lost);
//! }
//! # Ok(()) }
//! ```

mod error;
mod expectation;

pub use error::ObserveError;
pub use expectation::{Expectation, expectation};
pub use frameshare_protocol::{
    AGE_BOUNDS, Ages, CopyCount,
    limits::MIN_INTERVAL_MS,
    message::{
        ExporterInfo, GenerationInfo, Incident, LosslessAllowed, ReaderState, Rights, SlowTreatment,
        Snapshot, StreamCounters, StreamLimits,
    },
};

use crate::{
    Endpoint,
    reader::{ProtocolViolation, TrustedUsers, Violation},
    sys::{self, Peer, Received, Socket, Timeout, process_name, read_memfd, wait},
};
use frameshare_protocol::{
    limits::MAX_PEER_NAME,
    message::{Disconnection, Observe, Payload, ToExporter, ToReader},
};
use rustix::event::{PollFd, PollFlags};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    thread,
    time::Duration,
};

/// Pause before another attempt while the listener's backlog is full.
const RETRY: Duration = Duration::from_millis(5);

/// A connection to an exporter that gets snapshots of its stream. Used from one thread at a time.
///
/// An exporter closes the connection of an observer that leaves a due snapshot unreceived for 5 s,
/// and the one that was active least recently when there are more than 64, or more than 16 of one
/// process.
#[derive(Debug)]
pub struct Observer {
    socket: Socket,
    endpoint: Endpoint,
    timeout: Duration,
    /// Number of the last request.
    request: u32,
    latest: Snapshot,
    rights: Rights,
}

/// A message for this observer.
enum Answer {
    Snapshot(u32, Rights, Box<Snapshot>),
    Disconnected(u64, Disconnection),
}

impl Observer {
    /// Connects to the exporter that listens now, and gets the first snapshot
    /// ([`Observer::latest`]). Further ones come on request ([`Observer::snapshot`]). `timeout` is
    /// the limit for this and for each later request.
    ///
    /// # Errors
    /// [`ObserveError`]; [`ObserveError::NotThere`] without waiting if no process listens.
    pub fn connect(endpoint: &Endpoint, timeout: Duration) -> Result<Self, ObserveError> {
        Self::open(endpoint, 0, timeout)
    }

    /// Like [`Observer::connect`]; further snapshots come in this interval ([`Observer::next`]), no
    /// faster than [`MIN_INTERVAL_MS`], and slower if they are not received.
    ///
    /// # Errors
    /// As for [`Observer::connect`].
    pub fn subscribe(
        endpoint: &Endpoint,
        interval: Duration,
        timeout: Duration,
    ) -> Result<Self, ObserveError> {
        let interval_ms = u32::try_from(interval.as_millis()).unwrap_or(u32::MAX);
        Self::open(endpoint, interval_ms.max(MIN_INTERVAL_MS), timeout)
    }

    fn open(endpoint: &Endpoint, interval_ms: u32, timeout: Duration) -> Result<Self, ObserveError> {
        let deadline = Timeout::after(Some(timeout));
        let failed = |source| ObserveError::Io { endpoint: endpoint.clone(), source };
        endpoint.check_folder().map_err(failed)?;
        let socket = open_socket(endpoint, timeout, deadline)?;
        let found = Peer::of(&socket).map_err(failed)?.uid;
        let expected = TrustedUsers::of(None, endpoint).map_err(failed)?;
        if !expected.includes(found) {
            return Err(ObserveError::WrongUser { endpoint: endpoint.clone(), found, expected });
        }
        let mut name = process_name();
        name.truncate(name.floor_char_boundary(MAX_PEER_NAME));
        send(&socket, endpoint, &ToExporter::Observe(Observe { name, interval_ms }))?;
        match receive(&socket, endpoint, deadline)? {
            Some(Answer::Snapshot(_, rights, latest)) => {
                Ok(Self { socket, endpoint: endpoint.clone(), timeout, request: 0, latest: *latest, rights })
            }
            Some(Answer::Disconnected(..)) => {
                Err(ProtocolViolation::from(Violation::UnexpectedMessage).into())
            }
            None => Err(ObserveError::NotAnswering { endpoint: endpoint.clone(), limit: timeout }),
        }
    }

    /// The newest snapshot that was received.
    pub fn latest(&self) -> &Snapshot {
        &self.latest
    }

    /// The rights that a reader of this process's user had at the newest snapshot.
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// Requests a snapshot and waits for it. The exporter sends no two within
    /// [`MIN_INTERVAL_MS`].
    ///
    /// # Errors
    /// [`ObserveError`]; after [`ObserveError::NotAnswering`] the observer can be used again.
    pub fn snapshot(&mut self) -> Result<&Snapshot, ObserveError> {
        self.request = self.request.wrapping_add(1);
        let request = self.request;
        send(&self.socket, &self.endpoint, &ToExporter::RequestSnapshot { request })?;
        let deadline = Timeout::after(Some(self.timeout));
        loop {
            match self.receive(deadline)? {
                Some(Answer::Snapshot(answered, rights, latest)) => {
                    (self.rights, self.latest) = (rights, *latest);
                    if answered == request {
                        return Ok(&self.latest);
                    }
                }
                // The answer to a request whose time was over.
                Some(Answer::Disconnected(..)) => {}
                None => return Err(self.not_answering()),
            }
        }
    }

    /// Waits for the next snapshot of a subscription; `None` on timeout.
    ///
    /// # Errors
    /// [`ObserveError`] at the end of the connection.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<&Snapshot>, ObserveError> {
        let deadline = Timeout::after(Some(timeout));
        loop {
            match self.receive(deadline)? {
                Some(Answer::Snapshot(_, rights, latest)) => {
                    (self.rights, self.latest) = (rights, *latest);
                    return Ok(Some(&self.latest));
                }
                Some(Answer::Disconnected(..)) => {}
                None => return Ok(None),
            }
        }
    }

    /// Disconnects a reader ([`ReaderState::id`]), which reads the number and the program of this
    /// process in its error. Only the exporter's user and root may.
    ///
    /// # Errors
    /// [`ObserveError::NoSuchReader`], [`ObserveError::MayNotDisconnect`], and those of
    /// [`Observer::snapshot`].
    pub fn disconnect_reader(&mut self, reader: u64) -> Result<(), ObserveError> {
        send(&self.socket, &self.endpoint, &ToExporter::Disconnect { reader })?;
        let deadline = Timeout::after(Some(self.timeout));
        loop {
            match self.receive(deadline)? {
                Some(Answer::Snapshot(_, rights, latest)) => (self.rights, self.latest) = (rights, *latest),
                Some(Answer::Disconnected(id, outcome)) if id == reader => {
                    return match outcome {
                        Disconnection::Done => Ok(()),
                        Disconnection::PermissionDenied => Err(ObserveError::MayNotDisconnect { reader }),
                        _ => Err(ObserveError::NoSuchReader { reader }),
                    };
                }
                Some(Answer::Disconnected(..)) => {}
                None => return Err(self.not_answering()),
            }
        }
    }

    fn receive(&self, deadline: Timeout) -> Result<Option<Answer>, ObserveError> {
        receive(&self.socket, &self.endpoint, deadline)
    }

    fn not_answering(&self) -> ObserveError {
        ObserveError::NotAnswering { endpoint: self.endpoint.clone(), limit: self.timeout }
    }
}

/// The connection: readable when a snapshot has arrived, or the connection has ended.
impl AsFd for Observer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Connects, waiting only while the exporter has too many connections to accept.
fn open_socket(endpoint: &Endpoint, timeout: Duration, deadline: Timeout) -> Result<Socket, ObserveError> {
    loop {
        let error = match sys::connect(endpoint.path()) {
            Ok(socket) => return Ok(socket),
            Err(error) => error,
        };
        let endpoint = endpoint.clone();
        return Err(match error.kind() {
            io::ErrorKind::WouldBlock if !deadline.is_over() => {
                thread::sleep(RETRY);
                continue;
            }
            io::ErrorKind::WouldBlock => ObserveError::NotAnswering { endpoint, limit: timeout },
            // No socket, or a stale one.
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ObserveError::NotThere { endpoint },
            io::ErrorKind::PermissionDenied => ObserveError::PermissionDenied { endpoint },
            _ => ObserveError::Io { endpoint, source: error },
        });
    }
}

fn send(socket: &Socket, endpoint: &Endpoint, message: &ToExporter) -> Result<(), ObserveError> {
    match socket.send(&message.encode()?, &[]) {
        Ok(()) => Ok(()),
        // The reason may have arrived before.
        Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
            Ok(())
        }
        Err(source) => Err(ObserveError::Io { endpoint: endpoint.clone(), source }),
    }
}

/// Waits for a message; `None` after the deadline.
fn receive(socket: &Socket, endpoint: &Endpoint, deadline: Timeout) -> Result<Option<Answer>, ObserveError> {
    let failed = |source| ObserveError::Io { endpoint: endpoint.clone(), source };
    let (packet, fds) = loop {
        match socket.receive() {
            Ok(Received::Packet(packet, fds)) => break (packet, fds),
            Ok(Received::HungUp) => return Err(ObserveError::Gone),
            Ok(Received::Nothing) if deadline.is_over() => return Ok(None),
            Ok(Received::Nothing) => {
                wait(&mut [PollFd::new(socket, PollFlags::IN)], deadline).map_err(failed)?;
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(ProtocolViolation::Packet(error).into());
            }
            Err(error) => return Err(failed(error)),
        }
    };
    let message = ToReader::decode(&packet)?;
    if !message.fds().contains(&fds.len()) {
        return Err(ProtocolViolation::DescriptorCount.into());
    }
    match message {
        ToReader::Snapshot { request, rights, payload } => {
            let bytes = match (payload, fds.first()) {
                (Payload::Inline(bytes), _) => bytes,
                (Payload::Sealed(size), Some(fd)) => {
                    read_memfd(fd, size).map_err(ProtocolViolation::Payload)?
                }
                (Payload::Sealed(_), None) => return Err(ProtocolViolation::DescriptorCount.into()),
            };
            Ok(Some(Answer::Snapshot(request, rights, Box::new(Snapshot::decode(&bytes)?))))
        }
        ToReader::Disconnected { reader, outcome } => Ok(Some(Answer::Disconnected(reader, outcome))),
        ToReader::Refused { reason, text } => Err(ObserveError::Refused { reason, text }),
        ToReader::Goodbye { reason, text } => Err(ObserveError::Closed { reason, text }),
        _ => Err(ProtocolViolation::from(Violation::UnexpectedMessage).into()),
    }
}
