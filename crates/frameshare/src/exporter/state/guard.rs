// SPDX-License-Identifier: MIT OR Apache-2.0

//! State shared by the exporter's threads, behind its lock, and the means to wake each other.

use super::State;
use crate::{
    Interrupt,
    exporter::{
        config::Config,
        error::SetupError,
        observe::{Notice, NoticeHandler},
    },
    foreign::report,
    service::{EXPORTERS, Handle, before_blocking},
    sys::{Label, Quiet},
};
use std::{
    any::Any,
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
        let has_gpu = AtomicBool::new(config.gpu.is_some());
        Ok(Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            state: Mutex::new(State::new(config, label.clone())?),
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
        let sleepers = state.take_sleepers();
        let polls = state.polling.take_order();
        let rest = state.leaves_more().then(|| Rest::take(&mut state, &self.shared.handler));
        drop(state);
        drop(quiet);
        if let Some(sleepers) = sleepers {
            sleepers.wake();
        }
        if polls.at_once {
            service.wake();
        } else if let Some(time) = polls.within {
            service.wake_within(time);
        }
        // Put off by the next publication, which reclaims itself: the thread sleeps on while
        // publications follow each other.
        if let Some(time) = polls.after_publication {
            service.wake_after(time);
        }
        if let Some(rest) = rest {
            rest.finish(self.shared);
        }
    }
}

/// Work that few changes of the state leave for the time when it is unlocked.
struct Rest {
    dropped: Vec<Box<dyn Any + Send>>,
    warnings: Vec<String>,
    /// Waiting threads, if they and the service thread have to see a change.
    change: Option<Vec<Interrupt>>,
    has_resources: bool,
    has_notices: bool,
}

impl Rest {
    #[cold]
    fn take(state: &mut State, handler: &NoticeHandler) -> Self {
        let notices = state.reports.take_notices();
        let has_notices = !notices.is_empty();
        if has_notices {
            // Queued with the state locked: another thread could otherwise queue later notices
            // first.
            handler.queue(notices);
        }
        Self {
            dropped: state.deferred.take_user_data(),
            warnings: state.reports.take_warnings(),
            change: state.waiters.take_change(),
            has_resources: state.deferred.has_resources(),
            has_notices,
        }
    }

    #[cold]
    fn finish(self, shared: &Shared) {
        if self.change.is_some() || self.has_resources {
            shared.service.wake();
        }
        self.change.iter().flatten().for_each(Interrupt::set);
        if !self.dropped.is_empty() || !self.warnings.is_empty() {
            // Foreign code.
            before_blocking();
            drop(self.dropped);
            self.warnings.iter().for_each(|warning| report!(warn, "{warning}"));
        }
        if self.has_notices {
            shared.handler.start();
        }
    }
}
