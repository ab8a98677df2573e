//! The exporter's private ledger, and what else is shared by its threads.

use super::{
    Guard,
    config::Config,
    generation::Generation,
    link::{Link, Vacancy},
    notice::Notice,
    slot::{AcquireError, Purpose, Slot},
};
use crate::{
    Interrupt,
    event::Event,
    memory::Allocator,
    sys::{Mapping, SealedAgainst, Words, memfd, monotonic_ns},
};
use frameshare_protocol::{
    message::{Format, Payload, Reason, ToReader},
    page::metadata_size,
};
use std::{
    any::Any,
    collections::BTreeMap,
    io, mem,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// Slots are allocated in whole pages.
const PAGE: u64 = 4096;

/// What the exporter's threads share.
pub(super) struct Shared {
    /// Tells the slots of one exporter from another's.
    pub id: u64,
    state: Mutex<State>,
    observer: Box<dyn Fn(Notice) + Send + Sync>,
    /// Wakes the service thread: there is something new to look after.
    pub service: Interrupt,
    /// Wakes the publishing thread: readers came or went.
    pub progress: Interrupt,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Shared {
    pub fn new(
        config: Config,
        allocator: Arc<dyn Allocator>,
        observer: Box<dyn Fn(Notice) + Send + Sync>,
    ) -> io::Result<Self> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        Ok(Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            state: Mutex::new(State::new(config, allocator)?),
            observer,
            service: Interrupt::new()?,
            progress: Interrupt::new()?,
        })
    }

    pub fn lock(&self) -> Guard<'_> {
        // A panic elsewhere leaves numbers behind that are each valid; going on is better than failing everyone.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `f` with the state locked, and afterwards what it left to be done with the state unlocked.
    pub fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let result = f(&mut state);
        self.finish(state);
        result
    }

    /// Unlocks the state, then tells the observer and drops what ended publications kept alive.
    pub fn finish(&self, mut state: Guard<'_>) {
        let notices = mem::take(&mut state.notices);
        let dropped = mem::take(&mut state.dropped);
        let links_changed = mem::take(&mut state.links_changed);
        drop(state);
        if links_changed {
            self.service.set();
            self.progress.set();
        }
        drop(dropped);
        notices.into_iter().for_each(&self.observer);
    }
}

/// A publication that some reader still has a lease on.
pub(super) struct Publication {
    slot: Slot,
    leases: u32,
    keep: Option<Box<dyn Any + Send>>,
}

/// Everything that the exporter knows.
pub(super) struct State {
    pub config: Config,
    pub allocator: Arc<dyn Allocator>,
    /// Tells this run of the stream from others of the same name.
    pub session: u64,
    /// Oldest first; the last is the one that slots are taken from.
    pub generations: Vec<Generation>,
    next_generation: u32,
    /// The next slot starts a generation if its size differs from the present one's.
    renew: bool,
    pub links: Vec<Link>,
    /// Readers that are published to no more, but still hold frames. Their credit stays reserved.
    pub leaving: Vec<Link>,
    /// By metadata area.
    publications: Vec<Option<Publication>>,
    /// The sequence number of the next publication.
    pub next: u64,
    format: Option<Format>,
    sticky: BTreeMap<u32, Vec<u8>>,
    ended: bool,
    pub closed: bool,
    pub metadata: Words,
    pub metadata_fd: OwnedFd,
    pub readers_total: u64,
    pub notices: Vec<Notice>,
    /// Readers came or went, or have messages that wait, or no longer have.
    pub links_changed: bool,
    /// What ended publications kept.
    dropped: Vec<Box<dyn Any + Send>>,
}

impl State {
    fn new(config: Config, allocator: Arc<dyn Allocator>) -> io::Result<Self> {
        let size = metadata_size(config.max_slots);
        let metadata_fd = memfd("frameshare-metadata", size as u64)?;
        let metadata = Mapping::writable(&metadata_fd, size)?;
        SealedAgainst::ResizingAndWriting.seal(&metadata_fd)?;
        Ok(Self {
            publications: (0..config.max_slots).map(|_| None).collect(),
            config,
            allocator,
            session: monotonic_ns(),
            generations: Vec::new(),
            next_generation: 1,
            renew: true,
            links: Vec::new(),
            leaving: Vec::new(),
            next: 1,
            format: None,
            sticky: BTreeMap::new(),
            ended: false,
            closed: false,
            metadata: metadata.into(),
            metadata_fd,
            readers_total: 0,
            notices: Vec::new(),
            links_changed: false,
            dropped: Vec::new(),
        })
    }

    pub fn set_format(&mut self, format: Format) {
        if self.format.as_ref() == Some(&format) {
            return;
        }
        self.renew = true;
        self.send_all(&ToReader::Format { before: self.next, format: format.clone() });
        self.format = Some(format);
    }

    pub fn send_event(&mut self, event: Event) {
        let payload = Payload::Inline(event.payload);
        let message = ToReader::Event { before: self.next, kind: event.kind, payload };
        self.send_all(&message);
        if let (true, ToReader::Event { payload: Payload::Inline(bytes), .. }) = (event.sticky, message) {
            self.sticky.insert(event.kind, bytes);
        }
    }

    pub fn end_of_stream(&mut self) {
        if !mem::replace(&mut self.ended, true) {
            self.send_all(&ToReader::EndOfStream { before: self.next });
        }
    }

    /// What a reader has to know that joins now, besides the slots that it meets.
    pub fn introduction(&self) -> Vec<ToReader> {
        let before = self.next;
        let format = self.format.clone().map(|format| ToReader::Format { before, format });
        let sticky = self.sticky.iter().map(|(kind, bytes)| {
            let payload = Payload::Inline(bytes.clone());
            ToReader::Event { before, kind: *kind, payload }
        });
        let end = self.ended.then_some(ToReader::EndOfStream { before });
        format.into_iter().chain(sticky).chain(end).collect()
    }

    fn send_all(&mut self, message: &ToReader) {
        self.each_link(|link| link.send(message));
    }

    /// Does something with every link; where it fails, the link ends.
    pub fn each_link(&mut self, mut f: impl FnMut(&mut Link) -> Result<(), Ending>) {
        let mut index = 0;
        while index < self.links.len() {
            let waited = self.links[index].has_backlog();
            match f(&mut self.links[index]) {
                Ok(()) => {
                    self.links_changed |= self.links[index].has_backlog() != waited;
                    index += 1;
                }
                Err(ending) => self.drop_link(index, &ending),
            }
        }
    }

    /// Ends a link as its ending demands: a reader that was slow may still be reading, one that broke the rules or
    /// is gone is not waited for.
    pub fn drop_link(&mut self, index: usize, ending: &Ending) {
        match ending.reason {
            Reason::TooSlow | Reason::LimitExceeded => self.dismiss(index, ending),
            _ => self.end_link(index, ending),
        }
    }

    /// Ends the link of a reader that is gone or cannot be trusted: all its leases end at once.
    pub fn end_link(&mut self, index: usize, ending: &Ending) {
        let mut link = self.links.remove(index);
        link.say_goodbye(ending);
        self.notices.push(Notice::ReaderRemoved { reader: link.info.clone(), why: ending.text.clone() });
        self.forget(link);
    }

    /// Publishes no more to a reader, and lets it release what it has taken in its own time.
    fn dismiss(&mut self, index: usize, ending: &Ending) {
        let mut link = self.links.remove(index);
        link.say_goodbye(ending);
        self.notices.push(Notice::ReaderRemoved { reader: link.info.clone(), why: ending.text.clone() });
        let mut ended = Vec::new();
        let revoked = link.revoke_untaken(&mut ended);
        self.end_leases(ended);
        match revoked {
            Ok(()) if !link.holds_nothing() => self.leaving.push(link),
            _ => self.forget(link),
        }
        self.links_changed = true;
    }

    fn forget(&mut self, mut link: Link) {
        self.end_leases(link.take_leases());
        self.links_changed = true;
    }

    /// Ends the link of the reader with this number, if it is still there.
    pub fn end_link_of(&mut self, id: u64, ending: &Ending) {
        if let Some(index) = self.links.iter().position(|link| link.info.id == id) {
            self.end_link(index, ending);
        } else if let Some(index) = self.leaving.iter().position(|link| link.info.id == id) {
            let link = self.leaving.remove(index);
            self.forget(link);
        }
    }

    /// A reader says goodbye: it wants no more frames.
    pub fn let_go(&mut self, id: u64, ending: &Ending) {
        if let Some(index) = self.links.iter().position(|link| link.info.id == id) {
            self.dismiss(index, ending);
        }
    }

    /// Ends the stream. What was published can still be taken: its slots are not used again.
    pub fn close(&mut self, reason: Reason, text: &str) {
        self.closed = true;
        self.leaving.clear();
        while !self.links.is_empty() {
            self.end_link(0, &Ending { reason, text: text.into() });
        }
    }

    /// Ends the leases that readers have released, and retires generations that are used no more.
    pub fn reclaim(&mut self) {
        let mut ended = Vec::new();
        self.each_link(|link| link.collect_released(&mut ended));
        for mut link in std::mem::take(&mut self.leaving) {
            match link.collect_released(&mut ended) {
                Ok(()) if !link.holds_nothing() => self.leaving.push(link),
                _ => self.forget(link),
            }
        }
        self.end_leases(ended);
        if self.generations.len() > 1 {
            self.retire();
        }
    }

    fn end_leases(&mut self, areas: Vec<usize>) {
        for area in areas {
            self.end_lease(area);
        }
    }

    fn end_lease(&mut self, area: usize) {
        let Some(publication) = &mut self.publications[area] else { return };
        publication.leases -= 1;
        if publication.leases == 0 {
            self.dropped.extend(publication.keep.take());
            self.publications[area] = None;
        }
    }

    /// Tells readers of old generations that only readers still refer to, and frees their slots.
    fn retire(&mut self) {
        let current = self.generations.len() - 1;
        for index in 0..current {
            let publications = &self.publications;
            let generation = &mut self.generations[index];
            let id = generation.id;
            let of = |slot| {
                let in_slot = |publication: &&Publication| {
                    publication.slot.0.generation == id && publication.slot.0.index == slot
                };
                publications.iter().flatten().filter(in_slot).count()
            };
            if !generation.retired && generation.is_held_by_publications_alone(of) {
                generation.retired = true;
                let before = self.next;
                self.each_link(|link| link.retire(before, id));
            }
            let generation = &mut self.generations[index];
            if generation.retired {
                generation.free_unused();
            }
        }
        let current = self.generations[current].id;
        self.generations.retain(|generation| generation.id == current || !generation.is_empty());
    }

    pub fn acquire(&mut self, size: u64, purpose: Purpose, exporter: u64) -> Result<Slot, AcquireError> {
        if self.closed {
            return Err(AcquireError::Closed);
        }
        let needed = size.max(1).checked_next_multiple_of(PAGE).ok_or(AcquireError::Size(size))?;
        if needed > frameshare_protocol::limits::MAX_SLOT_SIZE {
            return Err(AcquireError::Size(size));
        }
        self.reclaim();
        let present = self.generations.last().map_or(0, |generation| generation.slot_size);
        let renew = mem::replace(&mut self.renew, false);
        if needed > present || (renew && needed != present) {
            // Within one format sizes vary only where frames are plain bytes: leave room for longer ones.
            let slot_size = if renew { needed } else { needed.next_power_of_two() };
            self.generations.push(Generation::new(self.next_generation, slot_size));
            self.next_generation += 1;
            self.retire();
        }
        let max = self.config.max_slots;
        let credit = self.credit();
        let Some(generation) = self.generations.last_mut() else { return Err(AcquireError::Size(size)) };
        if purpose == Purpose::Pool {
            let (publications, id) = (&self.publications, generation.id);
            let published = |index| {
                let slots = publications.iter().flatten().map(|publication| &publication.slot.0);
                slots.into_iter().any(|slot| slot.generation == id && slot.index == index)
            };
            if generation.count_held(published) + credit + 2 >= max {
                return Err(AcquireError::Exhausted { max_slots: max });
            }
        }
        generation.acquire(max, exporter, &*self.allocator)
    }

    /// The credits of all readers.
    pub fn credit(&self) -> u32 {
        self.links.iter().chain(&self.leaving).map(|link| link.info.credit).sum()
    }

    /// How much credit is left for a newcomer.
    pub fn credit_left(&mut self) -> u32 {
        let publications = &self.publications;
        let held = self.generations.last_mut().map_or(0, |generation| {
            let id = generation.id;
            generation.count_held(|index| {
                let slots = publications.iter().flatten().map(|publication| &publication.slot.0);
                slots.into_iter().any(|slot| slot.generation == id && slot.index == index)
            })
        });
        self.config.max_slots.saturating_sub(2 + self.credit() + held)
    }

    /// Notes a publication that nobody has a lease on yet, and returns its metadata area.
    pub fn open_publication(&mut self, slot: Slot, keep: Option<Box<dyn Any + Send>>) -> Option<usize> {
        let Some(area) = self.publications.iter().position(Option::is_none) else {
            self.dropped.extend(keep);
            return None;
        };
        self.publications[area] = Some(Publication { slot, leases: 1, keep });
        Some(area)
    }

    /// Counts one more lease on a publication.
    pub fn add_lease(&mut self, area: usize) {
        if let Some(publication) = &mut self.publications[area] {
            publication.leases += 1;
        }
    }

    /// Ends the publisher's own hold on a publication.
    pub fn publication_is_out(&mut self, area: usize) {
        self.end_lease(area);
    }

    /// A stream that had ended goes on.
    pub fn goes_on(&mut self) {
        self.ended = false;
    }

    /// Makes room for a lease in a link, whatever its policy demands; the areas of leases that ended for it are
    /// taken back.
    pub fn make_room(&mut self, index: usize) -> Result<Option<usize>, Ending> {
        let mut ended = Vec::new();
        let vacancy = self.links[index].vacate(&mut ended)?;
        self.end_leases(ended);
        Ok(match vacancy {
            Vacancy::Entry(entry) => Some(entry),
            Vacancy::Full => None,
        })
    }
}

/// Why a link ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ending {
    pub reason: Reason,
    pub text: String,
}

impl Ending {
    pub fn new(reason: Reason, text: impl Into<String>) -> Self {
        Self { reason, text: text.into() }
    }
}
