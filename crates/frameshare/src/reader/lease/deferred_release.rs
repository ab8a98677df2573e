// SPDX-License-Identifier: MIT OR Apache-2.0

//! Deferred releases: a thread that retries releases until the GPU accepts them.

use std::{
    sync::{
        Mutex, PoisonError,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread,
    time::Duration,
};

/// Pause between two attempts.
const RETRY: Duration = Duration::from_millis(1);

/// Outcome of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    /// The release was signaled, or never will be.
    Done,
    /// The release only has to wait.
    Retry,
}

/// One attempt at a release. It may wait for the GPU.
pub(super) type Release = Box<dyn FnMut() -> Attempt + Send>;

/// Queue of the releases that the thread of a dropped frame could not signal.
#[derive(Debug, Default)]
pub(super) struct DeferredReleases {
    /// Channel to the thread, once there is one. The thread ends with it.
    sender: Mutex<Option<Sender<Release>>>,
}

impl DeferredReleases {
    /// Hands a release over to the thread: late, never wrong.
    pub fn push(&self, release: Release) {
        let mut sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        if sender.is_none() {
            let (new, receiver) = channel();
            if thread::Builder::new().name("frameshare-late".into()).spawn(move || run(&receiver)).is_ok() {
                *sender = Some(new);
            }
        }
        // Without the thread the lease stays open, and the exporter reclaims the slot at the end of
        // the connection.
        if let Some(sender) = &*sender {
            let _ = sender.send(release);
        }
    }
}

/// Main loop of the thread. A release that has to wait, for the end of a capture for example,
/// delays no other.
fn run(releases: &Receiver<Release>) {
    let mut waiting: Vec<Release> = Vec::new();
    loop {
        let next = match waiting.is_empty() {
            true => releases.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => releases.recv_timeout(RETRY),
        };
        match next {
            Ok(release) => waiting.push(release),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) if waiting.is_empty() => return,
            Err(RecvTimeoutError::Disconnected) => thread::sleep(RETRY),
        }
        waiting.extend(releases.try_iter());
        waiting.retain_mut(|release| release() == Attempt::Retry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    };

    #[test]
    fn waiting_release_delays_no_other_and_is_retried() {
        let (sender, done) = channel();
        let releases = DeferredReleases::default();
        let may_end = Arc::new(AtomicBool::new(false));
        let (first, ends) = (sender.clone(), may_end.clone());
        releases.push(Box::new(move || {
            if !ends.load(Ordering::SeqCst) {
                return Attempt::Retry;
            }
            first.send(1).unwrap();
            Attempt::Done
        }));
        releases.push(Box::new(move || {
            sender.send(2).unwrap();
            Attempt::Done
        }));
        let patience = Duration::from_secs(60);
        assert_eq!(done.recv_timeout(patience), Ok(2));
        may_end.store(true, Ordering::SeqCst);
        assert_eq!(done.recv_timeout(patience), Ok(1));
        // Releases that wait when the connection ends are not lost.
        let (sender, done) = channel();
        let mut attempts = 3;
        releases.push(Box::new(move || {
            attempts -= 1;
            if attempts > 0 {
                return Attempt::Retry;
            }
            sender.send(3).unwrap();
            Attempt::Done
        }));
        drop(releases);
        assert_eq!(done.recv_timeout(patience), Ok(3));
    }
}
