// SPDX-License-Identifier: MIT OR Apache-2.0

//! Interprocess events: a file in /dev/shm for each process that creates them, with a slot per
//! event.
//!
//! 1. A slot holds two counters: the number of queued records and the number of the last completed
//!    record. The event is pending while they differ, whichever process queued the record and
//!    whether or not that process still lives.
//! 2. Records of one event complete in the order in which they were queued, across processes. So a
//!    record behind the record of a dead process never completes: measured on the real driver.
//! 3. The slot of an event that was destroyed while pending is not reused before the event is
//!    complete.
//!
//! The file has the real driver's name, `cuda.shm.<uid>.<pid, hex>.<n>`, its size, 80 KiB, and its
//! number of events, 4,094. The file is removed when the process exits, and stays when the process
//! is killed.

use crate::api::{Code, INVALID_CONTEXT, INVALID_HANDLE, MAP_FAILED, OUT_OF_MEMORY};
use crate::sys::{self, Mapping};
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

const SLOTS: usize = 4096;
/// The first two slots identify the page.
const FIRST: usize = 2;
const SIZE: usize = SLOTS * 20;
const MAGIC: u64 = 0x7069_6d73_7465_7673;

/// A page, created by this process or opened from another one.
pub struct Page {
    nonce: u64,
    map: Mapping,
}

impl Page {
    fn counter(&self, index: usize) -> &AtomicU64 {
        assert!(index < 2 * SLOTS);
        // SAFETY: within the mapping, which lives as long as the page; all access to it is atomic.
        unsafe { &*((self.map.start() + index * 8) as *const AtomicU64) }
    }

    fn queued(&self, slot: usize) -> &AtomicU64 {
        self.counter(slot)
    }

    fn done(&self, slot: usize) -> &AtomicU64 {
        self.counter(SLOTS + slot)
    }

    /// Returns the number of times that the slot was allocated or freed.
    fn generation(&self, slot: usize) -> &AtomicU32 {
        assert!(slot < SLOTS);
        // SAFETY: as in `counter`.
        unsafe { &*((self.map.start() + SLOTS * 16 + slot * 4) as *const AtomicU32) }
    }
}

/// The slot of one event.
#[derive(Clone)]
pub struct Slot {
    page: Arc<Page>,
    index: usize,
    generation: u32,
}

impl Slot {
    /// Returns the number of the last queued record.
    pub fn last(&self) -> u64 {
        self.page.queued(self.index).load(Ordering::Acquire)
    }

    /// Returns the number for a record that is about to be queued.
    pub fn next(&self) -> u64 {
        self.page.queued(self.index).fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Returns the event's name in traces, the same in all processes.
    pub fn name(&self) -> String {
        format!("{:x}.{:x}", self.page.nonce, self.index)
    }

    pub fn reached(&self, value: u64) -> bool {
        self.page.done(self.index).load(Ordering::Acquire) >= value
    }

    pub fn signal(&self, value: u64) {
        self.page.done(self.index).fetch_max(value, Ordering::AcqRel);
    }

    /// Returns whether the creator has destroyed the event.
    pub fn is_stale(&self) -> bool {
        self.page.generation(self.index).load(Ordering::Acquire) != self.generation
    }
}

struct Own {
    page: Arc<Page>,
    name: Name,
    slots: Mutex<Slots>,
}

struct Slots {
    next: usize,
    free: Vec<usize>,
    /// Slots of events that were destroyed while pending.
    waiting: Vec<usize>,
}

/// The parts of a page's file name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Name {
    uid: u32,
    pid: u32,
    n: u32,
}

impl Name {
    fn path(self) -> String {
        format!("/dev/shm/cuda.shm.{}.{:x}.{}", self.uid, self.pid, self.n)
    }
}

static OWN: OnceLock<Own> = OnceLock::new();

fn own() -> Result<&'static Own, Code> {
    static MAKING: Mutex<()> = Mutex::new(());
    let _making = MAKING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(own) = OWN.get() {
        return Ok(own);
    }
    let made = make()?;
    // SAFETY: the handler uses only the static above.
    unsafe { libc::atexit(remove) };
    Ok(OWN.get_or_init(|| made))
}

fn make() -> Result<Own, Code> {
    // SAFETY: returns a number.
    let uid = unsafe { libc::getuid() };
    let pid = std::process::id();
    for n in 1..1000 {
        let name = Name { uid, pid, n };
        let options = File::options().read(true).write(true).create_new(true).mode(0o600).open(name.path());
        let file = match options {
            Ok(file) => file,
            // A dead process with the same pid left its file behind.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => continue,
            Err(_) => return Err(MAP_FAILED),
        };
        file.set_len(SIZE as u64).map_err(|_| OUT_OF_MEMORY)?;
        let page = Page { nonce: sys::random(), map: Mapping::of_file(file.as_raw_fd(), 0, SIZE)? };
        page.done(0).store(page.nonce, Ordering::Relaxed);
        page.queued(0).store(MAGIC, Ordering::Release);
        let slots = Slots { next: FIRST, free: Vec::new(), waiting: Vec::new() };
        return Ok(Own { page: Arc::new(page), name, slots: Mutex::new(slots) });
    }
    Err(MAP_FAILED)
}

extern "C" fn remove() {
    if let Some(own) = OWN.get()
        && own.name.pid == std::process::id()
    {
        let _ = std::fs::remove_file(own.name.path());
    }
}

/// Returns a slot for a new event. A process has 4,094.
pub fn create() -> Result<Slot, Code> {
    let own = own()?;
    let mut slots = own.slots.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let idle = |&index: &usize| {
        own.page.queued(index).load(Ordering::Acquire) == own.page.done(index).load(Ordering::Acquire)
    };
    let index = if let Some(index) = slots.free.pop() {
        index
    } else if slots.next < SLOTS {
        slots.next += 1;
        slots.next - 1
    } else {
        let found = slots.waiting.iter().position(idle).ok_or(OUT_OF_MEMORY)?;
        slots.waiting.swap_remove(found)
    };
    let generation = own.page.generation(index).fetch_add(1, Ordering::AcqRel) + 1;
    Ok(Slot { page: own.page.clone(), index, generation })
}

/// Frees the slot of an event that this process created.
pub fn destroy(slot: &Slot) {
    let Some(own) = OWN.get() else { return };
    own.page.generation(slot.index).fetch_add(1, Ordering::AcqRel);
    let mut slots = own.slots.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if slot.reached(slot.last()) {
        slots.free.push(slot.index);
    } else {
        slots.waiting.push(slot.index);
    }
}

/// Returns the data with which another process opens an event of this process.
pub fn export(slot: &Slot) -> Result<[u64; 3], Code> {
    let own = OWN.get().ok_or(INVALID_HANDLE)?;
    let location = slot.index as u64 | u64::from(own.name.n) << 16 | u64::from(slot.generation) << 32;
    Ok([own.page.nonce, location, u64::from(own.name.pid) | u64::from(own.name.uid) << 32])
}

/// Opens an event of another process.
pub fn open([nonce, location, owner]: [u64; 3]) -> Result<Slot, Code> {
    static OPEN: Mutex<Option<HashMap<u64, Weak<Page>>>> = Mutex::new(None);
    if OWN.get().is_some_and(|own| own.page.nonce == nonce) {
        return Err(INVALID_CONTEXT);
    }
    let index = (location & 0xffff) as usize;
    let name = Name { uid: (owner >> 32) as u32, pid: owner as u32, n: (location >> 16) as u32 & 0xffff };
    if !(FIRST..SLOTS).contains(&index) {
        return Err(INVALID_HANDLE);
    }
    let mut open = OPEN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let open = open.get_or_insert_default();
    let page = match open.get(&nonce).and_then(Weak::upgrade) {
        Some(page) => page,
        None => {
            // A missing file, or the file of another process, means that the processes have
            // different /dev/shm mounts.
            let file = File::options().read(true).write(true).open(name.path()).map_err(|_| MAP_FAILED)?;
            if file.metadata().map_err(|_| MAP_FAILED)?.size() != SIZE as u64 {
                return Err(MAP_FAILED);
            }
            let page = Page { nonce, map: Mapping::of_file(file.as_raw_fd(), 0, SIZE)? };
            let same = page.queued(0).load(Ordering::Acquire) == MAGIC
                && page.done(0).load(Ordering::Relaxed) == nonce;
            if !same {
                return Err(MAP_FAILED);
            }
            let page = Arc::new(page);
            open.insert(nonce, Arc::downgrade(&page));
            page
        }
    };
    let slot = Slot { page, index, generation: (location >> 32) as u32 };
    if slot.is_stale() { Err(INVALID_HANDLE) } else { Ok(slot) }
}
