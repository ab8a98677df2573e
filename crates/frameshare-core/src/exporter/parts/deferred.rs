// SPDX-License-Identifier: MIT OR Apache-2.0

//! Work for the time when the state is unlocked.

use std::{any::Any, mem};

/// Owns what a change of the state leaves behind for the time when the state is unlocked: objects
/// to be dropped, which may run the application's code or wait for a GPU.
#[derive(Default)]
pub struct Deferred {
    /// User data of ended publications.
    user_data: Vec<Box<dyn Any + Send>>,
    /// Resources whose drop may wait for a GPU, for the service thread.
    resources: Vec<Box<dyn Any + Send>>,
}

impl Deferred {
    /// Has user data dropped by the thread that unlocks the state.
    pub fn drop_user_data(&mut self, what: impl IntoIterator<Item = Box<dyn Any + Send>>) {
        self.user_data.extend(what);
    }

    /// Returns whether user data waits, which may hold a slot.
    #[inline]
    pub fn has_user_data(&self) -> bool {
        !self.user_data.is_empty()
    }

    /// Returns whether anything waits to be dropped.
    #[inline]
    pub fn has_any(&self) -> bool {
        self.has_user_data() || self.has_resources()
    }

    /// Has a resource dropped by the service thread: that may wait for a GPU.
    pub fn drop_resource(&mut self, what: impl Any + Send) {
        self.resources.push(Box::new(what));
    }

    /// Returns whether resources wait for the service thread.
    #[inline]
    pub fn has_resources(&self) -> bool {
        !self.resources.is_empty()
    }

    /// Takes the user data.
    pub fn take_user_data(&mut self) -> Vec<Box<dyn Any + Send>> {
        mem::take(&mut self.user_data)
    }

    /// Takes the resources.
    pub fn take_resources(&mut self) -> Vec<Box<dyn Any + Send>> {
        mem::take(&mut self.resources)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_data_and_resources_wait_for_their_own_threads() {
        let mut deferred = Deferred::default();
        let state =
            |deferred: &Deferred| [deferred.has_user_data(), deferred.has_resources(), deferred.has_any()];
        assert_eq!(state(&deferred), [false, false, false]);
        deferred.drop_user_data([Box::new("user data") as Box<dyn Any + Send>]);
        assert_eq!(state(&deferred), [true, false, true]);
        deferred.drop_resource("resource");
        assert_eq!(state(&deferred), [true, true, true]);
        assert!(deferred.take_user_data()[0].is::<&str>());
        assert_eq!(state(&deferred), [false, true, true]);
        assert_eq!(*deferred.take_resources()[0].downcast_ref::<&str>().unwrap(), "resource");
        assert_eq!(state(&deferred), [false, false, false]);
    }
}
