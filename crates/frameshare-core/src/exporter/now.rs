// SPDX-License-Identifier: MIT OR Apache-2.0

//! The present time of one step.

use super::system::System;
use std::{cell::OnceCell, marker::PhantomData, time::Instant};

/// The present time of one step: it is asked for once, if it is needed at all, and is the same for
/// all that takes part in the step. A step makes no call that may block for long: each reader has
/// its own.
#[derive(Debug)]
pub struct Now<S> {
    time: OnceCell<Instant>,
    system: PhantomData<S>,
}

impl<S> Default for Now<S> {
    fn default() -> Self {
        Self { time: OnceCell::new(), system: PhantomData }
    }
}

impl<S: System> Now<S> {
    /// The time.
    #[inline]
    pub fn get(&self) -> Instant {
        *self.time.get_or_init(S::now)
    }
}
