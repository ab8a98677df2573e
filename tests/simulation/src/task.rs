// SPDX-License-Identifier: MIT OR Apache-2.0

//! The interface of code in a task: preemption points, waits, choices, virtual time.
//!
//! All functions speak of the run of this thread, and of its task that is running. Outside of a
//! run, `step` does nothing, so that the code under test may be used there as well.
//!
//! # Death
//!
//! A task that is killed, and each unfinished task at the end of a run, is unwound from its present
//! preemption point. Its destructors run, but must have no effect on the world: `is_dying` is true,
//! `step` does nothing, and `block` returns at once. A destructor that panics then aborts, as in
//! each Rust program.

use crate::{
    choices::Choices,
    failure::unwind,
    scheduler::{Mode, SCHEDULER, Scheduler},
    state::{Process, State, Status},
    time::Time,
    trace,
};
use std::{borrow::Cow, thread};

/// Adds a line to the trace of the run: arguments like `format!`, not evaluated without a trace.
#[macro_export]
macro_rules! trace {
    ($($argument:tt)*) => {
        $crate::task::note(|| format!($($argument)*))
    };
}

/// Adds a line to the trace of the run.
pub fn note(line: impl FnOnce() -> String) {
    if trace::is_on() {
        SCHEDULER.with(|scheduler| {
            if matches!(scheduler.mode.get(), Mode::Setup | Mode::Running) {
                scheduler.trace(&line());
            }
        });
    }
}

/// Adds a task to a process. It may run from the next preemption point on.
///
/// # Panics
/// Outside of a run.
pub fn spawn(process: Process, name: impl Into<Cow<'static, str>>, code: impl FnOnce() + 'static) {
    if is_dying() {
        return;
    }
    let name = name.into();
    note(|| format!("spawns p{process} {name}"));
    SCHEDULER.with(|scheduler| scheduler.with(|state| state.add(process, name, Box::new(code))));
}

/// A preemption point: another task may run here. `what` names it in traces and reports.
#[inline]
pub fn step(what: &'static str) {
    SCHEDULER.with(|scheduler| {
        let fuel = scheduler.fuel.get();
        if fuel > 1 {
            scheduler.fuel.set(fuel - 1);
        } else {
            last_step(scheduler, what);
        }
    });
}

#[cold]
#[inline(never)]
fn last_step(scheduler: &Scheduler, what: &'static str) {
    if may_switch(scheduler) && !scheduler.spend(1, what) {
        scheduler.suspend(Status::Runnable);
        unwind_if_dying(scheduler);
    }
}

/// A preemption point where all other tasks that can run go first: for loops that wait for others
/// without `block`.
pub fn pause(what: &'static str) {
    SCHEDULER.with(|scheduler| {
        if may_switch(scheduler) {
            scheduler.spend(1, what);
            scheduler.suspend(Status::Paused);
            unwind_if_dying(scheduler);
        }
    });
}

/// Ends a part of the run in which no task was preempted: from now on, tasks are preempted at each
/// step (see `Preemption`). A preemption point.
pub fn preempt_at_each_step() {
    SCHEDULER.with(|scheduler| {
        if may_switch(scheduler) {
            note(|| "tasks are preempted from now on".into());
            scheduler.begin_branching();
            scheduler.suspend(Status::Runnable);
            unwind_if_dying(scheduler);
        }
    });
}

/// Waits until `ready` returns true, or until the time `until`. A preemption point in any case.
///
/// Returns whether `ready` returned true at last. `ready` must have no effect; it is called often,
/// between steps of other tasks, and is not interrupted. A task that is dying does not wait.
pub fn block(what: &'static str, until: Option<Time>, ready: impl Fn() -> bool) -> bool {
    step(what);
    SCHEDULER.with(|scheduler| {
        if !may_switch(scheduler) {
            return false;
        }
        let evaluate = || {
            let fuel = scheduler.fuel.replace(0);
            let mode = scheduler.mode.replace(Mode::Polling);
            let is_ready = ready();
            scheduler.mode.set(mode);
            scheduler.fuel.set(fuel);
            is_ready
        };
        let mut is_ready = evaluate();
        if !is_ready && until.is_none_or(|until| now() < until) {
            note(|| format!("blocks: {what}"));
            scheduler.with(|state| state.current_mut().what = what);
            let until = until.map(|until| until - scheduler.skew.get());
            loop {
                scheduler.suspend(Status::Blocked(until));
                unwind_if_dying(scheduler);
                is_ready = evaluate();
                if scheduler.mode.get() == Mode::Running {
                    break;
                }
                scheduler.answer.set(is_ready);
            }
        }
        scheduler.mix(u64::from(is_ready));
        is_ready
    })
}

/// Kills a process: none of its tasks takes a further step, and their destructors have no effect.
/// Does not return if it is the caller's own process. A later `spawn` may begin it anew.
pub fn kill(process: Process) {
    if is_dying() {
        return;
    }
    note(|| format!("kills p{process}"));
    SCHEDULER.with(|scheduler| {
        scheduler.with(|state| state.doom(process));
        if self::process() == Some(process) {
            die(scheduler);
        }
    });
}

/// Ends the run as `End::Done`, whatever the other tasks do. Not for destructors.
pub fn stop() -> ! {
    SCHEDULER.with(|scheduler| {
        if !is_dying() {
            note(|| "ends the run".into());
            scheduler.with(State::stop);
        }
        die(scheduler)
    })
}

/// Returns the time on the clock of the caller's process: virtual time, and the process's skew.
pub fn now() -> Time {
    SCHEDULER.with(|scheduler| {
        let now = scheduler.time() + scheduler.skew.get();
        scheduler.mix(now.as_nanos());
        now
    })
}

/// Whether the task is being unwound, since it was killed, the run is over, or it panicked.
/// Destructors that run now must have no effect on the world.
#[inline]
pub fn is_dying() -> bool {
    SCHEDULER.with(|scheduler| scheduler.mode.get() == Mode::Dying) || thread::panicking()
}

/// Returns the process of the running task; `None` outside of tasks.
pub fn process() -> Option<Process> {
    SCHEDULER.with(|scheduler| match scheduler.mode.get() {
        Mode::Outside | Mode::Setup => None,
        _ => Some(scheduler.with(|state| state.current().process)),
    })
}

/// Chooses a number below `n` (see `Choices::choose`). 0 while the task is dying.
pub fn choose(n: u32) -> u32 {
    with_choices(|choices| choices.choose(n)).unwrap_or_default()
}

/// Chooses true once in `one_in` times (see `Choices::chance`). False while the task is dying.
pub fn chance(one_in: u32) -> bool {
    with_choices(|choices| choices.chance(one_in).into()).unwrap_or_default() == 1
}

/// Chooses one of `items` (see `Choices::among`). The first while the task is dying.
pub fn among<T>(items: &[T]) -> &T {
    &items[choose(items.len() as u32) as usize]
}

/// Chooses an index (see `Choices::weighted`). 0 while the task is dying.
pub fn weighted(weights: &[u32]) -> usize {
    with_choices(|choices| choices.weighted(weights) as u32).unwrap_or_default() as usize
}

fn with_choices(choose: impl FnOnce(&mut Choices) -> u32) -> Option<u32> {
    SCHEDULER.with(|scheduler| {
        if is_dying() {
            return None;
        }
        assert!(scheduler.mode.get() != Mode::Polling, "a choice in the condition of `block`");
        let value = scheduler.with(|state| choose(&mut state.choices));
        scheduler.mix(value.into());
        Some(value)
    })
}

/// Gives the state of the world to an enumeration that cuts runs at states seen before.
///
/// `state` returns a hash of all that tasks share. The scheduler adds the time and the position of
/// each task: its place, what it has observed (see `observe`), the times that it has read, and its
/// choices.
pub fn set_state(state: impl Fn() -> u64 + 'static) {
    SCHEDULER.with(|scheduler| {
        let is_cut = scheduler.with(|inner| {
            inner.set_hash(Some(Box::new(state)));
            inner.choices.cuts_runs()
        });
        scheduler.is_hashing.set(is_cut);
    });
}

/// Adds a value that the task has read to its position. If runs are cut at states seen
/// before, each value that a task reads from what tasks share must be observed.
#[inline]
pub fn observe(value: u64) {
    SCHEDULER.with(|scheduler| scheduler.mix(value));
}

/// Forgets what the task has observed: for the head of a loop, where the hash of the world holds
/// all that the task's next steps depend on.
pub fn forget() {
    SCHEDULER.with(|scheduler| {
        if scheduler.mode.get() == Mode::Running && scheduler.is_hashing.get() {
            scheduler.with(|state| state.current_mut().position = 0);
        }
    });
}

/// Whether this task may be suspended here. Unwinds a task that runs on though it was killed.
fn may_switch(scheduler: &Scheduler) -> bool {
    if thread::panicking() {
        return false;
    }
    unwind_if_dying(scheduler);
    scheduler.mode.get() == Mode::Running
}

fn unwind_if_dying(scheduler: &Scheduler) {
    if scheduler.mode.get() == Mode::Dying {
        unwind();
    }
}

fn die(scheduler: &Scheduler) -> ! {
    if scheduler.mode.get() == Mode::Running {
        scheduler.leave(Mode::Dying);
    }
    unwind()
}
