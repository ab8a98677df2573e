// SPDX-License-Identifier: MIT OR Apache-2.0

//! Stream captures: the calls that are refused meanwhile, and those that invalidate a capture.
//!
//! Measured on an H200, driver 580, except where CUDA's documentation is the source. Graphs do not
//! run here: captured work is dropped.

use crate::api::{Answer, Code, INVALID_VALUE, STREAM_CAPTURE_UNSUPPORTED};
use crate::queue::{Kind, Stream};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, ThreadId};

const INVALIDATED: Code = Code(901);
const UNMATCHED: Code = Code(903);
const ISOLATION: Code = Code(905);
const IMPLICIT: Code = Code(906);
const WRONG_THREAD: Code = Code(908);

/// Capture modes, of captures and of threads.
const GLOBAL: i32 = 0;
const THREAD_LOCAL: i32 = 1;
const RELAXED: i32 = 2;

/// Results of cuStreamIsCapturing.
const STATUS_ACTIVE: i32 = 1;
const STATUS_INVALIDATED: i32 = 2;

/// Calls that may synchronize implicitly, which a capture forbids.
const POTENTIALLY_UNSAFE: &[&str] = &[
    "cuEventQuery",
    "cuStreamQuery",
    "cuEventSynchronize",
    "cuStreamSynchronize",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemAllocHost_v2",
    "cuMemHostAlloc",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
];

struct Capture {
    /// The stream that began it, then those that joined it by an event.
    streams: Vec<Arc<Stream>>,
    mode: i32,
    thread: ThreadId,
    is_broken: bool,
}

static CAPTURES: Mutex<Vec<Capture>> = Mutex::new(Vec::new());
/// Their number: calls outside of captures take no lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static MODE: Cell<i32> = const { Cell::new(GLOBAL) };
}

fn captures() -> MutexGuard<'static, Vec<Capture>> {
    CAPTURES.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn is_one(stream: &Arc<Stream>) -> impl Fn(&Capture) -> bool {
    |capture| capture.streams.iter().any(|other| Arc::ptr_eq(other, stream))
}

/// Invalidates the captures that a call conflicts with.
fn refuse(code: Code, conflicts: impl Fn(&Capture) -> bool) -> Answer {
    if COUNT.load(Ordering::Acquire) == 0 {
        return Ok(());
    }
    let mut answer = Ok(());
    for capture in captures().iter_mut().filter(|capture| conflicts(capture)) {
        capture.is_broken = true;
        answer = Err(code);
    }
    answer
}

/// Checks a call that may synchronize: it conflicts with captures in global mode of any thread, and
/// with all but relaxed captures of its own thread; less in the other modes of the thread.
pub fn check_call(name: &str) -> Answer {
    if COUNT.load(Ordering::Acquire) == 0 || !POTENTIALLY_UNSAFE.contains(&name) {
        return Ok(());
    }
    let (mode, thread) = (MODE.get(), thread::current().id());
    refuse(STREAM_CAPTURE_UNSUPPORTED, |capture| match mode {
        RELAXED => false,
        THREAD_LOCAL => capture.thread == thread && capture.mode != RELAXED,
        _ => capture.mode == GLOBAL || (capture.thread == thread && capture.mode != RELAXED),
    })
}

/// Checks a call that concerns all streams of a context: it conflicts with every capture in it.
pub fn check_context(context: usize) -> Answer {
    let is_here = |stream: &Arc<Stream>| stream.context == context;
    refuse(STREAM_CAPTURE_UNSUPPORTED, |capture| capture.streams.iter().any(is_here))
}

/// Checks work on the NULL stream: blocking streams would have to wait for it (documented).
pub fn check_null(stream: &Stream) -> Answer {
    if stream.kind != Kind::Null { Ok(()) } else { refuse(IMPLICIT, captures_blocking_stream_with(stream)) }
}

fn captures_blocking_stream_with(null: &Stream) -> impl Fn(&Capture) -> bool {
    let is_beside = |stream: &Arc<Stream>| stream.kind == Kind::Blocking && stream.context == null.context;
    move |capture| capture.streams.iter().any(is_beside)
}

/// Returns whether a stream is being captured.
pub fn is_capturing(stream: &Arc<Stream>) -> bool {
    COUNT.load(Ordering::Acquire) > 0 && captures().iter().any(is_one(stream))
}

/// Adds a stream that waits for an event of a captured stream to the capture.
pub fn join(stream: &Arc<Stream>, origin: &Arc<Stream>) {
    let mut captures = captures();
    let capture = captures.iter_mut().find(|capture| is_one(origin)(capture));
    if let Some(capture) = capture.filter(|capture| !is_one(stream)(capture)) {
        capture.streams.push(stream.clone());
    }
}

/// Checks a wait of a captured stream for work outside of the capture.
pub fn refuse_wait(stream: &Arc<Stream>) -> Answer {
    refuse(ISOLATION, is_one(stream))
}

/// Begins a capture.
pub fn begin(stream: Arc<Stream>, mode: i32) -> Answer {
    if !(GLOBAL..=RELAXED).contains(&mode) {
        return Err(INVALID_VALUE);
    }
    if stream.kind == Kind::Null || is_capturing(&stream) {
        return Err(STREAM_CAPTURE_UNSUPPORTED);
    }
    let mut captures = captures();
    captures.push(Capture { streams: vec![stream], mode, thread: thread::current().id(), is_broken: false });
    COUNT.store(captures.len(), Ordering::Release);
    Ok(())
}

/// Ends a capture.
pub fn end(stream: &Arc<Stream>) -> Answer {
    let mut captures = captures();
    let begun = |capture: &Capture| capture.streams.first().is_some_and(|first| Arc::ptr_eq(first, stream));
    let at = captures.iter().position(begun).ok_or(UNMATCHED)?;
    if captures[at].mode != RELAXED && captures[at].thread != thread::current().id() {
        return Err(WRONG_THREAD);
    }
    let ended = captures.swap_remove(at);
    COUNT.store(captures.len(), Ordering::Release);
    if ended.is_broken { Err(INVALIDATED) } else { Ok(()) }
}

/// Returns the result of cuStreamIsCapturing. It leaves the capture intact, for the NULL stream too
/// (documented).
pub fn status(stream: &Arc<Stream>) -> Result<i32, Code> {
    let captures = captures();
    if stream.kind == Kind::Null && captures.iter().any(captures_blocking_stream_with(stream)) {
        return Err(IMPLICIT);
    }
    Ok(match captures.iter().find(|capture| is_one(stream)(capture)) {
        None => 0,
        Some(capture) if capture.is_broken => STATUS_INVALIDATED,
        Some(_) => STATUS_ACTIVE,
    })
}

/// Replaces the capture mode of this thread, and returns the old one.
pub fn exchange_mode(new: i32) -> Result<i32, Code> {
    if !(GLOBAL..=RELAXED).contains(&new) {
        return Err(INVALID_VALUE);
    }
    Ok(MODE.replace(new))
}
