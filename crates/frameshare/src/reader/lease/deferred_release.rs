// SPDX-License-Identifier: MIT OR Apache-2.0

//! Deferred releases: a thread that retries releases until the GPU accepts them.

use std::{
    sync::{
        Mutex, PoisonError,
        mpsc::{Receiver, Sender, channel},
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

/// Main loop of the thread.
fn run(releases: &Receiver<Release>) {
    while let Ok(mut release) = releases.recv() {
        while release() == Attempt::Retry {
            thread::sleep(RETRY);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deferred_release_is_retried_in_order() {
        let (sender, receiver) = channel();
        let releases = DeferredReleases::default();
        for (number, mut attempts) in [(1, 3), (2, 1)] {
            let sender = sender.clone();
            releases.push(Box::new(move || {
                attempts -= 1;
                sender.send(number).unwrap();
                if attempts == 0 { Attempt::Done } else { Attempt::Retry }
            }));
        }
        drop(sender);
        assert_eq!(receiver.into_iter().collect::<Vec<_>>(), [1, 1, 1, 2]);
    }
}
