// SPDX-License-Identifier: MIT OR Apache-2.0

//! Connection setup: the search for the exporter, and the handshake with it.
//!
//! No step blocks: [`Search::advance`] performs the steps that are possible now, [`Search::wait`]
//! sleeps until another one is.

use super::{Connection, trust::TrustedUsers};
use crate::{
    Interrupt,
    endpoint::Endpoint,
    fence,
    foreign::report,
    memory::{self, context_number},
    reader::{
        config::Config,
        error::{ConfigError, ConnectError, ProtocolViolation},
    },
    sys::{self, Peer, PollSet, Received, Socket, Timeout, process_nonce, wait},
};
use frameshare_cuda::{context::Context, device::Device};
use frameshare_protocol::{
    FenceKind, MemoryKind,
    limits::{MAX_GPUS, MAX_PEER_NAME},
    message::{GpuUuid, Hello, Reason, ToExporter, ToReader},
};
use rustix::{
    event::{PollFd, PollFlags},
    fs::stat,
    time::{ClockId, clock_gettime},
};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

/// Pause before the socket is tried again, and between two checks of its file during a handshake.
const RETRY: Duration = Duration::from_millis(20);
/// Pause after a refusal, which costs the exporter more than a missing socket.
const RETRY_REFUSED: Duration = Duration::from_millis(100);
/// An exporter that has not answered for so long is stopped, or hangs.
const PROMPT: Duration = Duration::from_millis(500);
/// Age in seconds up to which a socket that denies permission may still get its final mode.
const YOUNG: u64 = 1;

/// Connects, waiting for the exporter as long as the configuration says.
///
/// # Errors
/// [`ConnectError`]; obstacles that may pass become errors at the end of the timeout.
pub(in crate::reader) fn connect(
    endpoint: &Endpoint,
    config: &Config,
    interrupt: &Interrupt,
) -> Result<Connection, ConnectError> {
    config.check(endpoint)?;
    let mut search = Search::new(endpoint, config, Instant::now())?;
    loop {
        if let Some(connection) = search.advance(endpoint, config)? {
            return Ok(connection);
        }
        search.wait(interrupt, Timeout::Never).map_err(|source| failed(endpoint, source))?;
        if interrupt.is_set() {
            return Err(ConnectError::Interrupted);
        }
    }
}

/// The search for an exporter.
#[derive(Debug)]
pub(in crate::reader) struct Search {
    start: Instant,
    deadline: Timeout,
    step: Step,
    /// The obstacle of the last attempt, unless it was a missing exporter.
    obstacle: Option<Obstacle>,
    /// Readable when the exporter has answered.
    ready: PollSet,
    /// The GPU of the configuration cannot be used with the exporter, and host frames are taken.
    in_host: bool,
}

#[derive(Debug)]
enum Step {
    /// The socket is tried at this time.
    Pause(Instant),
    /// The exporter has yet to answer. Boxed: a search spends most of its time in pauses.
    Handshake(Box<Handshake>),
}

/// A connection whose Hello is sent.
#[derive(Debug)]
struct Handshake {
    socket: Socket,
    peer: Peer,
    /// The socket's file when the connection was made; none of an abstract socket.
    file: Option<SocketFile>,
    begun: Instant,
    /// Time of the next check whether the path still leads to that file.
    recheck: Instant,
    /// The result of the attempt before.
    earlier: Option<ConnectError>,
}

#[derive(Debug)]
enum Obstacle {
    /// The listener's backlog is full.
    Backlog,
    /// An error that may pass.
    Error(ConnectError),
}

/// Identity of a socket's file. A successor's differs, on file systems that reuse inode numbers by
/// its time of change.
#[derive(Debug, PartialEq, Eq)]
struct SocketFile {
    device: u64,
    inode: u64,
    changed: (i64, i64),
}

impl SocketFile {
    /// Returns the file of an endpoint; `None` for an abstract socket.
    fn of(endpoint: &Endpoint) -> rustix::io::Result<Option<Self>> {
        if endpoint.is_abstract() { Ok(None) } else { Self::at(endpoint.path()).map(Some) }
    }

    fn at(path: &Path) -> rustix::io::Result<Self> {
        let found = stat(path)?;
        #[allow(clippy::unnecessary_cast, reason = "the fields' types differ between architectures")]
        Ok(Self {
            device: found.st_dev as u64,
            inode: found.st_ino as u64,
            changed: (found.st_ctime as i64, found.st_ctime_nsec as i64),
        })
    }

    /// Returns whether the socket at `path` was made or changed within the last second.
    fn is_young(path: &Path) -> bool {
        let now = clock_gettime(ClockId::Realtime).tv_sec;
        // A clock that was set back leaves times in the future: those far ahead are ignored.
        Self::at(path).is_ok_and(|file| file.changed.0.abs_diff(now) <= YOUNG)
    }
}

/// Returns the error of a system call.
fn failed(endpoint: &Endpoint, source: io::Error) -> ConnectError {
    ConnectError::Io { endpoint: endpoint.clone(), source }
}

impl Search {
    /// A search that makes its first attempt at `begin`. Its deadline counts from now.
    ///
    /// # Errors
    /// [`ConnectError::Io`] if its descriptor cannot be made.
    pub fn new(endpoint: &Endpoint, config: &Config, begin: Instant) -> Result<Self, ConnectError> {
        let ready = PollSet::new().map_err(|source| failed(endpoint, source))?;
        let deadline = Timeout::after(config.connection_timeout);
        let step = Step::Pause(begin);
        Ok(Self { start: Instant::now(), deadline, step, obstacle: None, ready, in_host: false })
    }

    /// Performs the steps that are possible without waiting.
    ///
    /// # Errors
    /// [`ConnectError`] ends the search; a further call makes one more attempt.
    pub fn advance(
        &mut self,
        endpoint: &Endpoint,
        config: &Config,
    ) -> Result<Option<Connection>, ConnectError> {
        let in_host = self.in_host.then(|| config.clone().gpu(None));
        let config = in_host.as_ref().unwrap_or(config);
        let begun = match &self.step {
            Step::Pause(until) if *until <= Instant::now() => self.begin_handshake(endpoint, config),
            Step::Pause(_) | Step::Handshake(_) => Ok(()),
        };
        match begun.and_then(|()| self.finish_handshake(endpoint, config)) {
            Ok(Some(connection)) => return Ok(Some(connection)),
            Ok(None) => {}
            Err(error) => {
                let passes = may_pass(&error, config.reconnect);
                self.pause(RETRY_REFUSED);
                if !passes {
                    return Err(error);
                }
                self.obstacle = Some(Obstacle::Error(error));
            }
        }
        if self.deadline.is_over() { Err(self.give_up(endpoint)) } else { Ok(None) }
    }

    /// Sleeps until the exporter answers, the next step is due, or the timeout is over.
    ///
    /// # Errors
    /// The error of poll(2).
    pub fn wait(&self, interrupt: &Interrupt, timeout: Timeout) -> io::Result<()> {
        let mut fds = vec![PollFd::new(interrupt, PollFlags::IN)];
        if let Step::Handshake(handshake) = &self.step {
            fds.push(PollFd::new(&handshake.socket, PollFlags::IN));
        }
        wait(&mut fds, Timeout::At(self.due()).min(timeout))
    }

    /// Readable when the exporter has answered.
    pub fn ready_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }

    /// Latest time to call [`Search::advance`] again.
    pub fn due(&self) -> Instant {
        let next = match &self.step {
            Step::Pause(until) => *until,
            Step::Handshake(handshake) => handshake.recheck,
        };
        match self.deadline {
            Timeout::At(deadline) => deadline.min(next),
            Timeout::Never => next,
        }
    }

    fn pause(&mut self, duration: Duration) {
        self.step = Step::Pause(Instant::now() + duration);
    }

    /// Connects and sends Hello, if an exporter listens.
    fn begin_handshake(&mut self, endpoint: &Endpoint, config: &Config) -> Result<(), ConnectError> {
        let earlier = match self.obstacle.take() {
            Some(Obstacle::Error(error)) => Some(error),
            Some(Obstacle::Backlog) | None => None,
        };
        self.pause(RETRY);
        let path = endpoint.path();
        endpoint.check_folder().map_err(|source| failed(endpoint, source))?;
        // Before connecting: if the file is replaced in between, the check notices a difference.
        let Ok(file) = SocketFile::of(endpoint) else {
            // Its folder may not be searchable: the error of connect(2) tells.
            return self.note_failure(endpoint, sys::connect(path).err());
        };
        let socket = match sys::connect(path) {
            Ok(socket) => socket,
            Err(error) => return self.note_failure(endpoint, Some(error)),
        };
        let peer = Peer::of(&socket).map_err(|source| failed(endpoint, source))?;
        let trust = match TrustedUsers::of(config.exporter_uid, endpoint) {
            Ok(trust) => trust,
            // The file may have been removed again.
            Err(error) => return self.note_failure(endpoint, Some(error)),
        };
        if !trust.includes(peer.uid) {
            let (found, expected) = (peer.uid, trust);
            return Err(ConnectError::WrongUser { endpoint: endpoint.clone(), found, expected });
        }
        match socket.send(&hello(config, &peer)?, &[]) {
            Ok(()) => {}
            // A closing listener resets the connections in its queue. A refusal without a Hello was
            // sent before that.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {}
            // The exporter refused the reader and closed the connection before the Hello. The
            // kernel has discarded the refusal: the next attempt tells.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(()),
            Err(source) => return Err(failed(endpoint, source)),
        }
        // A closed socket leaves the set. A connection that takes the socket ends the search.
        self.ready.add(&socket).map_err(|source| failed(endpoint, source))?;
        let begun = Instant::now();
        let recheck = begun + RETRY;
        self.step = Step::Handshake(Box::new(Handshake { socket, peer, file, begun, recheck, earlier }));
        Ok(())
    }

    /// Separates temporary failures to connect from final ones.
    fn note_failure(&mut self, endpoint: &Endpoint, error: Option<io::Error>) -> Result<(), ConnectError> {
        let Some(error) = error else { return Ok(()) };
        match error.kind() {
            // No socket, or a stale one.
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {}
            // The listener's backlog is full: connect(2) of a Unix socket that does not block fails
            // with EAGAIN.
            io::ErrorKind::WouldBlock => self.obstacle = Some(Obstacle::Backlog),
            io::ErrorKind::PermissionDenied => {
                let denied = ConnectError::PermissionDenied { endpoint: endpoint.clone() };
                if !SocketFile::is_young(endpoint.path()) {
                    return Err(denied);
                }
                self.obstacle = Some(Obstacle::Error(denied));
            }
            _ => return Err(failed(endpoint, error)),
        }
        Ok(())
    }

    /// Receives the answer, if it has arrived. Until then the connection is kept as long as the
    /// path leads to the same socket: the backlog of a stopped exporter does not fill with
    /// abandoned connections.
    fn finish_handshake(
        &mut self,
        endpoint: &Endpoint,
        config: &Config,
    ) -> Result<Option<Connection>, ConnectError> {
        let Step::Handshake(handshake) = &mut self.step else { return Ok(None) };
        match handshake.socket.receive() {
            Ok(Received::Packet(packet, fds)) => {
                let step = std::mem::replace(&mut self.step, Step::Pause(Instant::now()));
                let Step::Handshake(handshake) = step else { return Ok(None) };
                let Handshake { socket, peer, .. } = *handshake;
                match ToReader::decode(&packet)? {
                    ToReader::Welcome(welcome) => {
                        match Connection::new(socket, peer, welcome, fds, endpoint, config) {
                            // The fence cannot be opened.
                            Err(error)
                                if config.host_fallback && config.gpu.is_some() && error.is_of_gpu() =>
                            {
                                report!(warn, "frames come in host memory: {error}");
                                self.in_host = true;
                                Ok(None)
                            }
                            connected => connected.map(Some),
                        }
                    }
                    ToReader::Refused { reason, text } => Err(ConnectError::Refused { reason, text }),
                    _ => Err(ProtocolViolation::UnexpectedAnswer.into()),
                }
            }
            // The exporter may be stopping.
            Ok(Received::HungUp) => {
                self.pause(RETRY);
                Ok(None)
            }
            Ok(Received::Nothing) => {
                let now = Instant::now();
                if handshake.recheck <= now {
                    handshake.recheck = now + RETRY;
                    if SocketFile::of(endpoint).as_ref() != Ok(&handshake.file) {
                        self.step = Step::Pause(now);
                    }
                }
                Ok(None)
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Err(ProtocolViolation::Packet(error).into())
            }
            Err(source) => Err(failed(endpoint, source)),
        }
    }

    /// Returns the error of a search that found no exporter in time. An attempt that has just begun
    /// tells nothing: the one before does.
    fn give_up(&mut self, endpoint: &Endpoint) -> ConnectError {
        let (endpoint, waited) = (endpoint.clone(), self.start.elapsed());
        if let Step::Handshake(handshake) = &mut self.step
            && handshake.begun.elapsed() < PROMPT
            && let Some(error) = handshake.earlier.take()
        {
            return error;
        }
        match (&self.step, self.obstacle.take()) {
            (Step::Handshake(_), _) | (_, Some(Obstacle::Backlog)) => {
                ConnectError::NotAnswering { endpoint, waited }
            }
            (_, Some(Obstacle::Error(error))) => error,
            (_, None) => ConnectError::NotThere { endpoint, waited },
        }
    }
}

/// Returns the GPUs whose memory a context can read: its own, and those of other visible devices
/// that it reaches.
fn reachable(gpu: Option<&Arc<Context>>) -> Result<Vec<GpuUuid>, ConnectError> {
    let Some(gpu) = gpu else { return Ok(Vec::new()) };
    let reaches = |other: &&Device| gpu.device().can_access(other).unwrap_or(false);
    Ok(Device::all()?.iter().filter(reaches).take(MAX_GPUS).map(|device| device.uuid().0).collect())
}

/// Returns whether a later attempt may succeed: see the table at [`Config::reconnect`].
fn may_pass(error: &ConnectError, reconnect: bool) -> bool {
    match error {
        ConnectError::Refused { reason, .. } => match reason {
            // The exporter closed the connection among too many pending ones, or is stopping.
            Reason::LimitExceeded | Reason::Stopped => true,
            Reason::NoCreditLeft | Reason::Failed => reconnect,
            // Denied, nothing in common, evicted: a later attempt would end the same way.
            _ => false,
        },
        ConnectError::WrongUser { .. } => reconnect,
        _ => false,
    }
}

/// Returns the first message as a packet.
fn hello(config: &Config, exporter: &Peer) -> Result<Vec<u8>, ConnectError> {
    let mut memory = memory::select::kinds(config.gpu.as_ref());
    memory.extend(config.accepts_dma_bufs(exporter.uid).then_some(MemoryKind::DmaBuf));
    let allowed =
        |kind: &FenceKind| *kind == FenceKind::None || config.fence.is_none_or(|fence| fence == *kind);
    let mut name = config.name.clone();
    name.truncate(name.floor_char_boundary(MAX_PEER_NAME));
    let hello = ToExporter::Hello(Hello {
        nonce: process_nonce(),
        name,
        policy: config.policy,
        credit: config.max_held,
        max_queued: config.max_queued,
        memory,
        fences: fence::select::kinds(config.gpu.as_ref()).into_iter().filter(allowed).collect(),
        gpus: reachable(config.gpu.as_ref())?,
        context: config.gpu.as_ref().map_or(0, context_number),
        host_fallback: config.host_fallback,
        max_gop_bytes: config.max_gop_bytes,
    });
    hello.encode().map_err(|error| ConfigError::Hello(error).into())
}
