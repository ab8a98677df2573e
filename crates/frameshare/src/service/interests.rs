// SPDX-License-Identifier: MIT OR Apache-2.0

//! The descriptors that a task waits for, and their registrations with the kernel.

use crate::sys::{Epoll, Interest};
use std::{
    collections::BTreeMap,
    os::fd::{AsFd, AsRawFd},
    sync::Arc,
    time::{Duration, Instant},
};

/// Pause after which descriptors are registered again that could not be, for lack of memory.
const RETRY: Duration = Duration::from_millis(10);

/// A descriptor that stays open for as long as it is registered.
pub(super) type SharedFd = Arc<dyn AsFd + Send + Sync>;

/// The descriptors that a task waits for, each under a key.
pub(crate) struct Interests<K> {
    /// The high half of the numbers of events: the task.
    task: u32,
    next: u32,
    registered: BTreeMap<K, Registered>,
    /// Those that the present turn has asked for.
    wanted: Vec<(K, SharedFd, Interest)>,
}

struct Registered {
    fd: SharedFd,
    registration: u32,
    interest: Interest,
    /// It has reported an event since it was armed.
    has_fired: bool,
}

impl Registered {
    fn is_of(&self, fd: &SharedFd) -> bool {
        // Both are open, so that equal numbers are one descriptor.
        self.fd.as_fd().as_raw_fd() == fd.as_fd().as_raw_fd()
    }
}

impl<K: Copy + Ord> Interests<K> {
    pub(super) fn new(task: u32) -> Self {
        Self { task, next: 0, registered: BTreeMap::new(), wanted: Vec::new() }
    }

    /// Waits for an event of a descriptor from the end of this turn to the next turn.
    pub fn want(&mut self, key: K, fd: SharedFd, interest: Interest) {
        self.wanted.push((key, fd, interest));
    }

    /// Returns the keys of registrations that have an event, in order.
    pub(super) fn fired(&mut self, registrations: &[u32]) -> Vec<K> {
        let has_event = |registered: &Registered| registrations.contains(&registered.registration);
        let fired = self.registered.iter_mut().filter(|(_, registered)| has_event(registered));
        fired
            .map(|(key, registered)| {
                registered.has_fired = true;
                *key
            })
            .collect()
    }

    /// Registers what the turn has asked for, and removes everything else. Returns the time to try
    /// again, if the kernel lacks memory for it.
    pub(super) fn apply(&mut self, epoll: &Epoll) -> Option<Instant> {
        let wanted: BTreeMap<K, _> =
            self.wanted.drain(..).map(|(key, fd, interest)| (key, (fd, interest))).collect();
        // Before others are added: a descriptor may have another key from now on.
        self.registered.retain(|key, registered| {
            let stays = wanted.get(key).is_some_and(|(fd, _)| registered.is_of(fd));
            if !stays {
                epoll.remove(&registered.fd);
            }
            stays
        });
        let mut retry = None;
        for (key, (fd, interest)) in wanted {
            let number = |registration: u32| u64::from(self.task) << 32 | u64::from(registration);
            let result = match self.registered.get_mut(&key) {
                Some(registered) if registered.has_fired || registered.interest != interest => {
                    (registered.interest, registered.has_fired) = (interest, false);
                    epoll.arm(&fd, number(registered.registration), interest)
                }
                Some(_) => continue,
                None => {
                    let registration = self.next;
                    self.next = self.next.wrapping_add(1);
                    let added = epoll.add(&fd, number(registration), interest);
                    if added.is_ok() {
                        let registered = Registered { fd, registration, interest, has_fired: false };
                        self.registered.insert(key, registered);
                    }
                    added
                }
            };
            if result.is_err() {
                if let Some(registered) = self.registered.get_mut(&key) {
                    registered.has_fired = true;
                }
                retry = Some(Instant::now() + RETRY);
            }
        }
        retry
    }

    /// Removes all registrations.
    pub(super) fn clear(&mut self, epoll: &Epoll) {
        self.wanted.clear();
        std::mem::take(&mut self.registered).values().for_each(|registered| epoll.remove(&registered.fd));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{Interrupt, Timeout};

    const TASK: u32 = 3;

    fn events(epoll: &Epoll) -> Vec<u32> {
        let mut found = Vec::new();
        epoll.wait(&mut found, Timeout::after(Some(Duration::ZERO))).unwrap();
        assert!(found.iter().all(|number| number >> 32 == u64::from(TASK)));
        found.iter().map(|number| *number as u32).collect()
    }

    #[test]
    fn descriptor_is_armed_again_after_each_turn_that_wants_it() {
        let epoll = Epoll::new().unwrap();
        let mut interests = Interests::new(TASK);
        let interrupt = Interrupt::new().unwrap();
        let fd: SharedFd = Arc::new(interrupt.clone());
        let mut turn = |wants: bool, ready: &[u32]| {
            let keys = interests.fired(ready);
            if wants {
                interests.want('a', fd.clone(), Interest::Input);
            }
            assert_eq!(interests.apply(&epoll), None);
            keys
        };
        assert_eq!(turn(true, &[]), []);
        interrupt.set();
        let ready = events(&epoll);
        assert_eq!(events(&epoll), []);
        assert_eq!(turn(true, &ready), ['a']);
        let again = events(&epoll);
        assert_eq!((again.clone(), turn(false, &again)), (ready.clone(), vec!['a']));
        assert_eq!(events(&epoll), []);
        // An event of a registration that has ended is ignored.
        assert_eq!(turn(true, &ready), []);
        assert_ne!(events(&epoll), ready);
    }

    #[test]
    fn descriptor_may_change_its_key_and_key_its_descriptor() {
        let epoll = Epoll::new().unwrap();
        let mut interests = Interests::new(TASK);
        let interrupts = [(); 2].map(|()| Interrupt::new().unwrap());
        let fds = interrupts.clone().map(|interrupt| Arc::new(interrupt) as SharedFd);
        interrupts[0].set();
        for (key, fd) in [('b', 0), ('a', 0), ('a', 1), ('a', 0)] {
            interests.want(key, fds[fd].clone(), Interest::Input);
            assert_eq!(interests.apply(&epoll), None);
            let ready = events(&epoll);
            assert_eq!(interests.fired(&ready), if fd == 0 { vec![key] } else { vec![] });
        }
        interests.clear(&epoll);
        assert_eq!(Arc::strong_count(&fds[0]), 1);
    }
}
