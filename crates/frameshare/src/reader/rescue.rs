//! Freeing GPU streams that wait for an exporter that is gone.
//!
//! A stream that waits for a timeline word goes on as soon as somebody stores the word. A dying process's queue runs on
//! for some milliseconds and can write an older value over it, so it is stored again until the process has been gone
//! for a while. (Measured on an H200, driver 580: 83 times, the last one 22 ms after the kill.) Then it stays as it is: a
//! stream that somebody else holds up finds it when it gets there, in a page that stays as long as the context has work.
//!
//! An exporter that lives, and has only not written a frame in time, can write over it for ever: it is stored until the
//! streams are through or its process is gone, the more rarely the longer nobody has written over it. One thread does
//! that for all sessions of the process, however many there were.

use super::{
    session::{Session, Watch},
    waits::Waits,
};
use crate::{
    idle::{self, InHand},
    lookout::{Lookout, Pending},
    sys::{Interrupt, Timeout, is_ready, wait},
};
use once_cell::sync::Lazy;
use rustix::event::{PollFd, PollFlags};
use std::{
    os::fd::OwnedFd,
    sync::{Arc, Mutex, Weak},
    thread,
    time::{Duration, Instant},
};

/// How long after the process's end its GPU queue can still write.
const AFTERLIFE: Duration = Duration::from_millis(250);
/// How long an exporter that has said goodbye may take to finish what it has queued.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the pause is after words were stored, at first.
const PAUSE: Duration = Duration::from_millis(1);
/// For how long at most they are stored in a row, against somebody who writes over them all the time: a GPU then sees as
/// much of us as of him.
const CONTEST: Duration = Duration::from_millis(8);

/// What tells that a watch is leaving; goes last.
type Leaving = Arc<Mutex<Option<InHand>>>;

/// A session whose exporter will not write what streams wait for.
struct Stranded {
    waits: Arc<Waits>,
    /// Tells when the exporter's process is gone, where the kernel shows it.
    gone: Option<OwnedFd>,
    was_gone: Option<Instant>,
    /// Nothing is stored before, unless the process ends.
    begin: Instant,
    /// Lives until the streams are through with what they were made to wait for.
    work: Option<Weak<()>>,
    /// Since when nobody has written over what was stored.
    quiet: Instant,
    contest: Duration,
    _leaving: Leaving,
}

static LOOKOUT: Lazy<Lookout<Stranded>> = Lazy::new(|| Lookout::new("frameshare-rescue"));

/// Sees to it that no stream waits for ever for a frame of this session.
pub(super) fn rescue(waits: Arc<Waits>, gone: Option<OwnedFd>, said_goodbye: bool) {
    strand(waits, gone, said_goodbye, Arc::default());
}

fn strand(waits: Arc<Waits>, gone: Option<OwnedFd>, said_goodbye: bool, leaving: Leaving) {
    let now = Instant::now();
    let begin = if said_goodbye { now + PATIENCE } else { now };
    LOOKOUT.look_at(Stranded {
        waits,
        gone,
        was_gone: None,
        begin,
        work: None,
        quiet: begin,
        contest: Duration::ZERO,
        _leaving: leaving,
    });
}

impl Pending for Stranded {
    /// Stores the words that the exporter will not write.
    fn is_pending(&mut self) -> bool {
        let now = Instant::now();
        if self.was_gone.is_none() && wait_for_end(self.gone.as_ref(), now) {
            (self.was_gone, self.quiet) = (Some(now), now);
        }
        if now < self.begin && self.was_gone.is_none() {
            return true;
        }
        let stored = self.waits.fence.rescue();
        if stored.is_contested {
            self.quiet = now;
            self.contest = (2 * self.contest).clamp(PAUSE, CONTEST);
            while now.elapsed() < self.contest {
                self.waits.fence.rescue();
            }
        } else {
            self.contest = Duration::ZERO;
        }
        if !stored.is_complete {
            return true;
        }
        match self.was_gone {
            Some(since) => since.elapsed() < AFTERLIFE,
            None => self.has_work() || self.begin.elapsed() < AFTERLIFE,
        }
    }

    fn quiet_since(&self) -> Instant {
        self.quiet
    }

    /// Lets go of the session elsewhere: with an old driver that waits for the context's work, and the work for what this
    /// thread stores for other sessions.
    fn done(self) {
        if let Some(gpu) = self.waits.gpu.clone() {
            idle::drop_elsewhere_when_idle(&gpu, self);
        }
    }
}

impl Stranded {
    /// Whether the streams are not through with what they had been made to wait for when this was asked first.
    fn has_work(&mut self) -> bool {
        let Some(gpu) = &self.waits.gpu else { return false };
        let work = self.work.get_or_insert_with(|| {
            let work = Arc::new(());
            let told = Arc::downgrade(&work);
            idle::drop_elsewhere_when_idle(gpu, work);
            told
        });
        work.strong_count() > 0
    }
}

/// Watches the exporter on a thread of its own, as long as the session lasts and streams wait: an app that waits for its
/// stream asks for no further frame, and one that leaves asks for none at all. Neither would hear that the process is gone,
/// nor that a frame is not written in time.
pub(super) fn watch(session: &Session, gone: Option<&OwnedFd>, fence_timeout: Duration) {
    let Ok(over) = Interrupt::new() else { return };
    // Where the kernel does not show the process, only asking helps, or that it writes nothing.
    let gone = gone.and_then(|gone| gone.try_clone().ok());
    let leaving = Leaving::default();
    session.watched_by(Watch { over: over.clone(), leaving: Arc::clone(&leaving) });
    let waits = session.waits().clone();
    let run = move || {
        // Goes last.
        let leaving = leaving;
        let waits = waits;
        if needs_rescue(&waits, gone.as_ref(), fence_timeout, &over) {
            strand(waits, gone, false, leaving);
        }
    };
    // Without a thread it is as it is without the watch.
    let _ = thread::Builder::new().name("frameshare-watch".into()).spawn(run);
}

/// Watches until the exporter is gone or breaks the rules, or nobody waits for it any more.
fn needs_rescue(waits: &Waits, gone: Option<&OwnedFd>, fence_timeout: Duration, over: &Interrupt) -> bool {
    // For how long the oldest frame that streams wait for is late.
    let unwritten = || match waits.oldest(None) {
        Ok(oldest) => oldest.map(|(_, waited)| waited),
        Err(_) => Some(Duration::MAX),
    };
    let is_late = |waited: Duration| {
        let late = waited > fence_timeout;
        if late {
            waits.give_up();
        }
        late
    };
    loop {
        let mut fds = vec![PollFd::new(over, PollFlags::IN)];
        fds.extend(gone.map(|gone| PollFd::new(gone, PollFlags::IN)));
        if wait(&mut fds, Timeout::after(Some((fence_timeout / 2).max(PAUSE)))).is_err() || is_ready(&fds[0])
        {
            break;
        }
        if fds.get(1).is_some_and(is_ready) || unwritten().is_some_and(is_late) {
            return true;
        }
    }
    // Usually everything is written: nothing is kept alive for it then. What streams still wait for is, or is late soon.
    while let Some(waited) = unwritten() {
        if is_late(waited) || wait_for_end(gone, Instant::now()) {
            return true;
        }
        thread::sleep(PAUSE);
    }
    false
}

/// Whether the process has ended by a moment.
fn wait_for_end(gone: Option<&OwnedFd>, until: Instant) -> bool {
    let Some(gone) = gone else { return false };
    let mut fds = [PollFd::new(gone, PollFlags::IN)];
    wait(&mut fds, Timeout::At(until)).is_ok() && is_ready(&fds[0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fence::{FenceError, FenceState, ReaderFence, Rescue, none::NoFence};
    use frameshare_cuda::stream::Stream;
    use frameshare_protocol::FenceKind;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Counts how often it is checked.
    #[derive(Debug)]
    struct Counted(Arc<AtomicU32>);

    impl ReaderFence for Counted {
        fn kind(&self) -> FenceKind {
            FenceKind::Timeline
        }

        fn poll_ready(&self, entry: usize, sequence: u64) -> Result<FenceState, FenceError> {
            NoFence.poll_ready(entry, sequence)
        }

        fn wait_ready(&self, _: usize, _: u64, _: &Stream) -> Result<(), FenceError> {
            Ok(())
        }

        fn signal_released(&self, _: usize, _: u64, _: &Stream) -> Result<(), FenceError> {
            Ok(())
        }

        fn check(&self) -> Result<(), FenceError> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }

        fn rescue(&self) -> Rescue {
            NoFence.rescue()
        }
    }

    #[test]
    fn watch_sleeps_between_checks_whatever_the_timeout() {
        for timeout in [Duration::ZERO, Duration::from_nanos(1), Duration::from_micros(10)] {
            let checks = Arc::new(AtomicU32::new(0));
            let waits = Waits::new(Box::new(Counted(checks.clone())), None);
            let over = Interrupt::new().unwrap();
            let begin = Instant::now();
            thread::scope(|scope| {
                let watch = scope.spawn(|| needs_rescue(&waits, None, timeout, &over));
                thread::sleep(Duration::from_millis(100));
                over.set();
                assert!(!watch.join().unwrap());
            });
            // One check a pause at most, and one at the end.
            let most = begin.elapsed().as_millis() + 2;
            let checks = u128::from(checks.load(Ordering::Relaxed));
            assert!(checks <= most, "{timeout:?}: {checks} checks in {most} ms");
        }
    }
}
