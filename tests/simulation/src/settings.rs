// SPDX-License-Identifier: MIT OR Apache-2.0

//! Settings of a run: preemption, clock faults and the bound on steps. A world may draw them from
//! the run's choices, so that runs differ in kind: often and rarely preempted, with and without
//! faults of the clock.

use std::time::Duration;

/// Settings of a run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where tasks are preempted.
    pub preemption: Preemption,
    /// Choices of a run at most that run another task than the default, which is the present task
    /// while it can go on, and then the next one. With `Preemption::Each`, a small bound makes
    /// enumerations of larger worlds possible: most errors need one or two deviations.
    pub deviations: u32,
    /// The clock.
    pub clock: Clock,
    /// Steps after which a run ends as `End::TooLong`.
    pub steps: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            preemption: Preemption::Sparse { mean: 16 },
            deviations: u32::MAX,
            clock: Clock::default(),
            steps: 1_000_000,
        }
    }
}

/// Where tasks are preempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preemption {
    /// Nowhere, and no task is chosen: for the part of a run before `task::preempt_at_each_step`.
    Never,
    /// After a number of steps that is chosen when a task is resumed: `mean` on average.
    Sparse {
        /// Steps.
        mean: u32,
    },
    /// At each step, the task that goes on is chosen, those that have paused included. For
    /// enumerations.
    Each,
}

/// The clock of a run. All values may be 0.
#[derive(Clone, Debug)]
pub struct Clock {
    /// Time that a step takes.
    pub tick: Duration,
    /// When a task is resumed, the clock fails once in so many times, and never if 0: it stands
    /// until the next switch, jumps to the next deadline, or jumps by up to `jump`.
    pub fault_one_in: u32,
    /// The longest jump that is no jump to a deadline.
    pub jump: Duration,
    /// The clocks of processes are ahead of the run's by up to this, each by a constant.
    pub skew: Duration,
}

impl Default for Clock {
    fn default() -> Self {
        Self {
            tick: Duration::from_nanos(50),
            fault_one_in: 0,
            jump: Duration::from_secs(1),
            skew: Duration::ZERO,
        }
    }
}
