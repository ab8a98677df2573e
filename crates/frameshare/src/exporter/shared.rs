// SPDX-License-Identifier: MIT OR Apache-2.0

//! State shared by the exporter's threads, behind its lock, and the means to wake each other.

use super::{
    Guard,
    config::Config,
    notice::Notice,
    observer::Observer,
    state::{State, Watch},
};
use crate::{Interrupt, sys::Timer, sys::backoff::Backoff};
use std::{
    mem,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// State shared by the exporter's threads.
pub(super) struct Shared {
    /// Tells the slots of one exporter from those of another.
    pub id: u64,
    state: Mutex<State>,
    pub observer: Arc<Observer>,
    /// Wakes the service thread at once.
    pub service: Interrupt,
    /// Wakes the service thread later.
    pub later: Timer,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The reason why an exporter could not be set up.
pub(super) type SetupError = Box<dyn std::error::Error + Send + Sync>;

impl Shared {
    pub fn new(config: Config, observer: Box<dyn Fn(Notice) + Send + Sync>) -> Result<Self, SetupError> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        Ok(Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            state: Mutex::new(State::new(config)?),
            observer: Observer::new(observer),
            service: Interrupt::new()?,
            later: Timer::new()?,
        })
    }

    pub fn lock(&self) -> Guard<'_> {
        // A panic in another thread leaves values that are each valid; continuing is better than
        // failing every reader.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `f` with the state locked, then the deferred work with the state unlocked.
    pub fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let result = f(&mut state);
        self.finish(state);
        result
    }

    /// Queues notices for the observer, unlocks the state, then starts their delivery and drops
    /// what ended publications kept alive.
    pub fn finish(&self, mut state: Guard<'_>) {
        let notices = mem::take(&mut state.notices);
        let has_notices = !notices.is_empty();
        if has_notices {
            // Queued with the state locked: another thread could otherwise queue later notices
            // first.
            self.observer.queue(notices);
        }
        let dropped = mem::take(&mut state.dropped);
        let links_changed = mem::take(&mut state.links_changed);
        let sleepers = mem::take(&mut state.sleepers);
        let service_needed = links_changed || !state.trash.is_empty();
        let (wanted, watch) = (mem::take(&mut state.watch_wanted), state.watch);
        state.watch = watch.max(wanted);
        let bells = if links_changed { state.waiters.bells() } else { Vec::new() };
        drop(state);
        for wake in sleepers {
            wake.ring();
        }
        if service_needed || wanted == Watch::Close && watch != Watch::Close {
            self.service.set();
        } else if wanted == Watch::Unhurried {
            // Each publication puts this off, since it reclaims itself: the thread sleeps on while
            // publications follow each other.
            self.later.set(Backoff::UNHURRIED);
        }
        if links_changed {
            bells.iter().for_each(Interrupt::set);
        }
        drop(dropped);
        if has_notices {
            self.observer.start();
        }
    }
}
