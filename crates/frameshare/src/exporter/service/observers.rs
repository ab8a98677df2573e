// SPDX-License-Identifier: MIT OR Apache-2.0

//! Observers: connections that get snapshots of the stream and take no part in it.
//!
//! Only the service thread serves them, without the baton where that may take long. An observer
//! gets a snapshot when it has received the one before, so nothing queues up for it; all that are
//! due in one turn get the same snapshot.

use super::crowd;
use crate::{
    exporter::{
        resources::{in_flight, in_flight::InFlight, is_shortage},
        state::Shared,
    },
    memory::host::HostFile,
    service::before_blocking,
    sys::{Interest, Peer, Received, Socket, Timeout, monotonic_ns, process_name},
};
use frameshare_core::exporter::{ending::Ending, link::INLINE};
use frameshare_protocol::{
    VERSION,
    limits::MIN_INTERVAL_MS,
    message::{
        Disconnection, ExporterInfo, Observe, Payload, Reason, Rights, Snapshot, ToExporter, ToReader,
        make_printable,
    },
};
use std::{
    fs, io,
    os::fd::AsFd,
    sync::Arc,
    time::{Duration, Instant},
};

/// Bounds of the maximum number of observers.
const MAX_OBSERVERS: (usize, usize) = (16, 64);
/// Minimum time between two snapshots for one observer.
const INTERVAL: Duration = Duration::from_millis(MIN_INTERVAL_MS as u64);
/// Maximum number of messages that are received from one observer in that time.
const MAX_MESSAGES: u32 = 16;
/// Maximum time that an observer may leave a snapshot unreceived while the next one is due.
const STALL: Duration = Duration::from_secs(5);

/// The observers of a stream, those that were active last at the end.
pub struct Observers {
    exporter: ExporterInfo,
    observers: Vec<Observing>,
    next_id: u64,
    max: usize,
}

/// One observer.
struct Observing {
    id: u64,
    socket: Arc<Socket>,
    in_flight: InFlight,
    peer: Peer,
    name: String,
    /// Interval of snapshots without request, if it wants any.
    interval: Option<Duration>,
    /// The newest request, and whether it was answered.
    request: u32,
    is_answered: bool,
    /// The earliest time of the next snapshot on request.
    next: Instant,
    /// The time of the next snapshot without request.
    due: Option<Instant>,
    /// Time since which the snapshot before is unreceived although the next one is due.
    stalled: Option<Instant>,
    /// End of the time in which received messages are counted, and their number.
    counts_until: Instant,
    messages: u32,
}

/// An encoded snapshot, shared by the observers that get it.
enum Content {
    Inline(Vec<u8>),
    Sealed(u64, Arc<HostFile>),
}

impl Observing {
    /// Time of the next snapshot, if one is wanted.
    fn wants_at(&self) -> Option<Instant> {
        if self.is_answered { self.due } else { Some(self.next) }
    }

    /// Returns whether further messages have to wait.
    fn is_throttled(&self) -> bool {
        self.messages >= MAX_MESSAGES && Instant::now() < self.counts_until
    }

    fn count_message(&mut self) {
        let now = Instant::now();
        if now >= self.counts_until {
            (self.counts_until, self.messages) = (now + INTERVAL, 0);
        }
        self.messages += 1;
    }

    /// Puts the next attempt off, and returns the reason to disconnect the observer, if it is due.
    fn put_off(&mut self, now: Instant) -> Option<Ending> {
        self.next = now + INTERVAL;
        self.due = self.interval.map(|_| self.next);
        let since = *self.stalled.get_or_insert(now);
        let text = "it does not receive its snapshots";
        (now.duration_since(since) >= STALL).then(|| Ending::new(Reason::LimitExceeded, text))
    }

    /// Sends a snapshot. `Ok` if it is sent or put off; an ending without reason if the observer is
    /// gone.
    fn send_snapshot(
        &mut self,
        content: &Content,
        rights: Rights,
        now: Instant,
    ) -> Result<bool, Option<Ending>> {
        let (payload, fds) = match content {
            Content::Inline(bytes) => (Payload::Inline(bytes.clone()), vec![]),
            Content::Sealed(size, fd) => (Payload::Sealed(*size), vec![fd.as_fd()]),
        };
        let packet =
            ToReader::Snapshot { request: self.request, rights, payload }.encode().map_err(|_| None)?;
        match self.in_flight.send(&packet, &fds) {
            Ok(()) => {
                self.is_answered = true;
                self.next = now + INTERVAL;
                self.due = self.interval.map(|interval| now + interval);
                self.stalled = None;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock || is_shortage(&error) => {
                self.put_off(now).map_or(Ok(false), |ending| Err(Some(ending)))
            }
            Err(_) => Err(None),
        }
    }
}

/// A snapshot for observers of users that are trusted with memory, and one without a file for the
/// others, who could keep the memory of each file.
struct Snapshots {
    whole: Content,
    /// `None` if the whole one has no file.
    short: Option<Content>,
}

impl Snapshots {
    /// Takes a snapshot. Only that takes place with the state locked.
    fn new(shared: &Shared, exporter: &ExporterInfo, observers: usize) -> io::Result<Self> {
        let exporter = exporter.clone();
        let mut snapshot = shared.with(|state| state.snapshot(exporter, observers as u32));
        let bytes = snapshot.encode();
        if bytes.len() <= INLINE {
            return Ok(Self { whole: Content::Inline(bytes), short: None });
        }
        let file = HostFile::new("frameshare-payload", bytes.len() as u64)?;
        file.store(&bytes);
        let whole = Content::Sealed(bytes.len() as u64, Arc::new(file));
        Ok(Self { whole, short: Some(Content::Inline(shorten(&mut snapshot))) })
    }
}

/// Leaves out incidents, then readers, and then the caps, until a snapshot fits into a message.
fn shorten(snapshot: &mut Snapshot) -> Vec<u8> {
    snapshot.incidents.clear();
    loop {
        let bytes = snapshot.encode();
        match snapshot.readers.len() {
            _ if bytes.len() <= INLINE => return bytes,
            0 => snapshot.format = None,
            readers => snapshot.readers.truncate(readers * 3 / 4),
        }
    }
}

impl Observers {
    pub fn new() -> Self {
        let exporter = ExporterInfo {
            pid: std::process::id(),
            uid: rustix::process::geteuid().as_raw(),
            program: process_name(),
            engine: env!("CARGO_PKG_VERSION").into(),
            protocol: VERSION,
            session: 0,
            started: monotonic_ns(),
            is_mps_client: false,
        };
        Self { exporter, observers: Vec::new(), next_id: 0, max: crowd::max_of_all(MAX_OBSERVERS) }
    }

    /// Admits an observer, or refuses it with the reason.
    pub fn admit(&mut self, shared: &Shared, socket: Arc<Socket>, peer: Peer, observe: Observe) {
        let may_join = in_flight::may_join(peer.uid);
        let refusal = match may_join {
            true => shared.with(|state| state.refusal_of_observer(&peer)),
            false => Some(Ending::new(Reason::LimitExceeded, in_flight::too_many(peer.uid))),
        };
        if let Some(refusal) = refusal {
            return shared.with(|state| state.refuse(&socket, &peer, &refusal));
        }
        let now = Instant::now();
        let interval = Duration::from_millis(observe.interval_ms.into());
        self.observers.push(Observing {
            id: self.next_id,
            in_flight: InFlight::new(socket.clone(), peer.uid),
            socket,
            peer,
            name: observe.name,
            interval: (!interval.is_zero()).then_some(interval.max(INTERVAL)),
            request: 0,
            is_answered: false,
            next: now,
            due: None,
            stalled: None,
            counts_until: now,
            messages: 0,
        });
        self.next_id += 1;
        let peers: Vec<&Peer> = self.observers.iter().map(|observer| &observer.peer).collect();
        if let Some(index) = crowd::surplus(&peers, self.max) {
            let ending = Ending::new(Reason::LimitExceeded, "there are too many observers");
            self.disconnect(shared, index, &ending);
        }
    }

    /// Sends the snapshots that are due, and returns the time of the next one.
    pub fn serve(&mut self, shared: &Shared) -> Timeout {
        let (now, count) = (Instant::now(), self.observers.len());
        let is_due = |observer: &Observing| observer.wants_at().is_some_and(|at| at <= now);
        let due: Vec<u64> =
            self.observers.iter().filter(|observer| is_due(observer)).map(|observer| observer.id).collect();
        if !due.is_empty() {
            // Snapshots take long, and large ones a file.
            before_blocking();
        }
        let mut content = None;
        for id in due {
            let Some(index) = self.index(id) else { continue };
            let observer = &mut self.observers[index];
            if !observer.in_flight.check() {
                if let Some(ending) = observer.put_off(now) {
                    self.disconnect(shared, index, &ending);
                }
                continue;
            }
            let content = content.get_or_insert_with(|| Snapshots::new(shared, &self.exporter, count));
            let sent = match content {
                Ok(Snapshots { whole, short }) => {
                    let (rights, is_charged) = shared.with(|state| {
                        (state.rights(&observer.peer), state.account_of(&observer.peer).is_charged())
                    });
                    let content = short.as_ref().filter(|_| is_charged).unwrap_or(whole);
                    observer.send_snapshot(content, rights, now)
                }
                // No file or no memory for a large snapshot: later there may be.
                Err(_) => observer.put_off(now).map_or(Ok(false), |ending| Err(Some(ending))),
            };
            match sent {
                Ok(true) => self.note_activity(index),
                Ok(false) => {}
                Err(Some(ending)) => self.disconnect(shared, index, &ending),
                Err(None) => drop(self.observers.remove(index)),
            }
        }
        let throttled = self.observers.iter().filter(|observer| observer.is_throttled());
        let times = throttled.map(|observer| observer.counts_until);
        let times = times.chain(self.observers.iter().filter_map(Observing::wants_at));
        times.map(Timeout::At).fold(Timeout::Never, Timeout::min)
    }

    /// The observers' numbers and sockets, and the events to wait for: of a throttled one its end
    /// only.
    pub fn watched(&self) -> impl Iterator<Item = (u64, &Arc<Socket>, Interest)> {
        self.observers.iter().map(|observer| {
            let interest = if observer.is_throttled() { Interest::HangUp } else { Interest::Input };
            (observer.id, &observer.socket, interest)
        })
    }

    /// Handles a message of an observer, or its end.
    pub fn receive(&mut self, shared: &Shared, id: u64) {
        let Some(index) = self.index(id) else { return };
        let observer = &mut self.observers[index];
        observer.count_message();
        let violation = |text: String| Err(Some(Ending::new(Reason::Violation, text)));
        let handled = match observer.socket.receive() {
            Ok(Received::Nothing) => Ok(()),
            Ok(Received::HungUp) => Err(None),
            Ok(Received::Packet(packet, _)) => match ToExporter::decode(&packet) {
                Ok(ToExporter::RequestSnapshot { request }) => {
                    (observer.request, observer.is_answered) = (request, false);
                    Ok(())
                }
                Ok(ToExporter::Disconnect { reader }) => observer.disconnect_reader(shared, reader),
                Ok(ToExporter::Goodbye { .. }) => Err(None),
                Ok(ToExporter::Observe(_)) => violation("it sent two Observe messages".into()),
                Ok(_) => violation("it sent a message of a reader".into()),
                Err(error) => violation(error.to_string()),
            },
            Err(error) => violation(error.to_string()),
        };
        match handled {
            Ok(()) => self.note_activity(index),
            Err(Some(ending)) => self.disconnect(shared, index, &ending),
            Err(None) => drop(self.observers.remove(index)),
        }
    }

    /// Closes all connections: the exporter stops.
    pub fn close(&mut self) {
        let ending = Ending::new(Reason::Stopped, "the exporter has stopped");
        self.observers.drain(..).for_each(|observer| observer.send_close(&ending));
    }

    fn index(&self, id: u64) -> Option<usize> {
        self.observers.iter().position(|observer| observer.id == id)
    }

    /// Moves an observer to the end: others are closed before it.
    fn note_activity(&mut self, index: usize) {
        let observer = self.observers.remove(index);
        self.observers.push(observer);
    }

    /// Disconnects an observer that broke a rule or a limit, and reports it.
    fn disconnect(&mut self, shared: &Shared, index: usize, ending: &Ending) {
        let observer = self.observers.remove(index);
        observer.send_close(ending);
        let text = format!("the observer {:?} was disconnected: {}", observer.name, ending.text);
        shared.with(|state| state.note_refusal(&observer.peer, &Ending::new(ending.reason, text)));
    }
}

impl Observing {
    fn send_close(&self, ending: &Ending) {
        let message = ToReader::Goodbye { reason: ending.reason, text: ending.text.clone() };
        if let Ok(packet) = message.encode() {
            // If the observer does not receive it, it notices the hang-up.
            let _ = self.socket.send(&packet, &[]);
        }
    }

    /// Disconnects a reader, if this observer may, and answers.
    fn disconnect_reader(&self, shared: &Shared, reader: u64) -> Result<(), Option<Ending>> {
        let outcome = if !self.peer.is_own_or_root() {
            Disconnection::PermissionDenied
        } else {
            let why = format!("disconnected by process {} ({})", self.peer.pid, program(self.peer.pid));
            match shared.with(|state| state.disconnect(reader, &why)) {
                true => Disconnection::Done,
                false => Disconnection::NoSuchReader,
            }
        };
        let answer = ToReader::Disconnected { reader, outcome }.encode().map_err(|_| None)?;
        match self.socket.send(&answer, &[]) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(Some(Ending::new(Reason::LimitExceeded, "it does not receive its answers")))
            }
            Err(_) => Err(None),
        }
    }
}

/// Returns the name of a process, which it can choose itself.
fn program(pid: u32) -> String {
    // Unlike /proc/PID/cmdline, it is no memory of the process, so that reading it cannot block.
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let mut name = String::from_utf8_lossy(&name).trim_end().to_owned();
    make_printable(&mut name, usize::MAX);
    if name.is_empty() { "unknown".into() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Endpoint, Interrupt,
        exporter::{Config, Exporter},
        reader::{self, Reader},
    };

    #[test]
    fn shortened_snapshot_fits_into_message() {
        let folder = tempfile::tempdir().unwrap();
        let endpoint = Endpoint::at(folder.path().join("s")).unwrap();
        let exporter = Exporter::bind(&endpoint, Config::default(), drop).unwrap();
        let config = reader::Config::default();
        let _reader = Reader::connect(&endpoint, config, &Interrupt::new().unwrap()).unwrap();
        while exporter.reader_count() == 0 {
            std::thread::yield_now();
        }
        let mut snapshot = exporter.locked(|state| state.snapshot(Observers::new().exporter, 1));
        snapshot.readers = vec![snapshot.readers[0].clone(); 1000];
        let whole = snapshot.encode();
        let short = shorten(&mut snapshot);
        assert!(whole.len() > INLINE && short.len() <= INLINE, "{} {}", whole.len(), short.len());
        assert!((1..1000).contains(&Snapshot::decode(&short).unwrap().readers.len()));
    }
}
