//! One admitted reader, as the exporter keeps it.

use super::{notice::ReaderInfo, slot::Slot, state::Ending, stats::ReaderStats};
use crate::{
    fence::{ExporterFence, FenceState},
    queue::{Producer, Revocation},
    sys::{Mapping, Peer, SealedAgainst, Socket, Wake, Words, memfd},
};
use frameshare_protocol::{
    Descriptor, MemoryKind, Policy,
    limits::MAX_MESSAGE,
    message::{Payload, Reason, ToReader},
    page::ClaimState,
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::{Duration, Instant},
};

/// Most messages that wait for a reader that does not take them.
const MAX_BACKLOG: usize = 1024;

/// A lease, in the ledger.
#[derive(Clone, Copy, Debug)]
struct Lease {
    sequence: u64,
    area: usize,
}

/// Where the next publication of a link goes.
pub(super) enum Vacancy {
    /// Into this entry.
    Entry(usize),
    /// Nowhere: the reader holds all that it may.
    Full,
}

/// An admitted reader.
#[derive(Debug)]
pub(super) struct Link {
    pub info: ReaderInfo,
    pub socket: Arc<Socket>,
    pub wake: Arc<Wake>,
    pub gone: Option<Arc<OwnedFd>>,
    producer: Producer<Words>,
    fence: Box<dyn ExporterFence>,
    entries: Vec<Option<Lease>>,
    /// Ordered messages sent so far, waiting ones included.
    messages: u64,
    backlog: VecDeque<(Vec<u8>, Option<Arc<OwnedFd>>)>,
    /// Which slots of which generations the reader knows.
    known: BTreeMap<u32, BTreeSet<u32>>,
    sent: u64,
    lost: u64,
    /// Since when the exporter has waited for it, and whether the owner was told.
    pub blocked: Option<(Instant, bool)>,
}

impl Link {
    pub fn new(
        info: ReaderInfo,
        socket: Socket,
        wake: Wake,
        peer: Peer,
        producer: Producer<Words>,
        fence: Box<dyn ExporterFence>,
    ) -> Self {
        Self {
            entries: vec![None; info.credit as usize],
            info,
            socket: Arc::new(socket),
            wake: Arc::new(wake),
            gone: peer.gone.map(Arc::new),
            producer,
            fence,
            messages: 0,
            backlog: VecDeque::new(),
            known: BTreeMap::new(),
            sent: 0,
            lost: 0,
            blocked: None,
        }
    }

    pub fn is_lossless(&self) -> bool {
        self.info.policy == Policy::Lossless
    }

    /// Sends a message that has its place among the frames, now or as soon as the reader takes its messages.
    pub fn send(&mut self, message: &ToReader) -> Result<(), Ending> {
        let failed = |error: io::Error| Ending::new(Reason::Failed, format!("cannot send: {error}"));
        let (packet, fd) = packet_of(message).map_err(failed)?;
        self.messages += u64::from(message.is_ordered());
        self.send_packet(packet, fd.map(Arc::new))?;
        if self.producer.reader_sleeps() {
            self.wake.ring();
        }
        Ok(())
    }

    fn send_packet(&mut self, packet: Vec<u8>, fd: Option<Arc<OwnedFd>>) -> Result<(), Ending> {
        self.backlog.push_back((packet, fd));
        if self.backlog.len() > MAX_BACKLOG {
            let text = format!("it has left {MAX_BACKLOG} messages unread");
            return Err(Ending::new(Reason::LimitExceeded, text));
        }
        self.flush()
    }

    /// Sends what waits.
    pub fn flush(&mut self) -> Result<(), Ending> {
        while let Some((packet, fd)) = self.backlog.front() {
            let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
            match self.socket.send(packet, &fds) {
                Ok(()) => drop(self.backlog.pop_front()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(Ending::new(Reason::Stopped, format!("it hung up ({error})"))),
            }
        }
        Ok(())
    }

    /// Whether messages wait for the reader to take others.
    pub fn has_backlog(&self) -> bool {
        !self.backlog.is_empty()
    }

    pub fn say_goodbye(&mut self, ending: &Ending) {
        let message = ToReader::Goodbye { reason: ending.reason, text: ending.text.clone() };
        if let Ok(packet) = message.encode() {
            // Whoever left too many messages unread, or hung up, does not get this one either.
            let _ = self.send_packet(packet, None);
        }
        self.wake.ring();
    }

    /// Tells the reader of a generation that is used no more, if it knows it.
    pub fn retire(&mut self, before: u64, generation: u32) -> Result<(), Ending> {
        match self.known.remove(&generation) {
            Some(_) => self.send(&ToReader::Retire { before, generation }),
            None => Ok(()),
        }
    }

    /// Makes sure that the reader knows a slot.
    pub fn introduce(&mut self, slot: &Slot, kind: MemoryKind) -> Result<(), Ending> {
        let (generation, index) = (slot.0.generation, slot.0.index);
        if self.known.get(&generation).is_some_and(|slots| slots.contains(&index)) {
            return Ok(());
        }
        if !self.known.contains_key(&generation) {
            let slot_size = slot.size();
            self.send(&ToReader::Generation { generation, memory: kind, slot_size })?;
        }
        let handle = slot.0.memory.handle();
        let failed = |error: io::Error| Ending::new(Reason::Failed, format!("cannot export a slot: {error}"));
        let fd = handle.fd.map(|fd| fd.try_clone_to_owned()).transpose().map_err(failed)?;
        let message = ToReader::Slot { generation, slot: index, handle: handle.bytes.to_vec() };
        let packet = message.encode().map_err(|error| Ending::new(Reason::Failed, error.to_string()))?;
        self.messages += 1;
        self.send_packet(packet, fd.map(Arc::new))?;
        self.known.entry(generation).or_default().insert(index);
        Ok(())
    }

    /// Publishes into a vacant entry; true if the reader must be woken.
    pub fn publish(&mut self, entry: usize, area: usize, mut descriptor: Descriptor) -> Result<bool, Ending> {
        descriptor.messages = self.messages;
        let sequence = descriptor.sequence;
        self.fence
            .signal_ready(entry, sequence)
            .map_err(|error| Ending::new(Reason::Failed, error.to_string()))?;
        self.entries[entry] = Some(Lease { sequence, area });
        self.sent += 1;
        Ok(self.producer.publish(entry, &descriptor))
    }

    /// Counts a frame that the reader does not get.
    pub fn lose(&mut self, sequence: u64) {
        self.lost += 1;
        self.producer.skip(sequence);
    }

    /// Finds the leases that the reader has ended, and puts their areas into `ended`.
    pub fn collect_released(&mut self, ended: &mut Vec<usize>) -> Result<(), Ending> {
        for (index, entry) in self.entries.iter_mut().enumerate() {
            let Some(Lease { sequence, area }) = *entry else { continue };
            let state = self.producer.state(index, sequence);
            if state.map_err(violation)? != ClaimState::Released {
                continue;
            }
            let fence = self.fence.poll_released(index, sequence);
            if fence.map_err(|error| Ending::new(Reason::Failed, error.to_string()))? == FenceState::Ready {
                *entry = None;
                ended.push(area);
            }
        }
        Ok(())
    }

    /// Whether a publication would have to wait.
    pub fn is_full(&self) -> bool {
        !self.backlog.is_empty() || self.entries.iter().all(Option::is_some)
    }

    /// Whether no lease is left, and no message waits.
    pub fn is_idle(&self) -> bool {
        self.backlog.is_empty() && self.holds_nothing()
    }

    /// Finds an entry for the next publication. A `latest` reader loses its oldest untaken frame for it.
    pub fn vacate(&mut self, ended: &mut Vec<usize>) -> Result<Vacancy, Ending> {
        if !self.backlog.is_empty() {
            return Ok(Vacancy::Full);
        }
        if let Some(entry) = self.entries.iter().position(Option::is_none) {
            return Ok(Vacancy::Entry(entry));
        }
        let mut leases: Vec<(usize, Lease)> =
            self.entries.iter().enumerate().filter_map(|(index, lease)| Some((index, (*lease)?))).collect();
        leases.sort_unstable_by_key(|(_, lease)| lease.sequence);
        for (index, lease) in leases {
            if self.producer.revoke(index, lease.sequence).map_err(violation)? == Revocation::Revoked {
                self.lost += 1;
                ended.push(lease.area);
                self.entries[index] = None;
                return Ok(Vacancy::Entry(index));
            }
        }
        Ok(Vacancy::Full)
    }

    /// Takes back what the reader has not taken, and what it has released.
    pub fn revoke_untaken(&mut self, ended: &mut Vec<usize>) -> Result<(), Ending> {
        for (index, entry) in self.entries.iter_mut().enumerate() {
            let Some(Lease { sequence, area }) = *entry else { continue };
            if self.producer.revoke(index, sequence).map_err(violation)? == Revocation::Revoked {
                self.lost += 1;
                ended.push(area);
                *entry = None;
            }
        }
        self.collect_released(ended)
    }

    /// Whether no lease is left.
    pub fn holds_nothing(&self) -> bool {
        self.entries.iter().all(Option::is_none)
    }

    /// Takes all leases away, and returns their areas.
    pub fn take_leases(&mut self) -> Vec<usize> {
        self.entries.iter_mut().filter_map(Option::take).map(|lease| lease.area).collect()
    }

    pub fn announce_wait(&self) {
        self.producer.announce_wait();
    }

    pub fn end_wait(&self) {
        self.producer.end_wait();
    }

    /// For how long the exporter has waited for this reader.
    pub fn blocked_for(&mut self) -> Duration {
        self.blocked.get_or_insert_with(|| (Instant::now(), false)).0.elapsed()
    }

    pub fn stats(&self, next: u64) -> ReaderStats {
        let leases = self.entries.iter().enumerate().filter_map(|(index, lease)| Some((index, (*lease)?)));
        let (mut held, mut queued, mut oldest) = (0, 0, next);
        for (index, lease) in leases {
            match self.producer.state(index, lease.sequence) {
                Ok(ClaimState::Published) => {
                    queued += 1;
                    oldest = oldest.min(lease.sequence);
                }
                Ok(ClaimState::Taken) => held += 1,
                _ => {}
            }
        }
        ReaderStats {
            info: self.info.clone(),
            held,
            queued,
            sent: self.sent,
            lost: self.lost,
            lag: next - oldest,
        }
    }
}

fn violation(violation: crate::queue::Violation) -> Ending {
    Ending::new(Reason::Violation, violation.to_string())
}

/// A message as a packet; a payload that is too long for one goes into a sealed memory file beside it.
fn packet_of(message: &ToReader) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
    // Room for the header and the other fields.
    const INLINE: usize = MAX_MESSAGE - 1024;
    let sealed = |bytes: &[u8]| {
        let fd = memfd("frameshare-payload", bytes.len() as u64)?;
        let mapping = Words::from(Mapping::writable(&fd, bytes.len().next_multiple_of(8))?);
        crate::sys::store_bytes(&mapping, 0, bytes);
        drop(mapping);
        SealedAgainst::ResizingAndWriting.seal(&fd)?;
        Ok::<_, io::Error>((Payload::Sealed(bytes.len() as u64), Some(fd)))
    };
    let (message, fd) = match message {
        ToReader::Event { before, kind, payload: Payload::Inline(bytes) } if bytes.len() > INLINE => {
            let (payload, fd) = sealed(bytes)?;
            (&ToReader::Event { before: *before, kind: *kind, payload }, fd)
        }
        ToReader::Metadata { sequence, payload: Payload::Inline(bytes) } if bytes.len() > INLINE => {
            let (payload, fd) = sealed(bytes)?;
            (&ToReader::Metadata { sequence: *sequence, payload }, fd)
        }
        message => (message, None),
    };
    let packet = message.encode().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    Ok((packet, fd))
}
