//! Freeing GPU streams that wait for an exporter that is gone.
//!
//! A stream that waits for a timeline word goes on as soon as somebody stores the word. A dying process's queue runs on
//! for some milliseconds and can write an older value over it, so it is stored again until the process has been gone
//! for a while. (Measured on an H200, driver 580: 83 times, the last one 22 ms after the kill.) One that lives, and has
//! only not written a frame in time, can write over it for ever: it is stored until the streams are through.

use super::{
    session::{Session, Watch},
    waits::Waits,
};
use crate::{
    idle::Work,
    sys::{Interrupt, Timeout, is_ready, wait},
};
use rustix::event::{PollFd, PollFlags};
use std::{
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// How long after the process's end its GPU queue can still write.
const AFTERLIFE: Duration = Duration::from_millis(250);
/// How long an exporter that has said goodbye may take to finish what it has queued.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the pause is after words were stored.
const PAUSE: Duration = Duration::from_millis(1);
/// For how long at most they are stored in a row, against somebody who writes over them all the time: a GPU then sees as
/// much of us as of him.
const CONTEST: Duration = Duration::from_millis(8);

/// Sees to it, on a thread of its own, that no stream waits for ever for a frame of this session.
pub(super) fn rescue(waits: Arc<Waits>, gone: Option<OwnedFd>, said_goodbye: bool) {
    let run = move || store(&waits, gone.as_ref(), said_goodbye);
    // Without a thread the streams stay stuck until the app ends; there is no better place to report it than the
    // error that the reader gets anyway.
    let _ = thread::Builder::new().name("frameshare-rescue".into()).spawn(run);
}

/// Watches the exporter on a thread of its own, as long as the session lasts and streams wait: an app that waits for its
/// stream asks for no further frame, and one that leaves asks for none at all. Neither would hear that the process is gone,
/// nor that a frame is not written in time.
pub(super) fn watch(session: &Session, gone: Option<&OwnedFd>, fence_timeout: Duration) {
    let Ok(over) = Interrupt::new() else { return };
    // Where the kernel does not show the process, only asking helps, or that it writes nothing.
    let gone = gone.and_then(|gone| gone.try_clone().ok());
    let leaving = Arc::default();
    session.watched_by(Watch { over: over.clone(), leaving: Arc::clone(&leaving) });
    let waits = session.waits.clone();
    let run = move || {
        // Goes last.
        let _leaving = leaving;
        let waits = waits;
        if needs_rescue(&waits, gone.as_ref(), fence_timeout, &over) {
            store(&waits, gone.as_ref(), false);
        }
    };
    // Without a thread it is as it is without the watch.
    let _ = thread::Builder::new().name("frameshare-watch".into()).spawn(run);
}

/// Watches until the exporter is gone or breaks the rules, or nobody waits for it any more.
fn needs_rescue(waits: &Waits, gone: Option<&OwnedFd>, fence_timeout: Duration, over: &Interrupt) -> bool {
    let is_late = |(_, waited)| waited > fence_timeout;
    let has_failed = || {
        let failed = waits.oldest(None).map_or(true, |oldest| oldest.is_some_and(is_late));
        if failed {
            waits.give_up();
        }
        failed
    };
    loop {
        let mut fds = vec![PollFd::new(over, PollFlags::IN)];
        fds.extend(gone.map(|gone| PollFd::new(gone, PollFlags::IN)));
        if wait(&mut fds, Timeout::after(Some(fence_timeout / 2))).is_err() || is_ready(&fds[0]) {
            break;
        }
        if fds.get(1).is_some_and(is_ready) || has_failed() {
            return true;
        }
    }
    // Usually everything is written: nothing is kept alive for it then.
    if matches!(waits.oldest(None), Ok(None)) {
        return false;
    }
    let settled = settle(waits);
    while !settled.load(Ordering::Relaxed) {
        if wait_for_end(gone, Instant::now()) || has_failed() {
            return true;
        }
        thread::sleep(PAUSE);
    }
    false
}

/// Stores the words that the exporter will not write, until nothing waits for them any more.
fn store(waits: &Waits, gone: Option<&OwnedFd>, said_goodbye: bool) {
    let until = Instant::now() + PATIENCE;
    // Who says goodbye finishes what it has queued, unless its process ends before.
    let mut process_is_gone = said_goodbye && wait_for_end(gone, until);
    let mut end = Instant::now() + AFTERLIFE;
    let mut contest = Duration::ZERO;
    let mut settled: Option<Arc<AtomicBool>> = None;
    while Instant::now() < end || settled.as_ref().is_none_or(|settled| !settled.load(Ordering::Relaxed)) {
        let stored = waits.fence.rescue();
        contest = if stored.is_contested { (2 * contest).clamp(PAUSE, CONTEST) } else { Duration::ZERO };
        let begin = Instant::now();
        while begin.elapsed() < contest {
            waits.fence.rescue();
        }
        if stored.is_complete {
            settled.get_or_insert_with(|| settle(waits));
        }
        thread::sleep(PAUSE);
        if !process_is_gone && Instant::now() < until && gone.is_some() {
            process_is_gone = wait_for_end(gone, Instant::now());
            end = Instant::now() + AFTERLIFE;
        }
    }
}

/// What turns true when the streams are through with what they have been made to wait for. That is found out on a thread of
/// its own: with an old driver it takes as long as their work does.
fn settle(waits: &Waits) -> Arc<AtomicBool> {
    let settled = Arc::new(AtomicBool::new(false));
    let (told, gpu) = (settled.clone(), waits.gpu.clone());
    let run = move || {
        let mut work = gpu.as_ref().map(Work::of);
        while work.as_mut().is_some_and(Work::is_pending) {
            thread::sleep(PAUSE);
        }
        told.store(true, Ordering::Relaxed);
    };
    if thread::Builder::new().name("frameshare-settle".into()).spawn(run).is_err() {
        settled.store(true, Ordering::Relaxed);
    }
    settled
}

/// Whether the process has ended by a moment.
fn wait_for_end(gone: Option<&OwnedFd>, until: Instant) -> bool {
    let Some(gone) = gone else { return false };
    let mut fds = [PollFd::new(gone, PollFlags::IN)];
    wait(&mut fds, Timeout::At(until)).is_ok() && is_ready(&fds[0])
}
