// SPDX-License-Identifier: MIT OR Apache-2.0

//! Readers.
//!
//! # Safety
//!
//! Pointers come from C, as the header describes them; [`border`](crate::border) checks them.
#![allow(unsafe_code)]

use crate::{
    border::{c_string, guard, object, quietly, store, take, text, timeout},
    cuda,
    failure::{Failure, Status},
    frame::Frame,
    structs,
    video::{CBool, MEMORY_CUDA_OR_HOST, RawMemory},
};
use frameshare::{
    Endpoint, Event, Interrupt, Policy,
    cuda::Context,
    reader::{self, Config, Item as Next, ReaderHandle},
};
use std::{
    ffi::{CString, c_char, c_int, c_uint, c_void},
    os::fd::AsRawFd,
    ptr,
    sync::{Arc, Mutex, MutexGuard, TryLockError},
    time::{Duration, Instant},
};

/// As [`RawMemory`].
pub type RawPolicy = c_uint;
/// As [`RawMemory`].
pub type RawItemKind = c_uint;

structs::define! {
    /// Configuration of a reader.
    ReaderConfig as "frameshare_reader_config" of 96 {
        name: *const c_char = ptr::null(),
        policy: RawPolicy = 0,
        max_held: u32 = 4,
        max_queued: u32 = 1,
        spin: u32 = 0,
        memory: RawMemory = 0,
        cuda_device_id: i32 = 0,
        cuda_uuid: *const c_char = ptr::null(),
        cuda_context: *mut c_void = ptr::null_mut(),
        reconnect: CBool = 1,
        lazy: CBool = 0,
        connection_timeout_ns: i64 = 5_000_000_000,
        reconnect_timeout_ns: i64 = -1,
        fence_timeout_ns: u64 = 2_000_000_000,
        exporter_uid: i64 = -1,
    }
}

structs::define! {
    /// Statistics of a reader.
    ReaderStats as "frameshare_reader_stats" of 80 {
        session: u64 = 0,
        received: u64 = 0,
        lost: u64 = 0,
        reconnects: u64 = 0,
        spin_time_ns: u64 = 0,
        spin_frames: u64 = 0,
        gpu_wait_limited: u64 = 0,
        exporter_pid: u32 = 0,
        credit: u32 = 0,
        held: u32 = 0,
    }
}

structs::define! {
    /// The next item of a stream.
    Item as "frameshare_item" of 56 {
        kind: RawItemKind = 0,
        frame: *mut Frame = ptr::null_mut(),
        caps: *const c_char = ptr::null(),
        event_kind: u32 = 0,
        event_payload: *const c_void = ptr::null(),
        event_size: usize = 0,
        event_is_sticky: CBool = 0,
    }
}

/// The kind of an item.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub enum ItemKind {
    Frame,
    Format,
    Event,
    EndOfStream,
    Reconnected,
}

/// A reader of one stream.
#[derive(Debug)]
pub struct Reader {
    inner: Mutex<Inner>,
    /// For threads beside the one that waits for the next item. They never take the lock, which
    /// would make that one fail.
    handle: ReaderHandle,
    interrupt: Interrupt,
}

#[derive(Debug)]
struct Inner {
    reader: reader::Reader,
    gpu: Option<Arc<Context>>,
    /// Text and payload of the last item.
    last: Last,
}

#[derive(Debug)]
enum Last {
    Nothing,
    Caps(#[expect(dead_code, reason = "C reads it")] CString),
    Event(#[expect(dead_code, reason = "C reads it")] Event),
}

impl Reader {
    fn lock(&self) -> Result<MutexGuard<'_, Inner>, Failure> {
        match self.inner.try_lock() {
            Ok(inner) => Ok(inner),
            // A panic has ended a call: the reader may be in any state, but a valid one.
            Err(TryLockError::Poisoned(inner)) => Ok(inner.into_inner()),
            Err(TryLockError::WouldBlock) => {
                Err(Failure::argument("another thread uses the reader: use it from one thread at a time"))
            }
        }
    }

    fn next(&self, inner: &mut Inner, timeout: Option<Duration>) -> Result<Option<Next>, Failure> {
        let next = inner.next(timeout, &self.interrupt)?;
        if next.is_none() && inner.reader.holds_all() {
            // No wait brings a frame: a timeout with a text.
            let held = reader::ReadError::Held { held: inner.reader.held() };
            return Err(Failure::new(Status::Timeout, held));
        }
        Ok(next)
    }

    fn wrap(&self, frame: reader::Frame, gpu: Option<&Arc<Context>>) -> *mut Frame {
        Box::into_raw(Box::new(Frame::new(frame, gpu.cloned())))
    }
}

impl Inner {
    /// Returns the next item; none if there is none in time.
    fn next(&mut self, timeout: Option<Duration>, interrupt: &Interrupt) -> Result<Option<Next>, Failure> {
        self.last = Last::Nothing;
        if timeout != Some(Duration::ZERO) {
            return Ok(self.reader.next(timeout, interrupt)?);
        }
        if interrupt.is_set() {
            return Err(reader::ReadError::Interrupted.into());
        }
        Ok(self.reader.try_next()?)
    }
}

/// The configuration in the form of the engine, and the timeout of later searches.
///
/// # Safety
/// Name and UUID are NULL or texts, the context is NULL or a CUcontext that outlives the reader.
pub unsafe fn config_of(config: &ReaderConfig) -> Result<(Config, Option<Duration>), Failure> {
    let policy = match config.policy {
        0 => Policy::Latest,
        1 => Policy::Lossless,
        other => return Err(Failure::argument(format!("policy is {other}: use an enumerator"))),
    };
    let uid = match config.exporter_uid {
        -1 => None,
        uid => Some(u32::try_from(uid).map_err(|_| {
            Failure::argument(format!("exporter_uid is {uid}, but must be a user's number, or -1"))
        })?),
    };
    // SAFETY: the caller's guarantee.
    let gpu = unsafe {
        cuda::context(config.memory, config.cuda_device_id, config.cuda_uuid, config.cuda_context)
    }?;
    let mut new = Config::default()
        .policy(policy)
        .max_held(config.max_held)
        .max_queued(config.max_queued)
        .spin(config.spin)
        .fence_timeout(Duration::from_nanos(config.fence_timeout_ns))
        .connection_timeout(timeout(config.connection_timeout_ns))
        .reconnect(config.reconnect != 0)
        .exporter_uid(uid)
        .gpu(gpu)
        .host_fallback(config.memory == MEMORY_CUDA_OR_HOST);
    if !config.name.is_null() {
        // SAFETY: the caller's guarantee.
        new = new.name(unsafe { text(config.name, "name") }?);
    }
    Ok((new, timeout(config.reconnect_timeout_ns)))
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_reader_open(
    stream: *const c_char,
    config: *const ReaderConfig,
    reader: *mut *mut Reader,
) -> Status {
    guard(|| {
        // SAFETY: the header's contract.
        let (stream, config) = unsafe {
            store(reader, ptr::null_mut(), "reader")?;
            (text(stream, "stream")?, structs::read_or_default(config)?)
        };
        let endpoint = Endpoint::find(stream)?;
        // SAFETY: the header's contract.
        let (engine, later) = unsafe { config_of(&config) }?;
        let (interrupt, gpu) = (Interrupt::new()?, engine.gpu.clone());
        let mut opened = match config.lazy {
            0 => reader::Reader::connect(&endpoint, engine, &interrupt)?,
            _ => reader::Reader::start(&endpoint, engine.connection_timeout(later))?,
        };
        opened.set_connection_timeout(later);
        let handle = opened.handle();
        let inner = Mutex::new(Inner { reader: opened, gpu, last: Last::Nothing });
        let opened = Box::into_raw(Box::new(Reader { inner, handle, interrupt }));
        // SAFETY: the header's contract.
        unsafe { store(reader, opened, "reader") }?;
        Ok(Status::Ok)
    })
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_reader_close(reader: *mut Reader) {
    // SAFETY: the header's contract.
    quietly((), || drop(unsafe { take(reader, "reader") }));
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_reader_next(
    reader: *mut Reader,
    timeout_ns: i64,
    frame: *mut *mut Frame,
) -> Status {
    guard(|| {
        // SAFETY: the header's contract.
        let this = unsafe {
            store(frame, ptr::null_mut(), "frame")?;
            object(reader, "reader")?
        };
        let mut inner = this.lock()?;
        let timeout = timeout(timeout_ns);
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            // A timeout of 0 stays one; others become 0 only if an item was passed over.
            let left = match end {
                Some(end) => Some(end.saturating_duration_since(Instant::now())),
                None => timeout,
            };
            match this.next(&mut inner, left)? {
                None => return Ok(Status::Timeout),
                Some(Next::EndOfStream) => return Ok(Status::EndOfStream),
                Some(Next::Frame(next)) => {
                    let next = this.wrap(next, inner.gpu.as_ref());
                    // SAFETY: the header's contract.
                    unsafe { store(frame, next, "frame") }?;
                    return Ok(Status::Ok);
                }
                Some(Next::Format(_) | Next::Event(_) | Next::Reconnected) => {}
            }
        }
    })
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_reader_next_item(
    reader: *mut Reader,
    timeout_ns: i64,
    item: *mut Item,
) -> Status {
    guard(|| {
        let none: Item = structs::Struct::init();
        // SAFETY: the header's contract.
        let this = unsafe {
            structs::write(item, &none)?;
            object(reader, "reader")?
        };
        let mut inner = this.lock()?;
        let Some(next) = this.next(&mut inner, timeout(timeout_ns))? else {
            return Ok(Status::Timeout);
        };
        let found = match next {
            Next::Frame(frame) => {
                let frame = this.wrap(frame, inner.gpu.as_ref());
                Item { kind: ItemKind::Frame as RawItemKind, frame, ..none }
            }
            Next::Format(format) => {
                let caps = c_string(format.caps.as_bytes());
                let found = Item { kind: ItemKind::Format as RawItemKind, caps: caps.as_ptr(), ..none };
                inner.last = Last::Caps(caps);
                found
            }
            Next::Event(event) => {
                let found = Item {
                    kind: ItemKind::Event as RawItemKind,
                    event_kind: event.kind,
                    event_payload: event.payload.as_ptr().cast(),
                    event_size: event.payload.len(),
                    event_is_sticky: event.sticky.into(),
                    ..none
                };
                inner.last = Last::Event(event);
                found
            }
            Next::EndOfStream => Item { kind: ItemKind::EndOfStream as RawItemKind, ..none },
            Next::Reconnected => Item { kind: ItemKind::Reconnected as RawItemKind, ..none },
        };
        // SAFETY: the header's contract; the struct was written before.
        unsafe { structs::write(item, &found) }?;
        Ok(Status::Ok)
    })
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_reader_get_fd(reader: *mut Reader, fd: *mut c_int) -> Status {
    guard(|| {
        // SAFETY: the header's contract.
        let this = unsafe {
            store(fd, -1, "fd")?;
            object(reader, "reader")?
        };
        let found = this.lock()?.reader.as_raw_fd();
        // SAFETY: the header's contract.
        unsafe { store(fd, found, "fd") }?;
        Ok(Status::Ok)
    })
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_reader_interrupt(reader: *mut Reader, on: CBool) -> Status {
    guard(|| {
        // SAFETY: the header's contract.
        let this = unsafe { object(reader, "reader") }?;
        if on == 0 {
            this.interrupt.clear()
        } else {
            this.interrupt.set()
        }
        Ok(Status::Ok)
    })
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_reader_request_key_unit(reader: *mut Reader) -> Status {
    guard(|| {
        // SAFETY: the header's contract.
        unsafe { object(reader, "reader") }?.handle.request_key_unit();
        Ok(Status::Ok)
    })
}

/// See frameshare.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn frameshare_reader_get_stats(reader: *mut Reader, stats: *mut ReaderStats) -> Status {
    guard(|| {
        // SAFETY: the header's contract.
        let this = unsafe { object(reader, "reader") }?;
        let found = this.handle.stats();
        let found = ReaderStats {
            session: found.session,
            received: found.received,
            lost: found.lost,
            reconnects: found.reconnects,
            spin_time_ns: found.spin_time.as_nanos() as u64,
            spin_frames: found.spin_frames,
            gpu_wait_limited: found.gpu_wait_limited,
            exporter_pid: found.exporter_pid,
            credit: found.credit,
            held: found.held,
            ..structs::Struct::init()
        };
        // SAFETY: the header's contract.
        unsafe { structs::write(stats, &found) }?;
        Ok(Status::Ok)
    })
}
