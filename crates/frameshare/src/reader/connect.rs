//! Finding the exporter, and the handshake with it.

use super::{Config, ConnectError, connection::Connection};
use crate::{
    Interrupt,
    endpoint::Endpoint,
    memory::{choice, context_number},
    sys::{self, Peer, Received, Socket, Timeout, process_nonce, wait},
};
use frameshare_cuda::{context::Context, device::Device};
use frameshare_protocol::{
    FenceKind,
    limits::{MAX_CREDIT, MAX_GPUS, MAX_PEER_NAME},
    message::{GpuUuid, Hello, ToExporter, ToReader},
};
use rustix::event::{PollFd, PollFlags};
use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

/// How long to wait before looking for the exporter again.
const RETRY: Duration = Duration::from_millis(20);
/// An exporter that took the connection answers within this time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Connects, waiting for the exporter as long as the configuration says.
pub(super) fn connect(
    endpoint: &Endpoint,
    config: &Config,
    interrupt: &Interrupt,
) -> Result<Connection, ConnectError> {
    if !(1..=MAX_CREDIT).contains(&config.max_held) {
        return Err(ConnectError::Config(format!(
            "max-held is {}, but must be 1 to {MAX_CREDIT}",
            config.max_held
        )));
    }
    let failed = |source| ConnectError::Io { endpoint: endpoint.clone(), source };
    let start = Instant::now();
    let deadline = Timeout::after(config.connection_timeout);
    loop {
        let socket = match sys::connect(endpoint.path()) {
            Ok(socket) => Some(socket),
            Err(error) => match error.kind() {
                io::ErrorKind::PermissionDenied => {
                    return Err(ConnectError::PermissionDenied { endpoint: endpoint.clone() });
                }
                // No socket, a stale one, or one with more newcomers than it can queue: it may get better.
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused | io::ErrorKind::WouldBlock => {
                    None
                }
                _ => return Err(failed(error)),
            },
        };
        if let Some(socket) = socket
            && let Some(connection) = greet(socket, config, interrupt).map_err(|error| match error {
                Failure::Io(source) => failed(source),
                Failure::Final(error) => error,
            })?
        {
            return Ok(connection);
        }
        if deadline.is_over() {
            return Err(ConnectError::NotThere { endpoint: endpoint.clone(), waited: start.elapsed() });
        }
        let mut fds = [PollFd::new(interrupt, PollFlags::IN)];
        wait(&mut fds, Timeout::after(Some(RETRY)).min(deadline)).map_err(failed)?;
        if interrupt.is_set() {
            return Err(ConnectError::Interrupted);
        }
    }
}

enum Failure {
    Io(io::Error),
    Final(ConnectError),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl<E: Into<ConnectError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Final(error.into())
    }
}

/// The GPUs whose memory a context can read: its own, and those of others that this process sees and that it reaches.
fn reachable(gpu: Option<&Arc<Context>>) -> Result<Vec<GpuUuid>, ConnectError> {
    let Some(gpu) = gpu else { return Ok(Vec::new()) };
    let reaches = |other: &&Device| gpu.device().can_access(other).unwrap_or(false);
    Ok(Device::all()?.iter().filter(reaches).take(MAX_GPUS).map(|device| device.uuid().0).collect())
}

/// Says hello and hears the answer; `None` if the exporter hung up over it, as one does that is just stopping.
fn greet(socket: Socket, config: &Config, interrupt: &Interrupt) -> Result<Option<Connection>, Failure> {
    let allowed =
        |kind: &FenceKind| *kind == FenceKind::None || config.fence.is_none_or(|fence| fence == *kind);
    let mut name = config.name.clone();
    name.truncate(name.floor_char_boundary(MAX_PEER_NAME));
    let hello = ToExporter::Hello(Hello {
        nonce: process_nonce(),
        name,
        policy: config.policy,
        credit: config.max_held,
        memory: choice::memory_kinds(config.gpu.as_ref()),
        fences: choice::fence_kinds(config.gpu.as_ref()).into_iter().filter(allowed).collect(),
        gpus: reachable(config.gpu.as_ref())?,
        context: config.gpu.as_ref().map_or(0, context_number),
        host_fallback: config.host_fallback,
    });
    let packet = hello.encode().map_err(|error| ConnectError::Config(error.to_string()))?;
    match socket.send(&packet, &[]) {
        // A listener that closes with a newcomer still in its queue resets it; both say that it hung up. Who refused us
        // unheard has said so before.
        Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {}
        sent => sent?,
    }
    let deadline = Timeout::after(Some(ANSWER_TIMEOUT));
    let (packet, fds) = loop {
        match socket.receive()? {
            Received::Packet(packet, fds) => break (packet, fds),
            Received::HungUp => return Ok(None),
            Received::Nothing if deadline.is_over() => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the exporter does not answer").into());
            }
            Received::Nothing => {
                let mut fds = [PollFd::new(interrupt, PollFlags::IN), PollFd::new(&socket, PollFlags::IN)];
                wait(&mut fds, deadline)?;
                if interrupt.is_set() {
                    return Err(ConnectError::Interrupted.into());
                }
            }
        }
    };
    match ToReader::decode(&packet)? {
        ToReader::Welcome(welcome) => {
            let peer = Peer::of(&socket)?;
            Ok(Some(Connection::new(socket, peer, welcome, fds, config)?))
        }
        ToReader::Refused { reason, text } => Err(ConnectError::Refused { reason, text }.into()),
        _ => Err(ConnectError::Violation("it answered with something else than a welcome".into()).into()),
    }
}
