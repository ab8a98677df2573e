//! The exporter's private ledger, and what else is shared by its threads.

use super::{
    Guard,
    config::Config,
    download::Downloads,
    generation::Generation,
    holds::Holds,
    link::{Link, Vacancy},
    notice::Notice,
    refusals::Refusals,
    slot::{AcquireError, Purpose, Slot},
};
use crate::{
    Interrupt,
    event::Event,
    fence::Signals,
    memory::{
        Allocation as _, MemoryError,
        choice::{self, Choice},
        foreign, frees_imports_first, local,
    },
    sys::{Mapping, SealedAgainst, Wake, Words, memfd, monotonic_ns},
};
use frameshare_cuda::stream::Stream;
use frameshare_protocol::{
    MemoryKind,
    message::{Format, Payload, Reason, ToReader},
    page::metadata_size,
};
use std::{
    any::Any,
    collections::BTreeMap,
    mem,
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

/// Why an exporter could not be made.
pub(super) type SetupError = Box<dyn std::error::Error + Send + Sync>;

impl Shared {
    pub fn new(config: Config, observer: Box<dyn Fn(Notice) + Send + Sync>) -> Result<Self, SetupError> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        Ok(Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            state: Mutex::new(State::new(config)?),
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
        let sleepers = mem::take(&mut state.sleepers);
        let look_wanted = mem::take(&mut state.look_wanted) && !state.looking;
        let service_needed = links_changed || look_wanted || !state.trash.is_empty();
        drop(state);
        for wake in sleepers {
            wake.ring();
        }
        if service_needed {
            self.service.set();
        }
        if links_changed {
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
    pub memory: Choice<MemoryKind>,
    /// Frames go to host memory for the time being, whatever was chosen.
    in_host: bool,
    pub signals: Signals,
    /// Tells this run of the stream from others of the same name.
    pub session: u64,
    /// Oldest first; the last of our own is the one that slots are taken from.
    pub generations: Vec<Generation>,
    next_generation: u32,
    /// The next slot starts a generation if its size differs from the present one's.
    renew: bool,
    /// The same for host slots beside the GPU's.
    renew_host: bool,
    pub links: Vec<Link>,
    /// Readers that are published to no more, but still hold frames, or memory that waits for them. What they hold
    /// stays reserved.
    pub leaving: Vec<Link>,
    /// Credit that was promised to a reader that is being admitted.
    pub promised: u32,
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
    pub refusals: Refusals,
    /// Readers came or went, or have messages that wait, or no longer have.
    pub links_changed: bool,
    /// Something was begun whose end the service thread has to look for.
    pub look_wanted: bool,
    /// It looks from time to time, without being woken.
    pub looking: bool,
    /// Some release fence has been looked at and was pending.
    pub fences_pending: bool,
    /// For readers that get host memory though the stream's is a GPU's.
    pub downloads: Option<Downloads>,
    /// What GPU work still uses.
    pub holds: Holds,
    /// Who must be woken.
    pub sleepers: Vec<Arc<Wake>>,
    /// What ended publications kept.
    dropped: Vec<Box<dyn Any + Send>>,
    /// What may wait for a GPU when it is dropped: for the service thread.
    pub trash: Vec<Box<dyn Any + Send>>,
}

impl State {
    fn new(config: Config) -> Result<Self, SetupError> {
        let size = metadata_size(config.max_slots);
        let metadata_fd = memfd("frameshare-metadata", size as u64)?;
        let metadata = Mapping::writable(&metadata_fd, size)?;
        SealedAgainst::ResizingAndWriting.seal(&metadata_fd)?;
        Ok(Self {
            memory: choice::memory(config.memory, config.gpu.as_ref())?,
            signals: Signals::new(config.gpu.as_ref())?,
            publications: (0..config.max_slots).map(|_| None).collect(),
            config,
            in_host: false,
            session: monotonic_ns(),
            generations: Vec::new(),
            next_generation: 1,
            renew: true,
            renew_host: true,
            links: Vec::new(),
            leaving: Vec::new(),
            promised: 0,
            next: 1,
            format: None,
            sticky: BTreeMap::new(),
            ended: false,
            closed: false,
            metadata: metadata.into(),
            metadata_fd,
            readers_total: 0,
            notices: Vec::new(),
            refusals: Refusals::default(),
            links_changed: false,
            look_wanted: false,
            looking: false,
            fences_pending: false,
            downloads: None,
            holds: Holds::default(),
            sleepers: Vec::new(),
            dropped: Vec::new(),
            trash: Vec::new(),
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

    /// A stream that had ended goes on.
    pub fn goes_on(&mut self) {
        self.ended = false;
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
    fn end_link(&mut self, index: usize, ending: &Ending) {
        let mut link = self.links.remove(index);
        link.say_goodbye(ending);
        self.note_removal(&link, ending);
        self.forget(link);
    }

    /// Publishes no more to a reader, and lets it release what it has taken in its own time.
    fn dismiss(&mut self, index: usize, ending: &Ending) {
        let mut link = self.links.remove(index);
        link.say_goodbye(ending);
        self.note_removal(&link, ending);
        let mut ended = Vec::new();
        let revoked = link.revoke_untaken(&mut ended);
        self.end_leases(ended);
        self.links_changed = true;
        match revoked {
            Ok(_) if !link.holds_nothing() => self.leaving.push(link),
            _ => self.forget(link),
        }
    }

    fn note_removal(&mut self, link: &Link, ending: &Ending) {
        let (reader, why) = (link.info.clone(), ending.text.clone());
        self.notices.push(Notice::ReaderRemoved { reader, reason: ending.reason, why });
    }

    /// Ends all leases of a link. It is kept only while memory waits for the reader to give up its imports.
    fn forget(&mut self, mut link: Link) {
        self.end_leases(link.take_leases());
        self.links_changed = true;
        if self.awaits(&link) {
            self.leaving.push(link);
        } else {
            self.trash.push(Box::new(link));
        }
    }

    /// Whether memory cannot be freed before this reader has given up its imports, or is gone; or events not be
    /// destroyed before it has hung up.
    fn awaits(&self, link: &Link) -> bool {
        let kind_of = |id: u32| self.generations.iter().find(|one| one.id == id).map(|one| one.kind);
        // What an opened event does is undefined once its creator has destroyed it.
        let shares_events = link.has_events() && !link.hung_up;
        shares_events
            || !link.process_is_gone && link.knows().any(|id| kind_of(id).is_some_and(frees_imports_first))
    }

    /// The connection of a reader is over, or the reader itself is.
    pub fn end_link_of(&mut self, id: u64, ending: &Ending, process_is_gone: bool) {
        if let Some(link) = self.links.iter_mut().find(|link| link.info.id == id) {
            link.hung_up(process_is_gone);
        }
        if let Some(index) = self.links.iter().position(|link| link.info.id == id) {
            self.end_link(index, ending);
        } else if let Some(index) = self.leaving.iter().position(|link| link.info.id == id) {
            let mut link = self.leaving.remove(index);
            link.hung_up(process_is_gone);
            self.forget(link);
        }
    }

    /// A reader says goodbye: it wants no more frames.
    pub fn let_go(&mut self, id: u64, ending: &Ending) {
        if let Some(index) = self.links.iter().position(|link| link.info.id == id) {
            self.links[index].said_goodbye = true;
            match ending.reason {
                // Its GPU context is lost, say: nothing that it holds will ever be released.
                Reason::Failed => self.end_link(index, ending),
                _ => self.dismiss(index, ending),
            }
        } else if let Some(link) = self.leaving.iter_mut().find(|link| link.info.id == id)
            && mem::replace(&mut link.said_goodbye, true)
        {
            // One that was sent away says it once itself.
            self.end_link_of(id, &Ending::new(Reason::Violation, "it said goodbye twice"), false);
        }
    }

    /// A reader has given up its imports of a generation.
    pub fn acknowledge(&mut self, id: u64, generation: u32) {
        let mut links = self.links.iter_mut().chain(&mut self.leaving);
        let link = links.find(|link| link.info.id == id);
        if link.is_some_and(|link| !link.forget_generation(generation)) {
            let text = format!("it gives up generation {generation}, which it was not asked to");
            return self.end_link_of(id, &Ending::new(Reason::Violation, text), false);
        }
        self.links_changed = true;
    }

    /// Ends the stream. What was published can still be taken: its slots are not used again.
    pub fn close(&mut self, reason: Reason, text: &str) {
        self.closed = true;
        for generation in &mut self.generations {
            generation.retired = true;
        }
        let ending = Ending { reason, text: text.into() };
        while !self.links.is_empty() {
            self.end_link(0, &ending);
        }
        for link in mem::take(&mut self.leaving) {
            self.forget(link);
        }
    }

    /// Ends the leases that readers have released, and retires generations that are used no more.
    ///
    /// True if some lease ended.
    pub fn reclaim(&mut self) -> bool {
        let mut ended = Vec::new();
        let mut pending = false;
        let timeout = self.config.fence_timeout;
        self.each_link(|link| {
            pending |= link.collect_released(&mut ended, timeout)?;
            Ok(())
        });
        for mut link in mem::take(&mut self.leaving) {
            match link.collect_released(&mut ended, timeout) {
                Ok(fences) if !link.holds_nothing() || self.awaits(&link) => {
                    pending |= fences;
                    self.leaving.push(link);
                }
                _ => self.forget(link),
            }
        }
        self.fences_pending = pending;
        let progress = !ended.is_empty();
        self.end_leases(ended);
        self.holds.collect(&mut self.dropped);
        if self.downloads.is_some() {
            self.deliver_downloads();
        }
        if self.generations.len() > 1 || self.closed || self.generations.iter().any(|one| one.retired) {
            self.retire();
        }
        progress
    }

    fn end_leases(&mut self, areas: Vec<usize>) {
        for area in areas {
            self.end_lease(area);
        }
    }

    /// Ends one hold on a publication: a reader's lease, a download's, or the publisher's own.
    pub fn end_lease(&mut self, area: usize) {
        let Some(publication) = &mut self.publications[area] else { return };
        publication.leases -= 1;
        if publication.leases == 0 {
            self.dropped.extend(publication.keep.take());
            self.publications[area] = None;
        }
    }

    /// Tells readers of old generations that only readers still refer to, and frees their slots.
    fn retire(&mut self) {
        let newest = |kind| self.generations.iter().rfind(|one| one.is_own(kind)).map(|one| one.id);
        // Of the kind that frames go to, and of what they are downloaded to.
        let current = [newest(self.kind()), self.downloads.as_ref().and_then(|_| newest(MemoryKind::Host))];
        for index in 0..self.generations.len() {
            let publications = &self.publications;
            let generation = &mut self.generations[index];
            let (id, kind) = (generation.id, generation.kind);
            let of = |slot| {
                let in_slot = |publication: &&Publication| {
                    publication.slot.0.generation == id && publication.slot.0.index == slot
                };
                publications.iter().flatten().filter(in_slot).count()
            };
            let old = !generation.is_foreign() && !current.contains(&Some(id));
            if old && !generation.retired && generation.is_held_by_publications_alone(of) {
                self.retire_generation(index);
            }
            let imported =
                self.links.iter().chain(&self.leaving).any(|link| link.knows().any(|known| known == id));
            let generation = &mut self.generations[index];
            if generation.retired && !(frees_imports_first(kind) && imported) {
                let unused = generation.take_unused();
                if !unused.is_empty() {
                    self.trash.push(Box::new(unused));
                }
            }
        }
        let closed = self.closed;
        self.generations
            .retain(|one| !one.is_empty() || (!closed && (current.contains(&Some(one.id)) || !one.retired)));
    }

    /// Tells readers that nothing more is published in a generation. Who keeps too much from being freed is cut off.
    fn retire_generation(&mut self, index: usize) {
        self.generations[index].retired = true;
        let (before, id) = (self.next, self.generations[index].id);
        let retired: BTreeMap<u32, u64> =
            self.generations.iter().filter(|one| one.retired).map(|one| (one.id, one.bytes())).collect();
        let limit = self.config.max_retired_bytes;
        self.each_link(|link| {
            let kept: u64 =
                link.knows().filter(|known| *known != id).filter_map(|known| retired.get(&known)).sum();
            if kept > limit {
                let text =
                    format!("it keeps {kept} bytes of retired memory from being freed, and may keep {limit}");
                return Err(Ending::new(Reason::LimitExceeded, text));
            }
            link.retire(before, id)
        });
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
        let kind = self.kind();
        let renew = mem::replace(&mut self.renew, false);
        self.renew_host |= renew;
        self.renew_generation(kind, needed, renew)?;
        let max = self.config.max_slots;
        let credit = self.credit();
        let publications = &self.publications;
        let current = self.generations.iter_mut().rfind(|one| one.is_open(kind));
        let Some(generation) = current else { return Err(AcquireError::Size(size)) };
        if purpose == Purpose::Pool && held_upstream(generation, publications) + credit + 2 >= max {
            return Err(AcquireError::Exhausted { max_slots: max });
        }
        let slot = generation.acquire(max, exporter)?;
        self.note_local(&slot, kind);
        Ok(slot)
    }

    /// A host slot for a download, if there is one.
    pub fn acquire_host(&mut self, size: u64, exporter: u64) -> Option<Slot> {
        let needed = size.max(1).checked_next_multiple_of(PAGE)?;
        let renew = mem::replace(&mut self.renew_host, false);
        self.renew_generation(MemoryKind::Host, needed, renew).ok()?;
        let generation = self.generations.iter_mut().rfind(|one| one.is_open(MemoryKind::Host))?;
        generation.acquire(self.config.max_slots, exporter).ok()
    }

    /// Starts a new generation of our own where the newest does not suit.
    fn renew_generation(&mut self, kind: MemoryKind, needed: u64, renew: bool) -> Result<(), MemoryError> {
        let present = self.generations.iter().rfind(|one| one.is_open(kind)).map_or(0, |one| one.slot_size);
        if needed > present || (renew && needed != present) {
            // Within one format sizes vary only where frames are plain bytes: leave room for longer ones.
            let slot_size = if renew || present == 0 { needed } else { needed.next_power_of_two() };
            let gpu = self.config.gpu.as_ref();
            self.generations.push(Generation::new(self.next_generation, slot_size, kind, gpu)?);
            self.next_generation += 1;
            self.retire();
        }
        Ok(())
    }

    /// Readers of this process use memory in place that they could not import.
    fn note_local(&self, slot: &Slot, kind: MemoryKind) {
        if !frees_imports_first(kind) {
            return;
        }
        let key = (self.session, slot.0.generation, slot.0.index);
        local::note(key, &slot.0.memory, self.config.gpu.as_ref());
    }

    /// A slot for memory that somebody else allocated: the one that it has, or a new one.
    pub fn adopt(
        &mut self,
        pointer: u64,
        owner: Box<dyn Any + Send>,
        exporter: u64,
    ) -> Result<(Slot, u64), AcquireError> {
        if self.closed {
            return Err(AcquireError::Closed);
        }
        let Some(gpu) = self.config.gpu.clone() else {
            let cause = "no GPU was given to share it on".into();
            return Err(MemoryError { doing: "share", size: 0, kind: MemoryKind::Legacy, cause }.into());
        };
        let buffer_id = foreign::buffer_id(&gpu, pointer)?;
        let open = |one: &Generation| one.is_foreign() && !one.retired;
        let known = self.generations.iter().filter(|one| open(one)).find_map(|one| one.adopted(buffer_id));
        let slot = match known {
            Some(slot) => slot,
            None => {
                let memory = foreign::Foreign::new(&gpu, pointer, owner)?;
                let size = memory.size();
                // The slots of a generation are of one size.
                let fits = self.generations.iter().position(|one| open(one) && one.slot_size == size);
                let index = fits.unwrap_or_else(|| {
                    self.generations.insert(0, Generation::foreign(self.next_generation, size));
                    self.next_generation += 1;
                    0
                });
                self.generations[index].adopt(memory, buffer_id, exporter)
            }
        };
        self.note_local(&slot, MemoryKind::Legacy);
        let start = match slot.address() {
            crate::memory::Address::Device(start) => start,
            crate::memory::Address::Host(_) => pointer,
        };
        Ok((slot, pointer.saturating_sub(start)))
    }

    /// The kind of memory that frames go to.
    pub fn kind(&self) -> MemoryKind {
        if self.in_host { MemoryKind::Host } else { self.memory.kind }
    }

    pub fn use_host_memory(&mut self, yes: bool) {
        self.renew |= mem::replace(&mut self.in_host, yes) != yes;
    }

    pub fn drop_after(&mut self, stream: &Stream, what: Box<dyn Any + Send>) -> frameshare_cuda::Result<()> {
        self.look_wanted = true;
        self.holds.add(stream, what)
    }

    /// Which reader cannot read adopted memory, and why.
    pub fn cannot_adopt(&self) -> Option<String> {
        self.links.iter().find_map(|link| {
            let info = &link.info;
            link.cannot_adopt
                .map(|why| format!("reader {} ({}, process {}): {why}", info.id, info.name, info.pid))
        })
    }

    /// Why a frame in this slot is not for every reader.
    pub fn not_for_all(&self, slot: &Slot) -> Option<String> {
        let mut foreign = self.generations.iter().filter(|one| one.is_foreign());
        foreign.any(|one| one.id == slot.0.generation).then(|| self.cannot_adopt()).flatten()
    }

    /// Gives memory back that was adopted: its owners are told when no reader imports it any more.
    pub fn retire_adopted(&mut self) {
        for index in 0..self.generations.len() {
            if self.generations[index].is_foreign() && !self.generations[index].retired {
                self.retire_generation(index);
            }
        }
        self.retire();
    }

    /// The credits of all readers.
    pub fn credit(&self) -> u32 {
        let links = self.links.iter().chain(self.leaving.iter().filter(|link| !link.holds_nothing()));
        self.promised + links.map(|link| link.info.credit).sum::<u32>()
    }

    /// How much credit is left for a newcomer.
    pub fn credit_left(&mut self) -> u32 {
        let kind = self.kind();
        let current = self.generations.iter_mut().rfind(|one| one.is_own(kind));
        let held = current.map_or(0, |generation| held_upstream(generation, &self.publications));
        self.config.max_slots.saturating_sub(2 + self.credit() + held)
    }

    /// Notes a publication that nobody has a lease on yet, and returns its metadata area.
    pub fn open_publication(&mut self, slot: Slot, keep: Option<Box<dyn Any + Send>>) -> Option<usize> {
        let Some(area) = self.publications.iter().position(Option::is_none) else {
            self.dropped.extend(keep);
            return None;
        };
        self.look_wanted |= keep.is_some() && self.config.gpu.is_some();
        self.publications[area] = Some(Publication { slot, leases: 1, keep });
        Some(area)
    }

    /// Counts one more lease on a publication.
    pub fn add_lease(&mut self, area: usize) {
        if let Some(publication) = &mut self.publications[area] {
            publication.leases += 1;
        }
    }

    /// Whether something outlives the stream: readers' imports, or what GPU work uses.
    pub fn has_more_to_do(&self) -> bool {
        !self.leaving.is_empty() || !self.holds.is_empty()
    }

    /// Whether it takes calls of the driver to look at the pending fences again: words are just read.
    pub fn asks_driver(&self) -> bool {
        self.fences_pending && self.links.iter().any(Link::has_events)
    }

    /// Whether a GPU is at work on what nobody would announce.
    pub fn gpu_is_busy(&self) -> bool {
        self.fences_pending
            || !self.holds.is_empty()
            || self.downloads.as_ref().is_some_and(|downloads| !downloads.is_empty())
    }

    /// Whether somebody upstream may wait for what a publication keeps.
    pub fn keeps_something(&self) -> bool {
        self.config.gpu.is_some()
            && self.publications.iter().flatten().any(|publication| publication.keep.is_some())
    }

    /// Makes room for a lease in a link, whatever its policy demands; the areas of leases that ended for it are
    /// taken back.
    pub fn make_room(&mut self, index: usize) -> Result<Option<usize>, Ending> {
        let mut ended = Vec::new();
        let vacancy = self.links[index].vacate(&mut ended);
        self.end_leases(ended);
        Ok(match vacancy? {
            Vacancy::Entry(entry) => Some(entry),
            Vacancy::Full => None,
        })
    }
}

/// How many slots of a generation are held by others than publications.
fn held_upstream(generation: &mut Generation, publications: &[Option<Publication>]) -> u32 {
    let id = generation.id;
    generation.count_held(|index| {
        let mut slots = publications.iter().flatten().map(|publication| &publication.slot.0);
        slots.any(|slot| slot.generation == id && slot.index == index)
    })
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
