//! Freeing GPU streams that wait for an exporter that is gone.
//!
//! A stream that waits for a timeline word goes on as soon as somebody stores the word. A dying process's queue runs on
//! for some milliseconds and can write an older value over it, so it is stored again until the process has been gone
//! for a while. (Measured on an H200, driver 580: 83 times, the last one 22 ms after the kill.)

use super::session::Session;
use crate::sys::{Interrupt, Timeout, is_ready, wait};
use rustix::event::{PollFd, PollFlags};
use std::{
    os::fd::OwnedFd,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// How long after the process's end its GPU queue can still write.
const AFTERLIFE: Duration = Duration::from_millis(250);
/// How long an exporter that has said goodbye may take to finish what it has queued.
const PATIENCE: Duration = Duration::from_secs(2);

/// Sees to it, on a thread of its own, that no stream waits for ever for a frame of this session.
pub(super) fn rescue(session: Arc<Session>, gone: Option<OwnedFd>, said_goodbye: bool) {
    let run = move || store(&session, gone.as_ref(), said_goodbye);
    // Without a thread the streams stay stuck until the app ends; there is no better place to report it than the
    // error that the reader gets anyway.
    let _ = thread::Builder::new().name("frameshare-rescue".into()).spawn(run);
}

/// Watches the exporter's process on a thread of its own, as long as the session lasts: an app that waits for its stream
/// asks for no further frame, and would never hear that none is coming. Where the kernel does not show the process, only
/// asking helps.
pub(super) fn watch(session: &Arc<Session>, gone: Option<&OwnedFd>) {
    let (Some(Ok(gone)), Ok(over)) = (gone.map(OwnedFd::try_clone), Interrupt::new()) else { return };
    session.watched_by(over.clone());
    let session = Arc::downgrade(session);
    let run = move || {
        let mut fds = [PollFd::new(&gone, PollFlags::IN), PollFd::new(&over, PollFlags::IN)];
        let woken = wait(&mut fds, Timeout::Never).is_ok();
        let process_is_gone = woken && is_ready(&fds[0]);
        if let Some(session) = session.upgrade().filter(|_| process_is_gone) {
            store(&session, Some(&gone), false);
        }
    };
    // Without a thread it is as it is without the watch.
    let _ = thread::Builder::new().name("frameshare-watch".into()).spawn(run);
}

/// Stores the words that the exporter will not write, until nobody writes them any more.
fn store(session: &Session, gone: Option<&OwnedFd>, said_goodbye: bool) {
    let until = Instant::now() + PATIENCE;
    // Who says goodbye finishes what it has queued, unless its process ends before.
    let mut process_is_gone = said_goodbye && wait_for_end(gone, until);
    let sequence = session.consumer.head().saturating_sub(1);
    let mut end = Instant::now() + AFTERLIFE;
    while Instant::now() < end {
        session.rescue(sequence);
        thread::sleep(Duration::from_millis(1));
        if !process_is_gone && Instant::now() < until && gone.is_some() {
            process_is_gone = wait_for_end(gone, Instant::now());
            end = Instant::now() + AFTERLIFE;
        }
    }
}

/// Whether the process has ended by a moment.
fn wait_for_end(gone: Option<&OwnedFd>, until: Instant) -> bool {
    let Some(gone) = gone else { return false };
    let mut fds = [PollFd::new(gone, PollFlags::IN)];
    wait(&mut fds, Timeout::At(until)).is_ok() && is_ready(&fds[0])
}
