//! The exporter's own thread: admits readers, notices those that leave, sends what had to wait.

use super::{
    link::Link,
    state::{Ending, Shared},
};
use crate::sys::{Listener, NameLock, Peer, Received, Socket, Timeout, is_ready, wait};
use frameshare_protocol::message::{DecodeError, Reason, ToExporter};
use rustix::event::{PollFd, PollFlags};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Whoever has connected says hello within this time.
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);
/// Most connections that have not said hello yet; more wait in the socket's backlog.
const MAX_STRANGERS: usize = 32;

/// The thread.
#[derive(Debug)]
pub(super) struct Service {
    stop: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Somebody who has connected and not said hello yet.
struct Stranger {
    socket: Socket,
    peer: Peer,
    until: Instant,
}

/// What the thread looks after of one link.
struct Watched {
    id: u64,
    socket: Arc<Socket>,
    gone: Option<Arc<OwnedFd>>,
    has_backlog: bool,
}

impl Service {
    pub fn start(shared: Arc<Shared>, lock: NameLock, listener: Listener) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let run = move || {
            let mut strangers = Vec::new();
            loop {
                // Cleared before anything is looked at: what comes after wakes the thread again.
                shared.service.clear();
                if stopped.load(Ordering::Acquire) {
                    break;
                }
                turn(&shared, &listener, &mut strangers);
            }
            // The socket goes before the lock: its next owner finds no file of ours.
            drop(listener);
            drop(lock);
        };
        let thread = thread::Builder::new().name("frameshare".into()).spawn(run)?;
        Ok(Self { stop, thread: Mutex::new(Some(thread)) })
    }

    /// Stops the thread and waits for it; it never blocks for long.
    pub fn stop(&self, shared: &Shared) {
        self.stop.store(true, Ordering::Release);
        shared.service.set();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // An observer may drop the exporter from this very thread.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != thread::current().id()) {
            let _ = thread.join();
        }
    }
}

/// Sleeps until there is something to do, and does it.
fn turn(shared: &Shared, listener: &Listener, strangers: &mut Vec<Stranger>) {
    let links: Vec<Watched> = {
        let state = shared.lock();
        let watched = |link: &Link| Watched {
            id: link.info.id,
            socket: link.socket.clone(),
            gone: link.gone.clone(),
            has_backlog: link.has_backlog(),
        };
        state.links.iter().chain(&state.leaving).map(watched).collect()
    };

    let room = strangers.len() < MAX_STRANGERS;
    let mut fds = vec![PollFd::new(&shared.service, PollFlags::IN)];
    fds.push(PollFd::new(listener, if room { PollFlags::IN } else { PollFlags::empty() }));
    fds.extend(strangers.iter().map(|stranger| PollFd::new(&stranger.socket, PollFlags::IN)));
    for link in &links {
        let out = if link.has_backlog { PollFlags::OUT } else { PollFlags::empty() };
        fds.push(PollFd::new(&*link.socket, PollFlags::IN | out));
        // poll(2) skips negative descriptors, but rustix has none: the socket stands in for a missing pidfd.
        let gone = link.gone.as_deref().map_or(link.socket.as_fd(), |gone| gone.as_fd());
        let events = if link.gone.is_some() { PollFlags::IN } else { PollFlags::empty() };
        fds.push(PollFd::from_borrowed_fd(gone, events));
    }
    let deadline = strangers.iter().map(|stranger| Timeout::At(stranger.until));
    if wait(&mut fds, deadline.fold(Timeout::Never, Timeout::min)).is_err() {
        thread::sleep(Duration::from_millis(10));
    }
    let ready: Vec<bool> = fds.iter().map(is_ready).collect();
    drop(fds);

    let (strangers_ready, links_ready) = ready[2..].split_at(strangers.len());
    for (link, ready) in links.iter().zip(links_ready.chunks(2)) {
        if ready[0] {
            listen_to(shared, link);
        }
        if ready[1] && link.gone.is_some() {
            shared.with(|state| {
                state.end_link_of(link.id, &Ending::new(Reason::Stopped, "its process is gone"))
            });
        }
    }
    let mut spoke = strangers_ready.iter();
    let waiting = std::mem::take(strangers);
    for stranger in waiting {
        if spoke.next() == Some(&true) {
            hear(shared, stranger);
        } else if stranger.until > Instant::now() {
            strangers.push(stranger);
        }
    }
    if ready[1] {
        accept(shared, listener, strangers);
    }
}

/// Takes the connections that wait.
fn accept(shared: &Shared, listener: &Listener, strangers: &mut Vec<Stranger>) {
    while strangers.len() < MAX_STRANGERS {
        match listener.accept() {
            Ok(Some(socket)) => {
                let Ok(peer) = Peer::of(&socket) else { continue };
                if peer.is_own_or_root() {
                    strangers.push(Stranger { socket, peer, until: Instant::now() + HELLO_TIMEOUT });
                } else {
                    let refusal = Ending::new(
                        Reason::PermissionDenied,
                        format!("permission denied: user {} may not read this stream", peer.uid),
                    );
                    shared.with(|state| state.refuse(&socket, &peer, &refusal));
                }
            }
            Ok(None) => break,
            // No descriptors left, say: those who are connected go on, and the others wait a little.
            Err(_) => {
                thread::sleep(Duration::from_millis(10));
                break;
            }
        }
    }
}

/// Hears what a stranger says, and admits it or not.
fn hear(shared: &Shared, stranger: Stranger) {
    let Stranger { socket, peer, .. } = stranger;
    let refusal = match socket.receive() {
        Ok(Received::Packet(packet, _)) => match ToExporter::decode(&packet) {
            Ok(ToExporter::Hello(hello)) => {
                return shared.with(|state| {
                    if !state.closed {
                        state.admit(socket, peer, &hello)
                    }
                });
            }
            Ok(_) => Ending::new(Reason::Violation, "it did not begin with Hello"),
            Err(error @ DecodeError::Version(_)) => Ending::new(Reason::NothingInCommon, error.to_string()),
            Err(error) => Ending::new(Reason::Violation, error.to_string()),
        },
        // It hung up, and nobody is left to be told.
        _ => return,
    };
    shared.with(|state| state.refuse(&socket, &peer, &refusal));
}

/// Hears what a reader says, and sends it what had to wait.
fn listen_to(shared: &Shared, link: &Watched) {
    let ending = match link.socket.receive() {
        Ok(Received::Nothing) => None,
        Ok(Received::HungUp) => Some(Ending::new(Reason::Stopped, "it hung up")),
        Ok(Received::Packet(packet, _)) => match ToExporter::decode(&packet) {
            // Host memory lives as long as anyone maps it: there is nothing to be freed that waits for this.
            Ok(ToExporter::Retired { .. }) => None,
            Ok(ToExporter::Goodbye { reason, text }) => {
                return shared.with(|state| state.let_go(link.id, &Ending { reason, text }));
            }
            Ok(ToExporter::Hello(_)) => Some(Ending::new(Reason::Violation, "it said hello twice")),
            Err(error) => Some(Ending::new(Reason::Violation, error.to_string())),
        },
        Err(error) => Some(Ending::new(Reason::Violation, error.to_string())),
    };
    shared.with(|state| match ending {
        Some(ending) => state.end_link_of(link.id, &ending),
        None => state.each_link(|other| if other.info.id == link.id { other.flush() } else { Ok(()) }),
    });
}
