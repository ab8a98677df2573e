// SPDX-License-Identifier: MIT OR Apache-2.0

//! Locks of the elements: each is a leaf, held for a copy or a swap.

use std::{
    mem,
    ops::Deref,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Release},
        },
    },
};

/// Locks a mutex. A poisoned lock is safe to use: the guarded data is consistent at all times.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// State of a streaming thread, which takes it out for a frame, an event or a query, works on it
/// with no lock held, and puts it back. GStreamer's stream lock orders these: a second taker, such
/// as a handler of a message that the first one posts, finds none.
#[derive(Debug)]
pub(crate) struct Exclusive<T>(Mutex<Place<T>>);

/// The place of the state.
#[derive(Debug)]
enum Place<T> {
    /// There is none: the element is stopped.
    Nowhere,
    Here(Box<T>),
    /// With the thread that works on it.
    Taken,
}

impl<T> Default for Exclusive<T> {
    fn default() -> Self {
        Self(Mutex::new(Place::Nowhere))
    }
}

impl<T> Exclusive<T> {
    /// Begins with this state.
    pub fn set(&self, state: T) {
        let last = mem::replace(&mut *lock(&self.0), Place::Here(Box::new(state)));
        drop(last);
    }

    /// Ends the state and returns it. If a thread works on it, that thread drops it.
    pub fn clear(&self) -> Option<Box<T>> {
        match mem::replace(&mut *lock(&self.0), Place::Nowhere) {
            Place::Here(state) => Some(state),
            Place::Nowhere | Place::Taken => None,
        }
    }

    /// Takes the state out for this work, which may block and call other code; none if there is no
    /// state, or it is taken.
    pub fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        let mut state = self.take()?;
        let result = work(&mut state);
        self.put_back(state);
        Some(result)
    }

    /// Returns whether a thread works on the state.
    pub fn is_taken(&self) -> bool {
        matches!(*lock(&self.0), Place::Taken)
    }

    /// Changes the state with its lock held: for a copy or a swap only. None if there is no state,
    /// or it is taken.
    pub fn edit<R>(&self, change: impl FnOnce(&mut T) -> R) -> Option<R> {
        match &mut *lock(&self.0) {
            Place::Here(state) => Some(change(state)),
            Place::Nowhere | Place::Taken => None,
        }
    }

    fn take(&self) -> Option<Box<T>> {
        let mut place = lock(&self.0);
        match mem::replace(&mut *place, Place::Taken) {
            Place::Here(state) => Some(state),
            other => {
                *place = other;
                None
            }
        }
    }

    fn put_back(&self, state: Box<T>) {
        let mut place = lock(&self.0);
        if matches!(*place, Place::Taken) {
            *place = Place::Here(state);
        } else {
            // It was ended meanwhile.
            drop(place);
            drop(state);
        }
    }
}

/// A value that changes seldom, and that each frame needs: a frame reads it from a [`Cached`] copy.
#[derive(Debug, Default)]
pub(crate) struct Versioned<T> {
    value: Mutex<T>,
    /// Number of changes; it changes with the lock held.
    version: AtomicU64,
}

impl<T> Versioned<T> {
    /// Returns the value, locked: for a lookup.
    pub fn read(&self) -> impl Deref<Target = T> + '_ {
        lock(&self.value)
    }

    /// Changes the value.
    pub fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let mut value = lock(&self.value);
        let result = change(&mut value);
        self.version.fetch_add(1, Release);
        result
    }
}

/// A copy of a [`Versioned`] value, owned by one thread. It takes the lock after a change only.
#[derive(Debug, Default)]
pub(crate) struct Cached<T> {
    value: T,
    /// Version of the copy: 0 for the default value, with which a [`Versioned`] value begins.
    version: u64,
}

impl<T: Clone> Cached<T> {
    /// Copies the present value.
    pub fn of(value: &Versioned<T>) -> Self {
        let present = lock(&value.value);
        Self { value: present.clone(), version: value.version.load(Acquire) }
    }

    /// Returns the present value.
    pub fn refresh(&mut self, value: &Versioned<T>) -> &T {
        if self.version != value.version.load(Acquire) {
            *self = Self::of(value);
        }
        &self.value
    }
}

impl<T> Deref for Cached<T> {
    type Target = T;

    /// Returns the value of the last refresh.
    fn deref(&self) -> &T {
        &self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn taken_state_is_found_by_nobody_and_comes_back() {
        let state = Exclusive::default();
        assert_eq!(state.with(|_: &mut u32| ()), None, "there is none yet");
        state.set(1);
        let inner = state.with(|taken| {
            *taken += 1;
            (state.with(|_| ()), state.edit(|_| ()), state.is_taken())
        });
        assert_eq!((inner, state.is_taken()), (Some((None, None, true)), false));
        assert_eq!(state.edit(|state| std::mem::replace(state, 5)), Some(2));
        assert_eq!(state.clear(), Some(Box::new(5)));
        assert_eq!(state.edit(|_| ()), None);
    }

    #[test]
    fn state_that_is_cleared_while_taken_does_not_come_back() {
        let (state, alive) = (Exclusive::default(), Arc::new(()));
        state.set(alive.clone());
        state.with(|_| assert_eq!(state.clear(), None));
        assert_eq!(Arc::strong_count(&alive), 1);
        assert_eq!(state.with(|_| ()), None);
    }

    #[test]
    fn cached_copy_follows_changes() {
        let (value, mut cached) = (Versioned::<u32>::default(), Cached::<u32>::default());
        assert_eq!(*cached.refresh(&value), 0);
        value.change(|value| *value = 7);
        assert_eq!((*cached, *cached.refresh(&value), *cached), (0, 7, 7));
        assert_eq!(*value.read(), 7);
    }
}
