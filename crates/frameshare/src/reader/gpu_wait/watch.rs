// SPDX-License-Identifier: MIT OR Apache-2.0

//! Watch of the exporter while GPU streams wait for it. One thread watches for all connections of
//! the process.
//!
//! An application that waits for its stream asks for no further frame, and one that has dropped its
//! reader asks for none at all; neither would notice the exporter's death or a missed deadline.

use super::{
    pending::PendingFrames,
    unblock::{Orphan, wait_for_end},
};
use crate::{
    reader::lease::{Channel, Teardown, Watcher},
    service::{Interests, Next, Service, Task},
    sys::{Interest, PerProcess, Timeout},
};
use frameshare_cuda::context::Context;
use std::{
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// Shortest pause between two checks.
const PAUSE: Duration = Duration::from_millis(1);

/// The thread of all watches.
static WATCHES: PerProcess<Service> = PerProcess::new(|| Service::new("frameshare-watch"));

/// The watch of one connection.
struct Watch {
    pending: Arc<PendingFrames>,
    /// `None` in tests.
    context: Option<Arc<Context>>,
    /// Readable when the exporter's process has ended, if the kernel provides that.
    gone: Option<Arc<OwnedFd>>,
    fence_timeout: Duration,
    /// The channel was dropped.
    closed: Arc<AtomicBool>,
    next_check: Timeout,
    /// Dropped last.
    teardown: Teardown,
}

/// Watches the exporter while the channel is open and streams wait.
pub(super) fn watch(
    channel: &Channel,
    pending: &Arc<PendingFrames>,
    context: &Arc<Context>,
    gone: Option<&OwnedFd>,
    fence_timeout: Duration,
) {
    let Ok(task) = WATCHES.reserve() else { return };
    let watch = Watch {
        pending: Arc::clone(pending),
        context: Some(Arc::clone(context)),
        // Without a process handle, only polling and the deadline help.
        gone: gone.and_then(|gone| gone.try_clone().ok()).map(Arc::new),
        fence_timeout,
        closed: Arc::default(),
        next_check: next_check(fence_timeout),
        teardown: Teardown::default(),
    };
    let (closed, teardown) = (Arc::clone(&watch.closed), Arc::clone(&watch.teardown));
    // If the thread cannot be started, the connection works without the watch.
    if task.start(watch).is_ok() {
        channel.set_watcher(Watcher::new(closed, task, teardown));
    }
}

/// Time of the next check of the deadline while the channel is open.
fn next_check(fence_timeout: Duration) -> Timeout {
    Timeout::after(Some((fence_timeout / 2).max(PAUSE)))
}

impl Watch {
    /// Returns the time for which streams have waited for a frame, or a long time if the exporter
    /// violates the protocol; `None` if every frame is written.
    fn waited(&self) -> Option<Duration> {
        match self.pending.oldest(None) {
            Ok(oldest) => oldest.map(|(_, waited)| waited),
            Err(_) => Some(Duration::MAX),
        }
    }

    /// Returns whether a frame is late, and ends speculative delivery then.
    fn is_late(&self, waited: Duration) -> bool {
        let late = waited > self.fence_timeout;
        if late {
            self.pending.give_up();
        }
        late
    }

    /// Unblocks the streams. It goes on after this watch.
    fn unblock(&self) -> Next {
        if let Some(context) = self.context.clone() {
            let orphan = Orphan::new(self.pending.clone(), context, self.gone.clone());
            orphan.with_teardown(self.teardown.clone()).unblock(false);
        }
        Next::End
    }
}

impl Task for Watch {
    type Key = ();

    fn turn(&mut self, ready: &[()], interests: &mut Interests<()>) -> Next {
        let next = if self.closed.load(Ordering::Acquire) {
            // Usually every frame is written, and nothing needs to be kept alive. A frame that
            // streams still wait for is written or late soon.
            let Some(waited) = self.waited() else { return Next::End };
            if self.is_late(waited) || wait_for_end(self.gone.as_deref(), Instant::now()) {
                return self.unblock();
            }
            Timeout::after(Some(PAUSE))
        } else {
            if !ready.is_empty() {
                return self.unblock();
            }
            if self.next_check.is_over() {
                if self.waited().is_some_and(|waited| self.is_late(waited)) {
                    return self.unblock();
                }
                self.next_check = next_check(self.fence_timeout);
            }
            self.next_check
        };
        if let Some(gone) = &self.gone {
            interests.want((), gone.clone(), Interest::Input);
        }
        Next::At(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fence::probe::Probe;
    use frameshare_protocol::FenceKind;
    use std::thread;

    #[test]
    fn watch_sleeps_between_checks_whatever_the_timeout() {
        let short = [Duration::ZERO, Duration::from_nanos(1), Duration::from_micros(10)];
        for timeout in short.into_iter().chain([Duration::MAX]) {
            let fence = Probe::new(FenceKind::Timeline, ());
            let checks = fence.checks();
            let begin = Instant::now();
            let watch = Watch {
                pending: Arc::new(PendingFrames::new(Arc::new(fence))),
                context: None,
                gone: None,
                fence_timeout: timeout,
                closed: Arc::default(),
                next_check: next_check(timeout),
                teardown: Teardown::default(),
            };
            let (closed, pending) = (watch.closed.clone(), Arc::downgrade(&watch.pending));
            let task = WATCHES.reserve().unwrap();
            task.start(watch).unwrap();
            thread::sleep(Duration::from_millis(100));
            closed.store(true, Ordering::Release);
            task.wake();
            let end = Instant::now() + Duration::from_secs(60);
            while pending.strong_count() > 0 {
                assert!(Instant::now() < end, "the watch does not end");
                thread::sleep(PAUSE);
            }
            // At most one check a pause, and one at the end.
            let most = begin.elapsed().as_millis() + 2;
            let checks = u128::from(checks.load(Ordering::Relaxed));
            assert!((1..=most).contains(&checks), "{timeout:?}: {checks} checks in {most} ms");
        }
    }
}
