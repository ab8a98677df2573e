// SPDX-License-Identifier: MIT OR Apache-2.0

//! State shared by the exporter's threads, behind its lock, and the means to wake each other.

use super::State;
use crate::{
    Interrupt,
    exporter::{config::Config, error::SetupError, observe::NoticeHandler, resources::Resources},
    foreign::report,
    service::{EXPORTERS, Handle, before_blocking},
    sys::{Label, Quiet},
};
use frameshare_core::exporter::{notice::Notice, state::Rest};
use std::{
    mem,
    ops::{Deref, DerefMut},
    sync::{
        Arc, Mutex, MutexGuard, TryLockError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

/// State shared by the exporter's threads.
pub struct Shared {
    /// Tells the slots of one exporter from those of another.
    pub id: u64,
    state: Mutex<State>,
    pub handler: Arc<NoticeHandler>,
    /// Names the stream's memory files.
    pub label: Label,
    /// The background work of the stream.
    pub service: Handle,
    /// The exporter uses a GPU: calls to its driver may wait, also with the state locked.
    has_gpu: AtomicBool,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Shared {
    pub fn new(
        config: Config,
        label: Label,
        on_notice: Box<dyn Fn(Notice) + Send + Sync>,
    ) -> Result<Self, SetupError> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let has_gpu = AtomicBool::new(config.gpu.is_some());
        Ok(Self {
            id,
            state: Mutex::new(State::new(id, config, label.clone())?),
            handler: NoticeHandler::new(on_notice),
            label,
            service: EXPORTERS.reserve()?,
            has_gpu,
        })
    }

    /// Locks the state.
    pub fn lock(&self) -> Guard<'_> {
        // A panic in another thread leaves values that are each valid; continuing is better than
        // failing every reader.
        let state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => {
                before_blocking();
                self.state.lock().unwrap_or_else(|error| error.into_inner())
            }
        };
        Guard { shared: self, state: Some((state, Quiet::begin())) }
    }

    /// Returns whether the exporter uses a GPU.
    pub fn has_gpu(&self) -> bool {
        self.has_gpu.load(Ordering::Acquire)
    }

    /// Records that the exporter is about to use a GPU.
    pub fn note_gpu(&self) {
        self.has_gpu.store(true, Ordering::Release);
    }

    /// Runs `f` with the state locked.
    pub fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.lock())
    }
}

/// The locked state. Dropping it queues notices, unlocks the state, then wakes the threads and
/// readers that the changes concern, drops what ended publications kept alive, and writes to the
/// log.
#[must_use]
pub struct Guard<'a> {
    shared: &'a Shared,
    /// Taken when this is dropped.
    state: Option<(MutexGuard<'a, State>, Quiet)>,
}

impl Deref for Guard<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state.as_ref().expect("the state is locked until the guard is dropped").0
    }
}

impl DerefMut for Guard<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state.as_mut().expect("the state is locked until the guard is dropped").0
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let Some((mut state, quiet)) = self.state.take() else { return };
        let service = &self.shared.service;
        let mut unlocked = state.unlock();
        let has_notices = unlocked.rest.as_mut().is_some_and(|rest| self.shared.queue_notices(rest));
        drop(state);
        drop(quiet);
        if let Some(sleepers) = unlocked.sleepers {
            sleepers.wake();
        }
        if unlocked.polls.at_once {
            service.wake();
        } else if let Some(time) = unlocked.polls.within {
            service.wake_within(time);
        }
        // Put off by the next publication, which reclaims itself: the thread sleeps on while
        // publications follow each other.
        if let Some(time) = unlocked.polls.after_publication {
            service.wake_after(time);
        }
        if let Some(rest) = unlocked.rest {
            self.shared.finish(*rest, has_notices);
        }
    }
}

impl Shared {
    /// Queues the notices of a change, with the state locked: another thread could otherwise queue
    /// later ones first. Returns whether there are any.
    #[cold]
    fn queue_notices(&self, rest: &mut Rest<Resources>) -> bool {
        let notices = mem::take(&mut rest.notices);
        let has_notices = !notices.is_empty();
        if has_notices {
            self.handler.queue(notices);
        }
        has_notices
    }

    /// Does what few changes of the state leave to be done.
    #[cold]
    fn finish(&self, rest: Rest<Resources>, has_notices: bool) {
        if rest.change.is_some() || rest.has_resources {
            self.service.wake();
        }
        rest.change.iter().flatten().for_each(Interrupt::set);
        if !rest.dropped.is_empty() || !rest.warnings.is_empty() {
            // Foreign code.
            before_blocking();
            drop(rest.dropped);
            rest.warnings.iter().for_each(|warning| report!(warn, "{warning}"));
        }
        if has_notices {
            self.handler.start();
        }
    }
}
