// SPDX-License-Identifier: MIT OR Apache-2.0

//! The turns of a stream's background work.

use super::{
    connecting::{accept, receive_hello},
    links::WatchedLink,
    observers::Observers,
    open::Open,
    pending::{HELLO_TIMEOUT, PendingConnections},
};
use crate::{
    exporter::state::Shared,
    gpu::DeferredDrop,
    service::{Interests, Next, Task, before_blocking},
    sys::{Interest, Timeout, backoff::Backoff},
};
use frameshare_core::exporter::{ending::Ending, parts::Urgency, state::Turn};
use frameshare_protocol::message::Reason;
use std::{
    collections::BTreeMap,
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::Sender,
    },
    time::Instant,
};

/// The descriptors that a stream waits for, in the order in which their events are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    Link(u64, Part),
    Observer(u64),
    Pending(u64),
    Listener,
}

/// A descriptor of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    Socket,
    Process,
    Wake,
}

/// The background work of a stream.
// Fields are dropped in this order.
pub struct Serving {
    pending: PendingConnections,
    observers: Observers,
    links: BTreeMap<u64, WatchedLink>,
    open: Option<Open>,
    /// To be handed to the stopping thread in the next turn, when nothing waits for it any more.
    closing: Option<Open>,
    closed: Sender<Open>,
    stop: Arc<AtomicBool>,
    backoff: Backoff,
    /// Urgency of the turn before.
    before: Urgency,
    shared: Arc<Shared>,
    /// The stream's pending teardown, once it was stopped.
    deferred: Option<DeferredDrop>,
    _ended: Sender<()>,
}

impl Serving {
    pub fn new(
        shared: Arc<Shared>,
        open: Open,
        stop: Arc<AtomicBool>,
        closed: Sender<Open>,
        ended: Sender<()>,
    ) -> Self {
        Self {
            pending: PendingConnections::new(),
            observers: Observers::new(),
            links: BTreeMap::new(),
            open: Some(open),
            closing: None,
            closed,
            stop,
            backoff: Backoff::of_a_watch(),
            before: Urgency::None,
            shared,
            deferred: None,
            _ended: ended,
        }
    }

    /// Handles the events of descriptors, and deadlines that have passed.
    fn handle(&mut self, ready: &[Source]) {
        let shared = &*self.shared;
        for source in ready {
            let Source::Link(id, part) = source else { continue };
            let Some(link) = self.links.get(id) else { continue };
            match part {
                Part::Socket => link.receive(shared),
                Part::Process => {
                    let ending = Ending::new(Reason::Stopped, "its process is gone");
                    shared.with(|state| state.end_link_of(*id, &ending, true));
                }
                Part::Wake => link.take_wake_up(shared),
            }
        }
        let now = Instant::now();
        for link in self.links.values().filter(|link| link.watched.check_at.is_some_and(|at| at <= now)) {
            shared.with(|state| state.check_link(link.watched.id));
        }
        let mut senders = Vec::new();
        for source in ready {
            match source {
                Source::Observer(id) => {
                    // A snapshot takes long, and the names of processes are read from files.
                    before_blocking();
                    self.observers.receive(shared, *id);
                }
                Source::Pending(id) => senders.push(*id),
                Source::Link(..) | Source::Listener => {}
            }
        }
        for connection in self.pending.take_ready(&senders) {
            let silent = format!("it sent no Hello within {HELLO_TIMEOUT:?}");
            receive_hello(shared, connection, &mut self.observers, &silent);
        }
        if let (Some(open), Some(Source::Listener)) = (&mut self.open, ready.last()) {
            accept(shared, open, &mut self.pending, &mut self.observers);
        }
    }

    /// Closes all connections without a link, and the socket for the stopping thread.
    fn stop(&mut self) {
        if let Some(open) = self.closing.take() {
            if let Err(unsent) = self.closed.send(open) {
                before_blocking();
                drop(unsent);
            }
        } else if let Some(open) = self.open.take() {
            // Before the stopping thread is released.
            self.deferred.get_or_insert_with(DeferredDrop::new);
            self.observers.close();
            self.pending.clear();
            self.closing = Some(open);
        }
    }

    /// Returns the time of the next poll of what sends no notification.
    fn next_poll(&mut self, progress: bool, watch: Urgency) -> Timeout {
        if progress || mem::replace(&mut self.before, watch) != watch {
            self.backoff.reset();
        }
        match watch {
            // The next publication puts such a poll off.
            Urgency::None | Urgency::Idle => Timeout::Never,
            Urgency::Unhurried => Timeout::after(watch.interval()),
            Urgency::Close => self.backoff.next(),
        }
    }

    /// Names the descriptors to wait for, and returns the first deadline.
    fn watch(&mut self, interests: &mut Interests<Source>) -> Timeout {
        self.links = {
            let mut state = self.shared.lock();
            let watched = state.watch();
            let links = state.readers().all().zip(watched);
            links.map(|(link, watched)| (watched.id, WatchedLink::of(link, watched))).collect()
        };
        for link in self.links.values() {
            if link.watched.socket {
                interests.want(
                    Source::Link(link.watched.id, Part::Socket),
                    link.socket.clone(),
                    link.interest(),
                );
            }
            if let Some(gone) = &link.gone {
                interests.want(Source::Link(link.watched.id, Part::Process), gone.clone(), Interest::Input);
            }
            if link.watched.wake {
                let wake = link.wake.clone();
                interests.want(Source::Link(link.watched.id, Part::Wake), wake, Interest::Input);
            }
        }
        for (id, socket, interest) in self.observers.watched() {
            interests.want(Source::Observer(id), socket.clone(), interest);
        }
        for connection in self.pending.iter() {
            interests.want(Source::Pending(connection.id), connection.socket.clone(), Interest::Input);
        }
        let mut first = Timeout::Never;
        if let Some(open) = &mut self.open {
            let (accepts, until) = open.accepts();
            first = until;
            if accepts {
                interests.want(Source::Listener, open.listener.socket().clone(), Interest::Input);
            }
        }
        let checks = self.links.values().filter_map(|link| link.watched.check_at);
        let hellos = self.pending.iter().map(|connection| connection.until);
        checks.chain(hellos).map(Timeout::At).fold(first, Timeout::min)
    }
}

impl Task for Serving {
    type Key = Source;

    fn turn(&mut self, ready: &[Source], interests: &mut Interests<Source>) -> Next {
        if self.shared.has_gpu() {
            // Its driver may keep any call waiting for another one.
            before_blocking();
        }
        self.handle(ready);
        let stopped = self.stop.load(Ordering::Acquire);
        if stopped {
            self.stop();
        }
        let Turn { progress, watch, has_more_to_do, trims_at, trash } =
            self.shared.with(|state| state.begin_turn());
        if !trash.is_empty() {
            before_blocking();
            drop(trash);
        }
        if stopped && !has_more_to_do && self.closing.is_none() {
            return Next::End;
        }
        let next = self.next_poll(progress, watch).min(self.observers.serve(&self.shared));
        if let Some(notice) = self.open.as_mut().and_then(Open::check) {
            self.shared.handler.notify(vec![notice]);
        }
        let next = trims_at.map_or(next, |at| next.min(Timeout::At(at))).min(self.watch(interests));
        Next::At(if self.closing.is_some() { Timeout::At(Instant::now()) } else { next })
    }

    fn fail(&mut self) {
        self.shared
            .with(|state| state.fail("a thread of the engine panicked; its message is on standard error"));
    }
}
