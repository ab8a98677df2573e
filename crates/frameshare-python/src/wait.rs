// SPDX-License-Identifier: MIT OR Apache-2.0

//! Waits that answer signals: their slices, their limit, and the turn of one thread among several.

use pyo3::{exceptions::PyValueError, prelude::*};
use std::{
    mem,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Maximum time until a thread that waits handles signals, of which Ctrl-C is one.
pub const SLICE: Duration = Duration::from_millis(50);

/// A limit of time, with the seconds that the caller gave.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    end: Option<Instant>,
    seconds: f64,
}

impl Deadline {
    /// The time after a number of seconds; `None` is without limit.
    ///
    /// # Errors
    /// As [`duration`].
    pub fn after(seconds: Option<f64>) -> PyResult<Self> {
        let end = duration("timeout", seconds)?.and_then(|time| Instant::now().checked_add(time));
        Ok(Self { end, seconds: seconds.unwrap_or_default() })
    }

    /// Time of a wait after which Python handles its signals.
    pub fn slice(self) -> Duration {
        self.end.map_or(SLICE, |end| end.saturating_duration_since(Instant::now()).min(SLICE))
    }

    /// The seconds that the caller gave, for error texts; 0 without limit.
    pub fn seconds(self) -> f64 {
        self.seconds
    }

    /// Returns whether the time is over.
    pub fn is_over(self) -> bool {
        self.end.is_some_and(|end| end <= Instant::now())
    }
}

/// Returns a number of seconds as a duration.
///
/// # Errors
/// `ValueError` for numbers that are none, and negative ones.
pub fn duration(name: &str, seconds: Option<f64>) -> PyResult<Option<Duration>> {
    // A wait of a century is one without limit.
    const LONGEST: f64 = 100.0 * 365.0 * 86_400.0;
    let Some(seconds) = seconds else { return Ok(None) };
    if seconds.is_nan() || seconds < 0.0 {
        return Err(PyValueError::new_err(format!(
            "{name} is {seconds}, but must be a number of seconds, or None for no limit"
        )));
    }
    Ok((seconds < LONGEST).then(|| Duration::from_secs_f64(seconds)))
}

/// The turn of one thread among several. Threads without it wait for a limited time, so that they
/// handle signals, too.
#[derive(Debug, Default)]
pub struct Turn {
    state: Mutex<TurnState>,
    free: Condvar,
}

#[derive(Debug, Default)]
struct TurnState {
    is_taken: bool,
    /// Number of threads that wait. Without one, the end of a turn makes no system call.
    waiting: usize,
}

impl Turn {
    /// Takes the turn; `None` if it is not free in time.
    pub fn take(&self, time: Duration) -> Option<Taken<'_>> {
        let mut state = self.lock();
        if state.is_taken {
            state.waiting += 1;
            let waited = self.free.wait_timeout_while(state, time, |state| state.is_taken);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
        }
        // Not `then_some`: a `Taken` that is dropped here would lock again.
        (!mem::replace(&mut state.is_taken, true)).then(|| Taken(self))
    }

    fn lock(&self) -> MutexGuard<'_, TurnState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A turn that was taken; dropping it ends it.
#[derive(Debug)]
#[must_use = "dropping it ends the turn"]
pub struct Taken<'a>(&'a Turn);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_taken = false;
        let is_awaited = state.waiting > 0;
        drop(state);
        if is_awaited {
            self.0.free.notify_one();
        }
    }
}
