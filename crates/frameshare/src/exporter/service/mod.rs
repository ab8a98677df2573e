// SPDX-License-Identifier: MIT OR Apache-2.0

//! Service thread of an exporter: admits readers, notices their ends, sends waiting messages,
//! reclaims.

mod admission;
mod crowd;
mod kept;
mod late_gpu;
mod observers;
mod pending;

pub use late_gpu::use_gpu;

use super::{
    link::{Ending, Link, Presence},
    observe::Notice,
    state::{Shared, State, Turn, Urgency},
};
use crate::{
    endpoint::Endpoint,
    gpu::DeferredDrop,
    sys::backoff::Backoff,
    sys::{
        FileState, Listener, Peer, Received, Socket, Timeout, Wake, is_ready, may_accept, may_connect,
        note_on_user, too_many_parked, wait,
    },
};
use admission::admit;
use frameshare_protocol::message::{DecodeError, Reason, ToExporter, ToReader};
use observers::Observers;
use pending::{Connection, HELLO_TIMEOUT, PendingConnections};
use rustix::event::{PollFd, PollFlags};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Interval of checks of the socket's file.
const CHECK: Duration = Duration::from_secs(2);
/// Maximum number of connections accepted at once: connected readers are served in between.
const MAX_ACCEPTED: usize = 64;

/// Handle of the service thread.
#[derive(Debug)]
pub struct Service {
    stop: Arc<AtomicBool>,
    /// Disconnected when the socket and the name are released.
    closed: Mutex<Receiver<()>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The resources that make the stream reachable. Dropped in this order: `stop` returns when the
/// name is free.
struct Open {
    listener: Listener,
    endpoint: Endpoint,
    check: Instant,
    is_lost: bool,
    _closed: Sender<()>,
}

impl Open {
    /// Checks periodically that readers find the socket, and returns a notice for the owner.
    fn check(&mut self) -> Option<Notice> {
        let now = Instant::now();
        if now < self.check {
            return None;
        }
        self.check = now + CHECK;
        let mut state = self.listener.check();
        if matches!(state, FileState::Lost(_)) && self.endpoint.prepare_folder().is_ok() {
            state = self.listener.check();
        }
        let was_lost = std::mem::replace(&mut self.is_lost, matches!(state, FileState::Lost(_)));
        match state {
            FileState::Lost(why) => (!was_lost).then_some(Notice::SocketLost { why }),
            FileState::Rebound => Some(Notice::SocketBound),
            FileState::Bound => None,
        }
    }
}

/// The parts of a link that the thread polls.
struct PolledLink {
    id: u64,
    socket: Arc<Socket>,
    gone: Option<Arc<OwnedFd>>,
    awaits_room: bool,
    /// The wake-up socket, if frames wait for the reader's credit.
    wake: Option<Arc<Wake>>,
    /// Latest time of the next check.
    check_at: Option<Instant>,
    hung_up: bool,
}

impl Service {
    pub fn start(shared: Arc<Shared>, endpoint: Endpoint, listener: Listener) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, closed) = channel();
        let stopped = stop.clone();
        let check = Instant::now() + CHECK;
        let open = Open { listener, endpoint, check, is_lost: false, _closed: sender };
        let run = move || {
            let deferred = serve(&shared, open, &stopped);
            drop(shared);
            drop(deferred);
        };
        let thread = thread::Builder::new().name("frameshare".into()).spawn(run)?;
        Ok(Self { stop, closed: Mutex::new(closed), thread: Mutex::new(Some(thread)) })
    }

    /// Closes the socket and releases the name, without waiting for peers. The thread continues
    /// while memory waits for readers to drop their imports.
    pub fn stop(&self, shared: &Shared) {
        self.stop.store(true, Ordering::Release);
        shared.service.set();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A notice handler may drop the exporter from this very thread.
        let Some(thread) = thread.filter(|thread| thread.thread().id() != thread::current().id()) else {
            return;
        };
        // Nothing is ever sent: this returns when the other end is dropped.
        let _ = self.closed.lock().unwrap_or_else(PoisonError::into_inner).recv();
        if !shared.lock().has_more_to_do() {
            let _ = thread.join();
        }
    }
}

/// Main loop of the service thread. Returns the guard of pending teardown once it was stopped.
fn serve(shared: &Shared, open: Open, stopped: &AtomicBool) -> Option<DeferredDrop> {
    let mut open = Some(open);
    let mut deferred = None;
    let mut pending = PendingConnections::new();
    let mut observers = Observers::new();
    let mut backoff = Backoff::of_a_watch();
    let mut before = Urgency::None;
    loop {
        // Cleared before the checks: a later event wakes the thread again.
        shared.service.clear();
        shared.later.clear();
        let stopped = stopped.load(Ordering::Acquire);
        if stopped {
            // Before the stopping thread is released, by dropping `open`.
            deferred.get_or_insert_with(DeferredDrop::new);
            observers.close();
            open = None;
            pending.take();
        }
        let Turn { progress, watch, has_more_to_do, trash } = shared.with(State::begin_turn);
        // A drop that waits for a GPU waits here, where it delays no publishing or reading thread.
        drop(trash);
        if stopped && !has_more_to_do {
            return deferred;
        }
        if progress || std::mem::replace(&mut before, watch) != watch {
            backoff.reset();
        }
        let look = match watch {
            Urgency::None => Timeout::Never,
            Urgency::Unhurried => Backoff::next_unhurried(),
            Urgency::Close => backoff.next(),
        };
        let look = open.as_ref().map_or(look, |open| look.min(Timeout::At(open.check)));
        let look = look.min(observers.serve(shared));
        turn(shared, open.as_mut(), &mut pending, &mut observers, look);
        if let Some(notice) = open.as_mut().and_then(Open::check) {
            shared.handler.notify(vec![notice]);
        }
    }
}

/// Sleeps until an event or a deadline, and handles it.
fn turn(
    shared: &Shared,
    open: Option<&mut Open>,
    pending: &mut PendingConnections,
    observers: &mut Observers,
    look: Timeout,
) {
    let links: Vec<PolledLink> = {
        let mut state = shared.lock();
        state.announce_waits();
        let watched = |link: &Link| PolledLink {
            id: link.info.id,
            socket: link.socket().clone(),
            gone: link.pidfd().cloned(),
            awaits_room: link.outbox.awaits_room(),
            wake: (!link.backlog().is_empty()).then(|| link.wake().clone()),
            check_at: link.check_at(),
            hung_up: link.presence() >= Presence::HungUp,
        };
        state.connections().map(watched).collect()
    };

    let mut fds =
        vec![PollFd::new(&shared.service, PollFlags::IN), PollFd::new(&shared.later, PollFlags::IN)];
    fds.extend(pending.iter().map(|connection| PollFd::new(&connection.socket, PollFlags::IN)));
    for link in &links {
        let out = if link.awaits_room { PollFlags::OUT } else { PollFlags::empty() };
        // poll(2) skips negative descriptors, but rustix has none: one descriptor stands in for a
        // missing other.
        let socket = (!link.hung_up).then_some(link.socket.as_fd());
        let gone = link.gone.as_deref().map(|gone| gone.as_fd());
        let (first, events) = (socket.or(gone).unwrap_or(shared.service.as_fd()), PollFlags::IN | out);
        fds.push(PollFd::from_borrowed_fd(first, events));
        fds.push(PollFd::from_borrowed_fd(gone.unwrap_or(first), PollFlags::IN));
        let wake = link.wake.as_deref().map(|wake| wake.as_fd());
        fds.push(PollFd::from_borrowed_fd(wake.unwrap_or(shared.service.as_fd()), PollFlags::IN));
    }
    let (observing, polled): (Vec<u64>, Vec<_>) = observers.polled().unzip();
    fds.extend(polled);
    if let Some(open) = &open {
        fds.push(PollFd::new(&open.listener, PollFlags::IN));
    }
    let deadlines = pending
        .iter()
        .map(|connection| connection.until)
        .chain(links.iter().filter_map(|link| link.check_at));
    if wait(&mut fds, deadlines.map(Timeout::At).fold(look, Timeout::min)).is_err() {
        thread::sleep(Duration::from_millis(10));
    }
    let ready: Vec<bool> = fds.iter().map(is_ready).collect();
    drop(fds);

    let (pending_ready, rest) = ready[2..].split_at(pending.len());
    let (links_ready, rest) = rest.split_at(3 * links.len());
    let (observers_ready, listener_ready) = rest.split_at(observing.len());
    for (link, ready) in links.iter().zip(links_ready.chunks(3)) {
        if ready[0] && !link.hung_up {
            listen_to(shared, link);
        }
        if ready[1] && link.gone.is_some() {
            let ending = Ending::new(Reason::Stopped, "its process is gone");
            shared.with(|state| state.end_link_of(link.id, &ending, true));
        }
        if let Some(wake) = link.wake.as_ref().filter(|_| ready[2]) {
            take_wake_up(shared, link.id, wake);
        }
        if link.check_at.is_some_and(|at| at <= Instant::now()) {
            shared.with(|state| state.check_link(link.id));
        }
    }
    for (id, _) in observing.into_iter().zip(observers_ready).filter(|(_, ready)| **ready) {
        observers.receive(shared, id);
    }
    let now = Instant::now();
    for (connection, ready) in pending.take().into_iter().zip(pending_ready) {
        if *ready || connection.until <= now {
            let silent = format!("it sent no Hello within {HELLO_TIMEOUT:?}");
            receive_hello(shared, connection, observers, &silent);
        } else {
            pending.add(connection);
        }
    }
    if let (Some(open), [true]) = (open, listener_ready) {
        accept(shared, &mut open.listener, pending, observers);
    }
}

/// Takes a wake-up of a reader that frames wait for; the next turn delivers them.
fn take_wake_up(shared: &Shared, reader: u64, wake: &Wake) {
    let ending = Ending::of_wake(wake.drain());
    shared.with(|state| match ending {
        Some(ending) => state.end_link_of(reader, &ending, false),
        // It may have been meant for a waiting thread.
        None => state.interrupt_other_waits(None),
    });
}

/// Accepts waiting connections.
fn accept(
    shared: &Shared,
    listener: &mut Listener,
    pending: &mut PendingConnections,
    observers: &mut Observers,
) {
    for _ in 0..MAX_ACCEPTED {
        if !may_accept() {
            // They wait until some parked descriptors are closed.
            thread::sleep(Duration::from_millis(10));
            break;
        }
        match listener.accept() {
            Ok(Some(socket)) => match Peer::of(&socket) {
                Ok(peer) if !may_connect(peer.uid) => {
                    let refusal = Ending::new(Reason::LimitExceeded, too_many_parked(peer.uid));
                    shared.with(|state| state.refuse(&socket, &peer, &refusal));
                }
                Ok(peer) => await_hello(shared, Connection::new(socket, peer), pending, observers),
                Err(error) => drop(socket.send(&no_room(&error), &[])),
            },
            Ok(None) => break,
            // Out of descriptors, for example: connected readers continue, and further ones are
            // refused.
            Err(error) => {
                listener.turn_away(&no_room(&error));
                thread::sleep(Duration::from_millis(10));
                break;
            }
        }
    }
}

/// The refusal of a connection that cannot even be accepted.
fn no_room(error: &io::Error) -> Vec<u8> {
    let text = format!("the exporter cannot take another connection: {error} (see ulimit -n there)");
    (ToReader::Refused { reason: Reason::Failed, text }).encode().unwrap_or_default()
}

/// Waits for the Hello of a peer that may read; refuses another one at once.
fn await_hello(
    shared: &Shared,
    connection: Connection,
    pending: &mut PendingConnections,
    observers: &mut Observers,
) {
    let Connection { socket, peer, .. } = &connection;
    if !shared.with(|state| state.config().may_read(peer)) {
        let text = format!(
            "permission denied: user {}{} may not read this stream",
            peer.uid,
            note_on_user(peer.uid, "the exporter's")
        );
        let refusal = Ending::new(Reason::PermissionDenied, text);
        return shared.with(|state| state.refuse(socket, peer, &refusal));
    }
    if let Some(oldest) = pending.add(connection) {
        receive_hello(shared, oldest, observers, "there are too many connections that send no Hello");
    }
}

/// Admits a reader by its Hello or an observer by its Observe, or refuses it: for the reason
/// `silent` if nothing has arrived.
fn receive_hello(shared: &Shared, connection: Connection, observers: &mut Observers, silent: &str) {
    let Connection { socket, peer, .. } = connection;
    let refusal = match socket.receive() {
        Ok(Received::Nothing) => Ending::new(Reason::LimitExceeded, silent),
        Ok(Received::Packet(packet, _)) => match ToExporter::decode(&packet) {
            Ok(ToExporter::Hello(hello)) => {
                return admit(shared, socket, peer, &hello);
            }
            Ok(ToExporter::Observe(observe)) => return observers.admit(shared, socket, peer, observe),
            Ok(_) => Ending::new(Reason::Violation, "it began with neither Hello nor Observe"),
            Err(error @ DecodeError::Version(_)) => Ending::new(Reason::NothingInCommon, error.to_string()),
            Err(error) => Ending::new(Reason::Violation, error.to_string()),
        },
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            Ending::new(Reason::Violation, error.to_string())
        }
        // The peer hung up: a refusal would reach no one.
        _ => return,
    };
    shared.with(|state| state.refuse(&socket, &peer, &refusal));
}

/// Handles a reader's message, and sends it waiting ones.
fn listen_to(shared: &Shared, link: &PolledLink) {
    let ending = match link.socket.receive() {
        Ok(Received::Nothing) => None,
        Ok(Received::HungUp) => Some(Ending::new(Reason::Stopped, "it hung up")),
        Ok(Received::Packet(packet, _)) => match ToExporter::decode(&packet) {
            Ok(ToExporter::Retired { generation }) => {
                return shared.with(|state| state.acknowledge(link.id, generation));
            }
            Ok(ToExporter::CannotImport { generation, text }) => {
                return shared.with(|state| state.cannot_import(link.id, generation, text));
            }
            Ok(ToExporter::RequestKeyUnit) => {
                return shared.with(|state| state.request_key_unit(link.id));
            }
            Ok(ToExporter::Upstream(event)) => {
                return shared.with(|state| state.take_upstream(link.id, event));
            }
            Ok(ToExporter::CopiesForLayout) => {
                return shared.with(|state| state.note_layout_copies(link.id));
            }
            Ok(ToExporter::Goodbye { reason, text }) => {
                return shared.with(|state| state.closed_by_reader(link.id, &Ending { reason, text }));
            }
            Ok(ToExporter::Hello(_)) => Some(Ending::new(Reason::Violation, "it sent two Hello messages")),
            Ok(
                ToExporter::Observe(_) | ToExporter::RequestSnapshot { .. } | ToExporter::Disconnect { .. },
            ) => Some(Ending::new(Reason::Violation, "it sent a message of an observer")),
            Err(error) => Some(Ending::new(Reason::Violation, error.to_string())),
        },
        Err(error) => Some(Ending::new(Reason::Violation, error.to_string())),
    };
    shared.with(|state| match ending {
        Some(ending) => state.end_link_of(link.id, &ending, false),
        None => state.flush(link.id),
    });
}
