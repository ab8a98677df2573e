// SPDX-License-Identifier: MIT OR Apache-2.0

//! Observers, and the snapshots that they get.
//!
//! # Safety
//!
//! Pointers come from C, as the header describes them; [`border`](crate::border) checks them. Texts
//! that go to C are the snapshot's.
#![allow(unsafe_code)]

use crate::{
    border::{c_string, guard, object, quietly, store, take, text, timeout},
    failure::{Failure, Status},
    reader::RawPolicy,
    structs,
    video::CBool,
};
use frameshare::{Endpoint, Policy, observer};
use std::{
    ffi::{CString, c_char, c_int},
    os::fd::{AsFd, AsRawFd},
    ptr,
    sync::{Mutex, MutexGuard, TryLockError},
    time::Duration,
};

structs::define! {
    /// State of a stream.
    StreamState as "frameshare_stream_state" of 120 {
        time_ns: u64 = 0,
        started_ns: u64 = 0,
        exporter_pid: u32 = 0,
        exporter_uid: u32 = 0,
        exporter_program: *const c_char = ptr::null(),
        caps: *const c_char = ptr::null(),
        memory: *const c_char = ptr::null(),
        memory_why: *const c_char = ptr::null(),
        published: u64 = 0,
        last_published_ns: u64 = 0,
        copies: u64 = 0,
        backlog_bytes: u64 = 0,
        readers_total: u64 = 0,
        slots: u32 = 0,
        free_slots: u32 = 0,
        has_ended: CBool = 0,
    }
}

structs::define! {
    /// State of a reader of a stream.
    ReaderState as "frameshare_reader_state" of 128 {
        id: u64 = 0,
        pid: u32 = 0,
        uid: u32 = 0,
        name: *const c_char = ptr::null(),
        policy: RawPolicy = 0,
        credit: u32 = 0,
        held: u32 = 0,
        queued: u32 = 0,
        waiting: u32 = 0,
        sent: u64 = 0,
        lost: u64 = 0,
        lag: u64 = 0,
        taken: u64 = 0,
        age_sum_ns: u64 = 0,
        copies: u64 = 0,
        memory: *const c_char = ptr::null(),
        fence: *const c_char = ptr::null(),
        fence_why: *const c_char = ptr::null(),
    }
}

structs::define! {
    /// An eviction or a refusal.
    Incident as "frameshare_incident" of 48 {
        time_ns: u64 = 0,
        reader: u64 = 0,
        pid: u32 = 0,
        uid: u32 = 0,
        name: *const c_char = ptr::null(),
        text: *const c_char = ptr::null(),
    }
}

/// An observer of one stream.
#[derive(Debug)]
pub struct Observer(Mutex<observer::Observer>);

/// The state of a stream at one time.
#[derive(Debug)]
pub struct Snapshot {
    stream: StreamState,
    readers: Vec<ReaderState>,
    incidents: Vec<Incident>,
    /// The texts that the structs point to, each in an allocation of its own.
    _texts: Texts,
}

#[derive(Debug, Default)]
struct Texts(Vec<CString>);

impl Texts {
    fn add(&mut self, text: impl ToString) -> *const c_char {
        let text = c_string(text.to_string());
        let start = text.as_ptr();
        self.0.push(text);
        start
    }
}

fn sum(copies: &[observer::CopyCount]) -> u64 {
    copies.iter().fold(0, |sum, copies| sum.saturating_add(copies.count))
}

impl Snapshot {
    fn of(snapshot: &observer::Snapshot) -> Self {
        let (mut texts, counters) = (Texts::default(), &snapshot.counters);
        let stream = StreamState {
            time_ns: snapshot.time,
            started_ns: snapshot.exporter.started,
            exporter_pid: snapshot.exporter.pid,
            exporter_uid: snapshot.exporter.uid,
            exporter_program: texts.add(&snapshot.exporter.program),
            caps: snapshot.format.as_ref().map_or(ptr::null(), |format| texts.add(&format.caps)),
            memory: texts.add(snapshot.memory),
            memory_why: texts.add(&snapshot.memory_why),
            published: counters.published,
            last_published_ns: counters.last_published,
            copies: sum(&counters.copies),
            backlog_bytes: counters.waiting_bytes,
            readers_total: counters.readers_total,
            slots: counters.slots,
            free_slots: counters.free_slots,
            has_ended: counters.ended.into(),
            ..structs::Struct::init()
        };
        let readers = snapshot.readers.iter().map(|reader| ReaderState {
            id: reader.id,
            pid: reader.pid,
            uid: reader.uid,
            name: texts.add(&reader.name),
            policy: (reader.policy == Policy::Lossless).into(),
            credit: reader.credit,
            held: reader.held,
            queued: reader.queued,
            waiting: reader.waiting,
            sent: reader.sent,
            lost: reader.lost,
            lag: reader.lag,
            taken: reader.ages.count(),
            age_sum_ns: reader.ages.sum,
            copies: sum(&reader.copies),
            memory: texts.add(reader.memory),
            fence: texts.add(reader.fence),
            fence_why: texts.add(&reader.fence_why),
            ..structs::Struct::init()
        });
        let readers = readers.collect();
        let incidents = snapshot.incidents.iter().map(|incident| Incident {
            time_ns: incident.time,
            reader: incident.reader.unwrap_or(0),
            pid: incident.pid,
            uid: incident.uid,
            name: texts.add(&incident.name),
            text: texts.add(&incident.text),
            ..structs::Struct::init()
        });
        let incidents = incidents.collect();
        Self { stream, readers, incidents, _texts: texts }
    }

    fn give(snapshot: &observer::Snapshot) -> *mut Self {
        Box::into_raw(Box::new(Self::of(snapshot)))
    }
}

impl Observer {
    fn lock(&self) -> Result<MutexGuard<'_, observer::Observer>, Failure> {
        match self.0.try_lock() {
            Ok(inner) => Ok(inner),
            // A panic has ended a call: the observer may be in any state, but a valid one.
            Err(TryLockError::Poisoned(inner)) => Ok(inner.into_inner()),
            Err(TryLockError::WouldBlock) => {
                Err(Failure::argument("another thread uses the observer: use it from one thread at a time"))
            }
        }
    }
}

/// A wait without limit is one of a century.
fn limited(timeout_ns: i64) -> Duration {
    timeout(timeout_ns).unwrap_or(Duration::from_secs(100 * 365 * 86_400))
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_observer_open(
    stream: *const c_char,
    interval_ns: u64,
    timeout_ns: i64,
    observer: *mut *mut Observer,
) -> Status {
    guard(|| {
        // SAFETY: the header's contract.
        let stream = unsafe {
            store(observer, ptr::null_mut(), "observer")?;
            text(stream, "stream")?
        };
        let endpoint = Endpoint::find(stream)?;
        let opened = match interval_ns {
            0 => observer::Observer::connect(&endpoint, limited(timeout_ns))?,
            ns => observer::Observer::subscribe(&endpoint, Duration::from_nanos(ns), limited(timeout_ns))?,
        };
        let opened = Box::into_raw(Box::new(Observer(Mutex::new(opened))));
        // SAFETY: the header's contract.
        unsafe { store(observer, opened, "observer") }?;
        Ok(Status::Ok)
    })
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_observer_close(observer: *mut Observer) {
    // SAFETY: the header's contract.
    quietly((), || drop(unsafe { take(observer, "observer") }));
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_observer_get_fd(observer: *mut Observer, fd: *mut c_int) -> Status {
    guard(|| {
        // SAFETY: the header's contract.
        let this = unsafe {
            store(fd, -1, "fd")?;
            object(observer, "observer")?
        };
        let found = this.lock()?.as_fd().as_raw_fd();
        // SAFETY: the header's contract.
        unsafe { store(fd, found, "fd") }?;
        Ok(Status::Ok)
    })
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_observer_snapshot(
    observer: *mut Observer,
    snapshot: *mut *mut Snapshot,
) -> Status {
    guard(|| {
        // SAFETY: the header's contract.
        let this = unsafe {
            store(snapshot, ptr::null_mut(), "snapshot")?;
            object(observer, "observer")?
        };
        let found = Snapshot::give(this.lock()?.snapshot()?);
        // SAFETY: the header's contract.
        unsafe { store(snapshot, found, "snapshot") }?;
        Ok(Status::Ok)
    })
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_observer_next(
    observer: *mut Observer,
    timeout_ns: i64,
    snapshot: *mut *mut Snapshot,
) -> Status {
    guard(|| {
        // SAFETY: the header's contract.
        let this = unsafe {
            store(snapshot, ptr::null_mut(), "snapshot")?;
            object(observer, "observer")?
        };
        let mut inner = this.lock()?;
        let Some(found) = inner.next(limited(timeout_ns))? else { return Ok(Status::Timeout) };
        let found = Snapshot::give(found);
        // SAFETY: the header's contract.
        unsafe { store(snapshot, found, "snapshot") }?;
        Ok(Status::Ok)
    })
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_observer_disconnect_reader(
    observer: *mut Observer,
    reader: u64,
) -> Status {
    guard(|| {
        // SAFETY: the header's contract.
        let this = unsafe { object(observer, "observer") }?;
        this.lock()?.disconnect_reader(reader)?;
        Ok(Status::Ok)
    })
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_snapshot_get_stream(
    snapshot: *const Snapshot,
    stream: *mut StreamState,
) -> Status {
    guard(|| {
        // SAFETY: the header's contract.
        unsafe { structs::write(stream, &object(snapshot, "snapshot")?.stream) }?;
        Ok(Status::Ok)
    })
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_snapshot_reader_count(snapshot: *const Snapshot) -> usize {
    // SAFETY: the header's contract.
    quietly(0, || unsafe { object(snapshot, "snapshot") }.map_or(0, |snapshot| snapshot.readers.len()))
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_snapshot_get_reader(
    snapshot: *const Snapshot,
    index: usize,
    reader: *mut ReaderState,
) -> Status {
    guard(|| {
        // SAFETY: the header's contract.
        let Snapshot { readers, .. } = unsafe { object(snapshot, "snapshot") }?;
        // SAFETY: the header's contract.
        unsafe { structs::write(reader, element(readers, index, "readers")?) }?;
        Ok(Status::Ok)
    })
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_snapshot_incident_count(snapshot: *const Snapshot) -> usize {
    // SAFETY: the header's contract.
    quietly(0, || unsafe { object(snapshot, "snapshot") }.map_or(0, |snapshot| snapshot.incidents.len()))
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_snapshot_get_incident(
    snapshot: *const Snapshot,
    index: usize,
    incident: *mut Incident,
) -> Status {
    guard(|| {
        // SAFETY: the header's contract.
        let Snapshot { incidents, .. } = unsafe { object(snapshot, "snapshot") }?;
        // SAFETY: the header's contract.
        unsafe { structs::write(incident, element(incidents, index, "incidents")?) }?;
        Ok(Status::Ok)
    })
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_snapshot_free(snapshot: *mut Snapshot) {
    // SAFETY: the header's contract.
    quietly((), || drop(unsafe { take(snapshot, "snapshot") }));
}

fn element<'a, T>(all: &'a [T], index: usize, what: &str) -> Result<&'a T, Failure> {
    let outside =
        || Failure::argument(format!("index is {index}, but the snapshot has {} {what}", all.len()));
    all.get(index).ok_or_else(outside)
}
