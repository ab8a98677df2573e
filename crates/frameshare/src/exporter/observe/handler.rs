// SPDX-License-Identifier: MIT OR Apache-2.0

//! Delivery of notices to the owner's notice handler, which is foreign code.
//!
//! Notices are delivered in order, one at a time, by a thread that runs only while there are some.
//! No thread of the exporter waits for the handler, so one that blocks holds up neither readers
//! nor the end of the stream.

use crate::foreign::{self, Foreign, report};
use frameshare_core::exporter::notice::Notice;
use std::{
    collections::VecDeque,
    mem,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

/// Maximum number of notices that wait for a handler that blocks; later ones are dropped.
const MAX_PENDING: usize = 4096;

/// The owner's notice handler, and the notices on their way to it.
pub struct NoticeHandler {
    call: Foreign<Box<dyn Fn(Notice) + Send + Sync>>,
    pending: Mutex<NoticeQueue>,
    /// Signaled when all notices were delivered.
    delivered: Condvar,
}

#[derive(Default)]
struct NoticeQueue {
    notices: VecDeque<Notice>,
    /// The thread that delivers, once it runs.
    thread: Option<ThreadId>,
    /// Whether there is one.
    runs: bool,
    /// Notices that were dropped since the last line in the log.
    dropped: usize,
}

impl NoticeHandler {
    pub fn new(call: Box<dyn Fn(Notice) + Send + Sync>) -> Arc<Self> {
        Arc::new(Self { call: Foreign::new(call), pending: Mutex::default(), delivered: Condvar::new() })
    }

    /// Queues notices and starts their delivery.
    pub fn notify(self: &Arc<Self>, notices: Vec<Notice>) {
        self.queue(notices);
        self.start();
    }

    /// Queues notices, which [`start`](Self::start) has delivered in the order of these calls.
    /// Drops them where [`MAX_PENDING`] are queued already. It calls no foreign code: the
    /// exporter's state may be locked.
    pub fn queue(&self, notices: Vec<Notice>) {
        let mut pending = self.lock();
        let room = MAX_PENDING.saturating_sub(pending.notices.len());
        pending.dropped += notices.len().saturating_sub(room);
        pending.notices.extend(notices.into_iter().take(room));
    }

    /// Starts the delivery of queued notices, unless it is under way. Without a thread (`ulimit
    /// -u`) they stay queued until the next call.
    pub fn start(self: &Arc<Self>) {
        let mut pending = self.lock();
        let dropped = mem::take(&mut pending.dropped);
        if !pending.runs && !pending.notices.is_empty() {
            let handler = self.clone();
            let builder = thread::Builder::new().name("frameshare-notice".into());
            pending.runs = builder.spawn(move || handler.deliver()).is_ok();
        }
        drop(pending);
        if dropped > 0 {
            report!(warn, "the notice handler of the exporter blocks: {dropped} notices are dropped");
        }
    }

    /// Waits until all notices were delivered, at most this long. Returns at once in the handler
    /// itself.
    pub fn flush(self: &Arc<Self>, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        self.start();
        let mut pending = self.lock();
        while pending.runs && pending.thread != Some(thread::current().id()) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            pending = self.delivered.wait_timeout(pending, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn deliver(&self) {
        let mut pending = self.lock();
        pending.thread = Some(thread::current().id());
        while let Some(notice) = pending.notices.pop_front() {
            drop(pending);
            if foreign::run(|| (self.call)(notice)).is_none() {
                report!(error, "the notice handler of the exporter panicked");
            }
            pending = self.lock();
        }
        (pending.thread, pending.runs) = (None, false);
        self.delivered.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, NoticeQueue> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn refused(pid: u32) -> Notice {
        Notice::ReaderRefused { pid, uid: 0, why: String::new() }
    }

    #[test]
    fn notices_arrive_in_order_before_flush_returns() {
        let (sender, receiver) = mpsc::channel();
        let handler = NoticeHandler::new(Box::new(move |notice| drop(sender.send(notice))));
        for pid in 0..100 {
            handler.notify(vec![refused(2 * pid), refused(2 * pid + 1)]);
        }
        handler.flush(Duration::from_secs(60));
        let arrived: Vec<_> = receiver.try_iter().collect();
        assert_eq!(arrived, (0..200).map(refused).collect::<Vec<_>>());
    }

    #[test]
    fn blocked_handler_bounds_queue_and_flush() {
        let (release, blocked) = mpsc::channel::<()>();
        let blocked = Mutex::new(blocked);
        let (sender, receiver) = mpsc::channel();
        let handler = NoticeHandler::new(Box::new(move |notice| {
            let _ = blocked.lock().unwrap().recv();
            let _ = sender.send(notice);
        }));
        handler.notify((0..3 * MAX_PENDING as u32).map(refused).collect());
        handler.flush(Duration::from_millis(10));
        assert!(handler.lock().notices.len() <= MAX_PENDING);
        drop(release);
        handler.flush(Duration::from_secs(60));
        assert_eq!(receiver.try_iter().count(), MAX_PENDING);
    }

    #[test]
    fn panicking_handler_gets_later_notices() {
        let (sender, receiver) = mpsc::channel();
        let handler = NoticeHandler::new(Box::new(move |notice| {
            assert!(notice != refused(0), "on purpose");
            let _ = sender.send(notice);
        }));
        handler.notify(vec![refused(0), refused(1)]);
        handler.flush(Duration::from_secs(60));
        assert_eq!(receiver.try_recv(), Ok(refused(1)));
    }
}
