// SPDX-License-Identifier: MIT OR Apache-2.0

//! Events, process-local and interprocess.

use crate::api::{Answer, Blob, Code, INVALID_HANDLE, INVALID_VALUE, NOT_READY, NOT_SUPPORTED, Out};
use crate::context::{self, Context, submit};
use crate::context_state::{ContextState, poll};
use crate::event_page::{self, Slot};
use crate::handles::Handles;
use crate::queue::{Op, Point, Stream};
use crate::{capture, config, order, stream, strict};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, RwLock};
use std::time::Instant;

const BLOCKING_SYNC: u32 = 1;
const DISABLE_TIMING: u32 = 2;
const INTERPROCESS: u32 = 4;

/// The event was last recorded by a captured stream.
const CAPTURED_EVENT: Code = Code(907);

/// Attribute IPC_EVENT_SUPPORTED.
pub const IPC: i32 = 125;

struct Event {
    /// The context in which the event was created or opened. Streams that record the event must
    /// belong to this context.
    context: usize,
    state: Arc<ContextState>,
    flags: u32,
    /// The slot of an interprocess event, opened from another process or created here.
    shared: Option<(Slot, Origin)>,
    last: Mutex<Record>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Own,
    Opened,
}

/// The work that a local event stands for: empty before the first record.
#[derive(Clone, Default)]
struct Record {
    points: Vec<Point>,
    /// The captured stream that recorded it: it stands for a place in a graph.
    captured: Option<Arc<Stream>>,
    time: Option<Arc<OnceLock<Instant>>>,
}

static HANDLES: Handles = Handles::new();
static EVENTS: RwLock<Option<HashMap<usize, Arc<Event>>>> = RwLock::new(None);

fn find(handle: usize) -> Result<Arc<Event>, Code> {
    context::current()?;
    let events = EVENTS.read().unwrap_or_else(|poisoned| poisoned.into_inner());
    let event = events.as_ref().and_then(|events| events.get(&handle)).cloned().ok_or(INVALID_HANDLE)?;
    event.state.check()?;
    Ok(event)
}

fn insert(out: Out<usize>, flags: u32, shared: Option<(Slot, Origin)>) -> Answer {
    let context = context::current()?;
    let state = context.state.clone();
    let event = Event { context: context.handle, state, flags, shared, last: Mutex::default() };
    let handle = HANDLES.take();
    let mut events = EVENTS.write().unwrap_or_else(|poisoned| poisoned.into_inner());
    events.get_or_insert_default().insert(handle, Arc::new(event));
    out.set(handle)
}

impl Event {
    fn last(&self) -> MutexGuard<'_, Record> {
        self.last.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn slot(&self) -> Option<&Slot> {
        let (slot, origin) = self.shared.as_ref()?;
        if *origin == Origin::Opened && slot.is_stale() {
            strict::violation("an interprocess event is used after its creator destroyed it");
        }
        Some(slot)
    }

    fn record(&self, stream: &Arc<Stream>, dependencies: Vec<Point>) -> Answer {
        // Locked until the record is queued, so that records of one event are numbered in queue
        // order.
        let mut last = self.last();
        if capture::is_capturing(stream) {
            *last = Record { captured: Some(stream.clone()), ..Record::default() };
            return Ok(());
        }
        if let Some(slot) = self.slot() {
            let op = Op::Record { slot: slot.clone(), value: slot.next() };
            let point = submit(stream, op, dependencies, Vec::new())?;
            *last = Record { points: vec![point], ..Record::default() };
            return Ok(());
        }
        let time = Arc::new(OnceLock::new());
        let point = submit(stream, Op::Stamp(time.clone()), dependencies, Vec::new())?;
        *last = Record { points: vec![point], time: Some(time), captured: None };
        Ok(())
    }

    /// Returns whether it was never recorded, so that a wait for it does nothing.
    fn is_new(&self) -> bool {
        self.slot().map_or(self.last().points.is_empty(), |slot| slot.last() == 0)
    }

    fn is_done(&self) -> bool {
        match self.slot() {
            Some(slot) => {
                let value = slot.last();
                let done = slot.reached(value);
                if done {
                    order::waited(slot.name(), value);
                }
                done
            }
            None => self.last().points.iter().all(Point::observe),
        }
    }
}

fn record(event: usize, stream: usize) -> Answer {
    let (event, stream) = (find(event)?, stream::find(stream)?);
    if stream.context != event.context {
        return Err(INVALID_HANDLE);
    }
    context::current()?.wait_for_frees();
    event.record(&stream, Vec::new())
}

/// Crashes as driver 580 does if an event opened from another process is used with a stream of a
/// context other than the one it was opened in.
fn crash() -> ! {
    strict::violation("a stream waits for an event that was opened in another context: the driver crashes");
    // SAFETY: both calls take numbers. The default action replaces a handler of the program: after
    // a handler that returns, the signal would only be raised again.
    unsafe {
        libc::signal(libc::SIGSEGV, libc::SIG_DFL);
        libc::raise(libc::SIGSEGV);
    }
    std::process::abort()
}

/// Makes a stream wait for the current record of an event. A later record does not change the wait.
fn wait(stream: &Arc<Stream>, event: &Event) -> Answer {
    let own = stream.context == event.context;
    if !own && matches!(event.shared, Some((_, Origin::Opened))) {
        crash();
    }
    if let Some(origin) = &event.last().captured {
        capture::join(stream, origin);
        return Ok(());
    }
    if capture::is_capturing(stream) && !event.is_new() {
        return capture::refuse_wait(stream);
    }
    match event.slot() {
        Some(slot) => {
            let value = slot.last();
            if value > 0 {
                submit(stream, Op::Wait { slot: slot.clone(), value }, Vec::new(), Vec::new())?;
            }
        }
        None => {
            let points = event.last().points.clone();
            if !points.is_empty() {
                submit(stream, Op::Marker, points, Vec::new())?;
            }
        }
    }
    Ok(())
}

fn of_context(handle: usize) -> Result<Arc<Context>, Code> {
    let current = context::current()?;
    if handle == 0 || handle == current.handle { Ok(current) } else { context::alive(handle) }
}

fn elapsed(out: Out<f32>, start: usize, end: usize) -> Answer {
    let time = |handle| {
        let event = find(handle)?;
        if event.flags & DISABLE_TIMING != 0 {
            return Err(INVALID_HANDLE);
        }
        let record = event.last().clone();
        record.time.ok_or(INVALID_HANDLE)?.get().copied().ok_or(NOT_READY)
    };
    let (start, end): (Instant, Instant) = (time(start)?, time(end)?);
    out.set(end.saturating_duration_since(start).as_secs_f32() * 1000.0)
}

crate::export! {
    fn cuEventCreate(out: Out<usize>, flags: u32) {
        out.check()?;
        let context = context::current()?;
        if flags & !(BLOCKING_SYNC | DISABLE_TIMING | INTERPROCESS) != 0 {
            return Err(INVALID_VALUE);
        }
        context.wait_for_frees();
        if flags & INTERPROCESS == 0 {
            return insert(out, flags, None);
        }
        if flags & DISABLE_TIMING == 0 {
            return Err(INVALID_VALUE);
        }
        if config::withheld(IPC) {
            return Err(NOT_SUPPORTED);
        }
        insert(out, flags, Some((event_page::create()?, Origin::Own)))
    }

    // Does not block, even if a record is pending.
    fn cuEventDestroy_v2(handle: usize) {
        context::current()?.wait_for_frees();
        let event = {
            let mut events = EVENTS.write().unwrap_or_else(|poisoned| poisoned.into_inner());
            events.get_or_insert_default().remove(&handle).ok_or(INVALID_HANDLE)?
        };
        HANDLES.release(handle);
        if let Some((slot, Origin::Own)) = &event.shared {
            event_page::destroy(slot);
        }
        Ok(())
    }

    fn cuEventRecord(event: usize, stream: usize) {
        record(event, stream)
    }

    fn cuEventRecordWithFlags(event: usize, stream: usize, flags: u32) {
        if flags > 1 { Err(INVALID_VALUE) } else { record(event, stream) }
    }

    fn cuEventQuery(handle: usize) {
        let event = find(handle)?;
        if event.last().captured.is_some() {
            return Err(CAPTURED_EVENT);
        }
        let done = event.is_done();
        event.state.check()?;
        if done { Ok(()) } else { Err(NOT_READY) }
    }

    fn cuEventSynchronize(handle: usize) {
        let event = find(handle)?;
        match event.slot() {
            Some(slot) => {
                let value = slot.last();
                event.last().points.iter().for_each(Point::demand);
                if poll(|| slot.reached(value), || event.state.check().is_err()) {
                    order::waited(slot.name(), value);
                }
            }
            None => {
                let points = event.last().points.clone();
                points.iter().for_each(|point| point.wait(|| false));
            }
        }
        event.state.check()
    }

    fn cuEventElapsedTime(out: Out<f32>, start: usize, end: usize) {
        elapsed(out, start, end)
    }

    fn cuEventElapsedTime_v2(out: Out<f32>, start: usize, end: usize) {
        elapsed(out, start, end)
    }

    fn cuStreamWaitEvent(stream: usize, event: usize, flags: u32) {
        if flags > 1 {
            return Err(INVALID_VALUE);
        }
        wait(&stream::find(stream)?, &*find(event)?)
    }

    // Covers all work queued in the context so far, including non-blocking streams. Later work does
    // not wait for the event.
    fn cuCtxRecordEvent(context: usize, event: usize) {
        let (context, event) = (of_context(context)?, find(event)?);
        context.wait_for_frees();
        if event.context != context.handle {
            return Err(INVALID_HANDLE);
        }
        capture::check_context(context.handle)?;
        let ends = context.ends();
        let internal = context.streams().internal.clone();
        if event.shared.is_some() {
            return event.record(&internal, ends);
        }
        *event.last() = Record { points: ends, ..Record::default() };
        Ok(())
    }

    fn cuCtxWaitEvent(context: usize, event: usize) {
        let (context, event) = (of_context(context)?, find(event)?);
        capture::check_context(context.handle)?;
        let streams: Vec<_> = context.ends().into_iter().map(|point| point.stream).collect();
        streams.iter().try_for_each(|stream| wait(stream, &event))
    }

    fn cuIpcGetEventHandle(out: Out<Blob>, handle: usize) {
        if config::withheld(IPC) {
            return Err(NOT_SUPPORTED);
        }
        match &find(handle)?.shared {
            Some((slot, Origin::Own)) => out.set(Blob::pack(&event_page::export(slot)?)),
            _ => Err(INVALID_HANDLE),
        }
    }

    fn cuIpcOpenEventHandle(out: Out<usize>, blob: Blob) {
        out.check()?;
        context::current()?;
        if config::withheld(IPC) {
            return Err(NOT_SUPPORTED);
        }
        let [nonce, slot, owner, ..] = blob.unpack();
        let slot = event_page::open([nonce, slot, owner])?;
        insert(out, DISABLE_TIMING | INTERPROCESS, Some((slot, Origin::Opened)))
    }
}
