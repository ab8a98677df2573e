// SPDX-License-Identifier: MIT OR Apache-2.0

//! A simulated exporter: its lock, its waits, and the turns of its service thread. Core
//! decides for it.

use super::{
    channel::{Channel, File, Interrupt, Received, Shares, WakeWord},
    files::Files,
    gpu::{Fences, Gpu, Signals, Written},
    memory::Memory,
    outcome::{self, Outcome},
    process,
    record::{KeptAlive, Record},
    rules,
    system::{Connection, Shortages, Simulated, Slot, instant, time_of},
    words::SharedPage,
};
use crate::{
    Process,
    task::{block, chance, is_dying, now, pause, step},
    time::Time,
    trace,
};
use frameshare_core::{
    Drained,
    exporter::{
        accounts,
        ending::Ending,
        limits::Limits,
        link::{self, Delivery, Link, Packet, Start},
        parts::{Content, Urgency},
        peer::Peer,
        service::{self, Watched, ending_of},
        slot::{NoSlot, Purpose, Vacancy},
        state::{Attempt, Left, State, Turn},
        system::Account,
        unit::Unit,
        unpublished::{NotPublished, Unpublished},
        wait::{Awaited, Plan, Wait},
    },
    selected::Selected,
};
use frameshare_protocol::{
    Descriptor, FenceKind, MemoryKind, Sequence,
    kept::RECORD,
    limits::METADATA_AREA,
    message::{EVENT_HANDLE, Hello, Reason, ToReader, Welcome},
    page,
};
use frameshare_queue::Producer;
use std::{
    cell::{Cell, RefCell, RefMut},
    collections::{BTreeMap, VecDeque},
    ops::{Deref, DerefMut},
    rc::Rc,
    sync::Arc,
    time::Duration,
};

/// Size in bytes of the least slot.
const PAGE: u64 = 4096;
/// The shortest and the longest interval of polls.
const FASTEST: Duration = Duration::from_micros(50);
const SLOWEST: Duration = Duration::from_millis(1);

/// A connection request.
pub struct Request {
    /// The sockets.
    pub channel: Channel,
    /// The reader's process and user, as the kernel reports them.
    pub peer: Peer,
    /// Its Hello.
    pub hello: Hello,
}

/// An exporter. Clones share it.
#[derive(Clone)]
pub struct Exporter(Rc<Shared>);

struct Shared {
    is_locked: Cell<bool>,
    /// Empty once the exporter is dropped.
    state: RefCell<Option<State<Simulated>>>,
    service: Service,
    requests: RefCell<VecDeque<Request>>,
    /// The word of each user's readers.
    words: RefCell<BTreeMap<u32, WakeWord>>,
    record: Rc<Record>,
    kind: MemoryKind,
    fence: FenceKind,
    shortages: Shortages,
    whole_descriptors: bool,
    inspect: fn(&State<Simulated>),
}

/// When the service thread turns.
#[derive(Default)]
struct Service {
    is_woken: Cell<bool>,
    within: Cell<Option<Time>>,
    /// Put off by each publication.
    after: Cell<Option<Time>>,
    is_stopped: Cell<bool>,
    is_over: Cell<bool>,
}

/// The settings of an exporter.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The kind of memory of its frames.
    pub kind: MemoryKind,
    /// The kind of fence for readers on a GPU.
    pub fence: FenceKind,
    /// Its limits.
    pub limits: Limits,
    /// The calls that the system refuses.
    pub shortages: Shortages,
    /// Descriptors are accessed without preemption: that they may be torn is for loom to show.
    pub whole_descriptors: bool,
    /// Called with the state before each unlock.
    pub inspect: fn(&State<Simulated>),
}

/// The locked state. Dropping it does what the changes leave to be done.
pub struct Guard<'a> {
    shared: &'a Shared,
    state: Option<RefMut<'a, State<Simulated>>>,
}

impl Deref for Guard<'_> {
    type Target = State<Simulated>;

    fn deref(&self) -> &State<Simulated> {
        self.state.as_ref().expect("locked until dropped")
    }
}

impl DerefMut for Guard<'_> {
    fn deref_mut(&mut self) -> &mut State<Simulated> {
        self.state.as_mut().expect("locked until dropped")
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let Some(mut state) = self.state.take() else { return };
        if is_dying() {
            return;
        }
        (self.shared.inspect)(&state);
        rules::check(&state, &self.shared.record, self.shared.shortages.descriptors > 0);
        let unlocked = state.unlock();
        if unlocked.rest.as_ref().is_some_and(|rest| rest.change.is_some()) {
            self.shared.record.note_act();
        }
        drop(state);
        self.shared.is_locked.set(false);
        step("unlock");
        if let Some(sleepers) = unlocked.sleepers {
            sleepers.wake();
        }
        let service = &self.shared.service;
        if unlocked.polls.at_once {
            service.wake();
        } else if let Some(time) = unlocked.polls.within {
            let at = now() + time;
            service.within.set(Some(service.within.get().map_or(at, |before| before.min(at))));
        }
        if let Some(time) = unlocked.polls.after_publication {
            service.after.set(Some(now() + time));
        }
        if let Some(rest) = unlocked.rest {
            rest.notices.iter().for_each(outcome::note);
            let told = rest.notices.iter().map(|notice| (now(), notice.clone()));
            self.shared.record.notices.borrow_mut().extend(told);
            rest.notices.iter().for_each(|notice| trace!("notice: {notice:?}"));
            if rest.change.is_some() || rest.has_resources {
                service.wake();
            }
            rest.change.iter().flatten().for_each(|waiter| {
                step("interrupt a thread");
                waiter.set();
            });
            drop(rest.dropped);
        }
    }
}

impl Service {
    fn wake(&self) {
        self.is_woken.set(true);
    }
}

/// The reason why a call of the application did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// Nothing can be done in time.
    TimedOut,
    /// There is no memory.
    NoMemory,
    /// The stream is closed.
    Closed,
    /// The frame cannot be published where it is.
    InPlace,
    /// The frame's memory is retired.
    Retired,
}

/// A frame to be published.
pub struct Frame<'a> {
    /// Its slot.
    pub slot: &'a Slot,
    /// Its writer.
    pub written: Written<'a>,
    /// Its tag.
    pub tag: u64,
    /// Its dependency on others.
    pub unit: Unit,
    /// Bytes of metadata.
    pub metadata: usize,
    /// Only lossless readers get it.
    pub is_late: bool,
}

impl Exporter {
    /// An exporter in this process.
    pub fn new(process: Process, settings: &Settings, record: &Rc<Record>) -> Self {
        let Settings { kind, fence, limits, shortages, whole_descriptors, inspect } = settings.clone();
        let metadata = vec![Vec::new(); limits.max_slots as usize];
        let files = Files::new(limits.max_retired_bytes, record.allocated.clone(), record.careless.clone());
        let gpu = Gpu::new(if kind.is_gpu() { shortages.gpu } else { 0 });
        let signals = Signals::new(gpu.clone());
        let (device, local, recycled) = (None, RefCell::default(), 0);
        let system = Simulated { process, kind, gpu, shortages, files, metadata, device, local, recycled };
        let memory = Selected { kind, why: String::new() };
        Self(Rc::new(Shared {
            is_locked: Cell::new(false),
            state: RefCell::new(Some(State::new(system, limits, memory, signals))),
            service: Service::default(),
            requests: RefCell::default(),
            words: RefCell::default(),
            record: record.clone(),
            kind,
            fence,
            shortages,
            whole_descriptors,
            inspect,
        }))
    }

    /// Asks for admission.
    pub fn connect(&self, request: Request) {
        step("connect");
        if self.peek_over() {
            request.channel.close_exporter();
        } else if !is_dying() {
            self.0.requests.borrow_mut().push_back(request);
        }
    }

    /// Locks the state.
    pub fn lock(&self) -> Guard<'_> {
        self.0.lock()
    }

    /// Runs `f` with the state locked.
    pub fn with<T>(&self, f: impl FnOnce(&mut State<Simulated>) -> T) -> T {
        f(&mut self.lock())
    }

    /// Whether the service thread has ended.
    pub fn peek_over(&self) -> bool {
        self.0.service.is_over.get()
    }

    /// Drops the state, with all that it still holds.
    pub fn drop_state(&self) {
        drop(self.0.state.take());
    }

    /// Closes the stream. The service thread goes on while memory waits for readers.
    pub fn close(&self) {
        self.with(|state| state.close(Reason::Stopped, "the exporter has stopped"));
        self.0.service.is_stopped.set(true);
        self.0.service.wake();
    }

    /// Returns a free slot of at least `size` bytes.
    ///
    /// # Errors
    /// [`Failed`].
    pub fn acquire(&self, size: u64, purpose: Purpose, limit: Option<Duration>) -> Result<Slot, Failed> {
        let until = limit.map(|limit| now() + limit);
        loop {
            let why = match self.obtain(|state| state.place(size, purpose)) {
                Ok(slot) => return Ok(slot),
                Err(Failed::Closed) => return Err(Failed::Closed),
                Err(why) => why,
            };
            if purpose == Purpose::Copy {
                return self.wait_for_slot(size, why, until);
            }
            if !self.wait_for_pool_slot(size, why, until)? {
                return Err(why);
            }
        }
    }

    fn obtain(
        &self,
        place: impl Fn(&mut State<Simulated>) -> Result<Vacancy<Simulated>, NoSlot<Simulated>>,
    ) -> Result<Slot, Failed> {
        loop {
            let generations = self.with(|state| state.slots().generations().len());
            let unallocated = match self.with(&place) {
                Ok(Vacancy::Free(slot)) => return Ok(slot),
                Ok(Vacancy::Unallocated(slot)) => slot,
                Err(NoSlot::Exhausted { .. } | NoSlot::Size(_)) => return Err(Failed::TimedOut),
                Err(NoSlot::Memory(())) => return Err(Failed::NoMemory),
                Err(NoSlot::Closed) => return Err(Failed::Closed),
            };
            if self.with(|state| state.slots().generations().len()) > generations {
                Outcome::Renewed.reach();
            }
            let kind = unallocated.allocator.kind();
            let allocated = self.with(|state| state.system().allocate(kind, unallocated.slot_size));
            let Some(memory) = allocated else {
                Outcome::NoMemory.reach();
                if self.with(|state| state.evict_heaviest()) {
                    continue;
                }
                return Err(Failed::NoMemory);
            };
            // Meanwhile another thread may have made the last slot, or begun a generation.
            if let Some(slot) = self.with(|state| state.add(&unallocated, memory.clone())) {
                return Ok(slot);
            }
            memory.file.iter().for_each(|file| file.end_slot());
        }
    }

    fn wait_for_slot(&self, size: u64, why: Failed, until: Option<Time>) -> Result<Slot, Failed> {
        Outcome::WaitedForSlot.reach();
        let (timeout, has_slots) = self.with(|state| (state.limits().reader_timeout, state.has_slots(size)));
        if !has_slots {
            return Err(why);
        }
        let given_up = now() + timeout * 2;
        let until = until.map_or(given_up, |until| until.min(given_up));
        let slot = |state: &mut State<Simulated>| {
            if state.is_closed() { Some(None) } else { state.reuse_slot(size).map(Some) }
        };
        match self.wait_until(Some(until), Awaited::Slot, slot) {
            Some(Some(slot)) => {
                Outcome::FoundSlot.reach();
                Ok(slot)
            }
            Some(None) => Err(Failed::Closed),
            None => {
                Outcome::NoSlot.reach();
                Err(why)
            }
        }
    }

    fn wait_for_pool_slot(&self, size: u64, why: Failed, until: Option<Time>) -> Result<bool, Failed> {
        let is_full = why == Failed::TimedOut;
        if !is_full && !self.with(|state| state.has_slots(size)) {
            return Ok(false);
        }
        let is_useful = |state: &mut State<Simulated>| match state.place(size, Purpose::Pool) {
            Ok(Vacancy::Unallocated(_)) => is_full.then_some(()),
            Err(NoSlot::Exhausted { .. } | NoSlot::Memory(())) => None,
            Ok(Vacancy::Free(_)) | Err(_) => Some(()),
        };
        Ok(self.wait_until(until, Awaited::Slot, is_useful).is_some())
    }

    /// Returns the slot of memory of another component.
    ///
    /// # Errors
    /// [`Failed::Closed`].
    pub fn adopt(&self, memory: &Memory, id: u64) -> Result<Slot, Failed> {
        let (kind, size) = (memory.kind(), memory.size());
        let adopted = self.with(|state| state.adopt(kind, memory.clone().into(), size, id));
        adopted.map_err(|_| Failed::Closed)
    }

    /// Publishes a frame.
    ///
    /// # Errors
    /// [`Failed`].
    pub fn publish(&self, frame: &Frame<'_>, limit: Option<Duration>) -> Result<Sequence, Failed> {
        use frameshare_core::exporter::system::Slot as _;
        let until = limit.map(|limit| now() + limit);
        let metadata = vec![frame.tag as u8; frame.metadata];
        let descriptor = Descriptor {
            slot: frame.slot.id(),
            size: PAGE,
            media_offset: Some(frame.tag),
            ..Descriptor::default()
        };
        let content = (frame.unit != Unit::Whole)
            .then(|| self.with(|state| state.keeps_unit(frame.unit, PAGE, frame.metadata)))
            .filter(|keeps| *keeps)
            .map(|_| Arc::new(Content { metadata: metadata.clone().into(), bytes: Box::default() }));
        let mut unpublished = Unpublished {
            slot: frame.slot,
            written: frame.written,
            unit: frame.unit,
            metadata: &metadata,
            arrived: None,
            late_after: frame.is_late.then_some(0),
            keep: Some(Box::new(KeptAlive::new(&self.0.record))),
            descriptor,
            content,
            target: None,
            was_target_sought: false,
            is_handed_out: false,
        };
        let published = self.try_publish(&mut unpublished, until);
        if !unpublished.is_handed_out {
            self.abandon(frame, unpublished.keep.take());
        }
        if let Ok(sequence) = published {
            Outcome::Published.reach();
            trace!("published frame {sequence} with tag {}", frame.tag);
        }
        published
    }

    /// Gives up a frame: its slot is in use until the work that writes it is done.
    fn abandon(&self, frame: &Frame<'_>, keep: Option<Box<dyn std::any::Any + Send>>) {
        let held = Box::new((frame.slot.clone(), keep));
        self.with(|state| match frame.written {
            Written::By(work) => state.drop_after(work.clone(), held),
            Written::Cpu => state.deferred_mut().drop_user_data([held as Box<_>]),
        });
    }

    fn try_publish(
        &self,
        unpublished: &mut Unpublished<'_, Simulated>,
        until: Option<Time>,
    ) -> Result<Sequence, Failed> {
        let tag = unpublished.descriptor.media_offset.unwrap_or_default();
        loop {
            // Before it is handed out: readers may take it at once.
            let (mut attempt, polls) = {
                let mut state = self.lock();
                self.0.expect(&state, tag);
                state.try_at_once(unpublished, self.0.kind.is_gpu())
            };
            if polls {
                self.with(|state| state.reclaim());
            }
            if matches!(attempt, Attempt::NoRoom) {
                Outcome::WaitedForRoom.reach();
                let found = self.wait_until(until, Awaited::Room, |state| {
                    self.0.expect(state, tag);
                    state.try_with_room(unpublished)
                });
                attempt = found.unwrap_or(Attempt::NoRoom);
            }
            match attempt {
                Attempt::Ended(Ok(sequence)) => return Ok(sequence),
                Attempt::Ended(Err(why)) => {
                    return Err(match *why {
                        NotPublished::Retired => Failed::Retired,
                        NotPublished::WouldWait | NotPublished::NotForAll { .. } => Failed::InPlace,
                        _ => Failed::Closed,
                    });
                }
                Attempt::NeedsTarget => {
                    unpublished.target = self.wait_for_target(until)?;
                    unpublished.was_target_sought = true;
                }
                Attempt::NoRoom => return Err(Failed::TimedOut),
            }
        }
    }

    /// Returns a host slot for the download of a frame; `None` if it is not downloaded.
    fn wait_for_target(&self, until: Option<Time>) -> Result<Option<Slot>, Failed> {
        let given_up = now() + self.with(|state| state.limits().reader_timeout) * 2;
        loop {
            if let Ok(slot) = self.obtain(|state| state.place_host(PAGE)) {
                return Ok(Some(slot));
            }
            let is_free = |state: &mut State<Simulated>| {
                let is_free = matches!(state.place_host(PAGE), Ok(Vacancy::Free(_)));
                (is_free || !state.must_download() || !state.has_host_slots()).then_some(is_free)
            };
            let patience = until.map_or(given_up, |until| until.min(given_up));
            match self.wait_until(Some(patience), Awaited::Slot, is_free) {
                Some(true) => {}
                None if until.is_some_and(|until| now() >= until) => return Err(Failed::TimedOut),
                _ => {
                    self.with(|state| state.cannot_download(&"no host slot"));
                    return Ok(None);
                }
            }
        }
    }

    /// Waits until lossless readers have released all frames. Returns false if they have not in
    /// time.
    pub fn drain(&self, limit: Duration) -> bool {
        let drained = |state: &mut State<Simulated>| {
            let on_the_way = |link: &Link<Simulated>| link.downloads() && state.is_downloading();
            let mut lossless = state.readers().lossless();
            lossless.all(|link| link.is_idle() && !on_the_way(link)).then_some(())
        };
        self.wait_until(Some(now() + limit), Awaited::Readers, drained).is_some()
    }

    /// Waits until so many readers are present. Returns false if they are not in time.
    pub fn wait_for_readers(&self, count: usize, limit: Duration) -> bool {
        let is_there =
            |state: &mut State<Simulated>| (state.readers().present().len() >= count).then_some(());
        self.wait_until(Some(now() + limit), Awaited::Readers, is_there).is_some()
    }

    /// Waits until `condition` returns a value; `None` on timeout.
    pub fn wait_until<T>(
        &self,
        until: Option<Time>,
        awaited: Awaited,
        mut condition: impl FnMut(&mut State<Simulated>) -> Option<T>,
    ) -> Option<T> {
        let begun = now();
        let mut wait = Wait::new(awaited);
        let mut own = None;
        // Set after a sleep that ended by itself and that nothing polls for.
        let mut slept_out = false;
        let result = loop {
            let mut state = self.lock();
            if let Some(result) = wait.check(&mut state, &mut condition) {
                drop(state);
                if slept_out {
                    self.0.record.check_wake_up("a thread of the exporter", self.0.record.last_act.get());
                }
                break Some(result);
            }
            if until.is_some_and(|until| now() >= until) {
                break None;
            }
            let polls_are_rare = now() - begun > FASTEST * 32;
            let made = wait.prepare(
                &mut state,
                &mut own,
                || Some(Interrupt::default()),
                polls_are_rare,
                &mut condition,
            );
            let Plan { announced, at_most, polls } = match made {
                Ok(result) => break Some(result),
                Err(plan) => plan,
            };
            let present = state.readers().present().iter();
            let links = present.filter(|link| announced.contains(&link.info.id));
            let channels: Vec<_> =
                links.map(|link| (link.info.id, link.connection().channel.clone())).collect();
            drop(state);
            let interval = ((now() - begun) / 16).clamp(FASTEST, SLOWEST);
            let poll = polls.then(|| now() + interval);
            let planned = [until, at_most.map(|time| now() + time), poll].into_iter().flatten().min();
            wait.sleeps(planned.map(|time| instant() + (time - now())));
            let is_woken = block("wait for readers", planned, || {
                own.as_ref().is_some_and(Interrupt::peek)
                    || channels.iter().any(|(_, channel)| channel.peek_wake_for_exporter())
            });
            slept_out = !is_woken && !polls;
            let (mut any, mut ended) = (false, Vec::new());
            for (id, channel) in channels {
                if channel.peek_wake_for_exporter() {
                    any = true;
                    let drained = if channel.drain_for_exporter() { Drained::Open } else { Drained::Closed };
                    ended.extend(ending_of(drained).map(|ending| (id, ending)));
                }
            }
            self.with(|state| wait.note_wake_ups(state, any, ended));
        };
        if wait.is_registered() {
            self.with(|state| wait.end(state));
        }
        let bound = self.with(|state| state.limits().reader_timeout + state.limits().fence_timeout);
        let took = now() - begun;
        if until.is_none() && self.0.record.is_regular.get() && !is_dying() {
            assert!(took < bound * 4, "a wait of the exporter took {took:?}");
        }
        result
    }

    /// The background work of the stream, until it is over.
    pub fn serve(&self) {
        let mut watched: BTreeMap<u64, (Watched, Channel)> = BTreeMap::new();
        let mut until = None;
        let mut begun = now();
        let mut before = Urgency::None;
        loop {
            let shared = &*self.0;
            let is_ready = |(watched, channel): &(Watched, Channel)| {
                watched.socket && (channel.peek_from_reader() || watched.room && channel.peek_room())
                    || watched.wake && channel.peek_wake_for_exporter()
                    || channel.peek_exit()
            };
            let service = &shared.service;
            let deadline = [until, service.within.get(), service.after.get()].into_iter().flatten().min();
            block("service sleeps", deadline, || {
                service.is_woken.get()
                    || !shared.requests.borrow().is_empty()
                    || watched.values().any(is_ready)
                    || [service.within.get(), service.after.get()]
                        .into_iter()
                        .flatten()
                        .any(|at| deadline.is_none_or(|deadline| at < deadline))
            });
            trace!(
                "turns: woken {}, until {deadline:?}, ready {:?}",
                service.is_woken.get(),
                watched.values().filter(|one| is_ready(one)).map(|(watched, _)| watched).collect::<Vec<_>>()
            );
            service.is_woken.set(false);
            service.within.set(service.within.get().filter(|at| *at > now()));
            service.after.set(service.after.get().filter(|at| *at > now()));
            for (watched, channel) in watched.values() {
                let id = watched.id;
                if watched.socket && (channel.peek_from_reader() || watched.room && channel.peek_room()) {
                    let received = match channel.receive_from_reader() {
                        Received::Nothing => service::Received::Nothing,
                        Received::HungUp => service::Received::HungUp,
                        Received::Message(message) => service::Received::Message(message),
                    };
                    self.with(|state| state.receive(id, received));
                }
                if channel.peek_exit() {
                    let ending = Ending::new(Reason::Stopped, "its process is gone");
                    self.with(|state| state.end_link_of(id, &ending, true));
                }
                if watched.wake && channel.peek_wake_for_exporter() {
                    let is_open = channel.drain_for_exporter();
                    let drained = if is_open { Drained::Open } else { Drained::Closed };
                    self.with(|state| state.note_wake_up(id, drained));
                }
            }
            let due = |watched: &Watched| watched.check_at.is_some_and(|at| at <= instant());
            for (watched, _) in watched.values().filter(|(watched, _)| due(watched)) {
                self.with(|state| state.check_link(watched.id));
            }
            let requests: Vec<_> = shared.requests.borrow_mut().drain(..).collect();
            requests.into_iter().for_each(|request| self.admit(request));
            let is_stopped = service.is_stopped.get();
            let Turn { progress, watch, has_more_to_do, trims_at, trash } =
                self.with(|state| state.begin_turn());
            drop(trash);
            if is_stopped && !has_more_to_do {
                break;
            }
            if progress || before != watch {
                (begun, before) = (now(), watch);
            }
            let poll = match watch {
                Urgency::None | Urgency::Idle => None,
                Urgency::Unhurried => watch.interval().map(|interval| now() + interval),
                Urgency::Close => Some(now() + (now() - begun).clamp(FASTEST, SLOWEST)),
            };
            let mut state = self.lock();
            let watching = state.watch();
            let links = state.readers().all().zip(watching);
            watched = links
                .map(|(link, watched)| (watched.id, (watched, link.connection().channel.clone())))
                .collect();
            drop(state);
            let checks = watched.values().filter_map(|(watched, _)| watched.check_at);
            let times = checks.chain(trims_at).map(time_of);
            until = times.chain(poll).min();
        }
        self.0.service.is_over.set(true);
        for request in self.0.requests.borrow_mut().drain(..) {
            request.channel.close_exporter();
        }
    }

    /// Admits a reader, or refuses it.
    fn admit(&self, request: Request) {
        let Request { channel, peer, hello } = request;
        let kind = self.0.kind;
        let (lacks_files, lacks_memory) = (chance(self.0.shortages.memory), chance(self.0.shortages.memory));
        let promised = self.with(|state| {
            let most = 2 * u64::from(state.limits().max_slots);
            let (enough, little) = (Some(most * PAGE * 16), Some(PAGE - 1));
            let left = Left {
                files: Some(if lacks_files { 7 } else { 10 + most }),
                all_files: most,
                memory: if lacks_memory { little } else { enough },
            };
            state.promise(&peer, hello.credit, left)
        });
        let credit = match promised {
            Ok(credit) => {
                assert!(!lacks_files, "a reader was admitted without files");
                credit
            }
            Err(refusal) => {
                let is_short = refusal.reason != Reason::NoCreditLeft;
                assert!(!is_short || lacks_files || lacks_memory, "a reader was refused: {refusal:?}");
                if is_short && !lacks_files {
                    Outcome::RefusedMemory.reach();
                }
                return self.refuse(&channel, &peer, &refusal);
            }
        };
        let is_charged = !peer.is_trusted;
        let sizes = [page::queue_size(credit as usize), page::claims_size(credit as usize)];
        let [queue_size, claims_size] = sizes.map(|size| size as u64);
        let files = self.with(|state| state.system().files.clone());
        let account = files.account(peer.uid, is_charged, claims_size);
        let refuse_full = |channel: &Channel, full| {
            Outcome::RefusedAccount.reach();
            self.with(|state| state.end_promise());
            self.refuse(channel, &peer, &Ending::new(Reason::LimitExceeded, full));
        };
        if let Err(full) = account.check(queue_size + claims_size) {
            return refuse_full(&channel, full);
        }
        let in_place = kind == MemoryKind::Host || hello.memory.contains(&kind);
        let choice = Selected { kind: FenceKind::None, why: String::new() };
        let (choice, downloads) = match (kind.is_gpu(), in_place) {
            (false, _) => (choice, false),
            (true, true) => (Selected { kind: self.0.fence, why: String::new() }, false),
            (true, false) => match self.with(|state| state.begin_downloads("it reads host memory")) {
                Ok(choice) => (choice, true),
                Err(refusal) => {
                    self.with(|state| state.end_promise());
                    return self.refuse(&channel, &peer, &refusal);
                }
            },
        };
        pause("make the pages of a reader");
        let queue_file = files.other(queue_size, is_charged);
        if let Err(full) = account.give(&queue_file, accounts::Purpose::Other) {
            return refuse_full(&channel, full);
        }
        let quiet = if self.0.whole_descriptors { page::queue::ENTRIES } else { usize::MAX };
        let queue = SharedPage::with_quiet_words(page::queue_size(credit as usize), quiet);
        let claims = SharedPage::new(page::claims_size(credit as usize));
        let word = self.0.words.borrow_mut().entry(peer.uid).or_default().clone();
        let fences = Fences::new(choice.kind, credit);
        let to_download = downloads.then(|| self.with(|state| state.last_to_download())).flatten();
        let mut target = to_download.and_then(|size| self.obtain(|state| state.place_host(size)).ok());
        let mut state = self.lock();
        state.end_promise();
        if state.is_closed() {
            channel.close_exporter();
            return;
        }
        let from = state.kept_from(peer.is_trusted, hello.max_gop_bytes);
        let units = from.map(|from| state.kept_units(from)).unwrap_or_default();
        let start = match units.is_empty() {
            true => state.start_without_kept_units(peer.is_own_or_root),
            false => Start::AtOnce,
        };
        let last = state.last_for(downloads, target.as_ref()).cloned();
        if last.is_some() {
            Outcome::Kept.reach();
        }
        let next = last.as_ref().map_or(state.next_sequence(), |last| last.descriptor.sequence);
        let producer = Producer::new(queue.clone(), claims.clone(), credit as usize, next);
        let has_events = choice.kind == FenceKind::Event;
        let events = if has_events { 2 * credit as usize * EVENT_HANDLE } else { 0 };
        let welcome = ToReader::Welcome(Welcome {
            nonce: [0; 16],
            session: 1,
            policy: hello.policy,
            credit,
            fence: choice.kind,
            events: vec![0; events],
            gpu: None,
            areas: state.limits().max_slots,
            next,
            live: state.next_sequence(),
            wake_word: Some(0),
        });
        let shares = Shares { queue, claims, word: Some(word.clone()), fences: fences.clone() };
        let welcome =
            Packet::with(&welcome, vec![File::Welcome(Box::new(shares))]).expect("it is short").kept();
        let info = state.new_reader(&peer, &hello, credit);
        let id = info.id;
        let before = state.next_sequence();
        let numbers: Vec<_> =
            units.iter().flat_map(|unit| unit.descriptor.sequence.0.to_le_bytes()).collect();
        let packets: Vec<_> = (!numbers.is_empty())
            .then(|| {
                let (count, size) = (units.len() as u32, (8 * RECORD * units.len()) as u64);
                let message = ToReader::KeptUnits { before, count, size };
                let file = File::Payload(files.payload(&numbers, is_charged));
                Packet::with_file(&message, file, size).expect("it is short")
            })
            .into_iter()
            .collect();
        let cannot_adopt = Default::default();
        let delivery = Delivery {
            producer,
            next,
            fence: fences,
            files: link::Files::new(account, queue_file),
            start,
            choice,
            downloads,
            cannot_adopt,
            hello,
        };
        channel.note_live(state.next_sequence());
        let connection = Connection {
            channel,
            word: Some(word),
            shortages: self.0.shortages,
            reports_exit: true,
            in_flight: 0,
        };
        let process = process::of_reader(peer.pid);
        self.0.record.events_before.borrow_mut().insert(process, self.0.record.events.get());
        state.link(Link::new(info, peer, connection, delivery), &welcome, last, target.take());
        state.send_kept_units(id, &packets);
    }

    fn refuse(&self, channel: &Channel, peer: &Peer, refusal: &Ending) {
        let message = ToReader::Refused { reason: refusal.reason, text: refusal.text.clone() };
        let packet = message.encode().expect("it is short");
        let _ = channel.send_to_reader(&packet, &[]);
        channel.close_exporter();
        self.with(|state| state.reports_mut().note_refusal(peer, refusal, now().as_nanos()));
    }
}

impl Shared {
    fn lock(&self) -> Guard<'_> {
        block("lock the state", None, || !self.is_locked.get());
        self.is_locked.set(true);
        let state = RefMut::map(self.state.borrow_mut(), |state| state.as_mut().expect("it is not dropped"));
        Guard { shared: self, state: Some(state) }
    }

    /// Notes the tag of the frame that is published next, before a reader can take it.
    fn expect(&self, state: &State<Simulated>, tag: u64) {
        self.record.published.borrow_mut().insert(state.next_sequence(), tag);
    }
}

/// Metadata of this length takes a message of its own.
pub const OVERSIZED: usize = METADATA_AREA + 1;
