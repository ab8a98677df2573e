// SPDX-License-Identifier: MIT OR Apache-2.0

//! State of a run: its tasks, and what decides about them. Does not run them: see `scheduler`.

use crate::{
    choices::Choices,
    coroutine::{Coroutine, Job},
    end::End,
    random::mix,
    settings::{Preemption, Settings},
    time::{Time, nanos},
};
use std::{
    borrow::Cow,
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

/// A simulated process: tasks that are killed together.
pub type Process = u32;

/// The part of a run that only changes between two steps.
pub struct State {
    pub choices: Choices,
    pub settings: Settings,
    /// Tasks that have not returned keep their index; the others have no code any more.
    pub tasks: Vec<Task>,
    /// Index of the task that runs, or ran last.
    pub current: usize,
    /// The end, once it is decided.
    pub end: Option<End>,
    /// Deviations that are left.
    pub deviations: u32,
    /// Lead of each process's clock over the run's clock, once one of its tasks has run.
    skews: Vec<(Process, Duration)>,
    /// Hash of what tasks share, if an enumeration cuts runs.
    hash: Option<Box<dyn Fn() -> u64>>,
}

/// A task.
pub struct Task {
    pub process: Process,
    pub name: Cow<'static, str>,
    /// The last preemption point.
    pub what: &'static str,
    pub status: Status,
    pub code: Code,
    /// Hash of all that the task's next steps depend on, but for what the tasks share.
    pub position: u64,
}

/// The code of a task.
pub enum Code {
    New(Job),
    Begun(Coroutine),
    /// Taken by the scheduler while it runs, or ended.
    Absent,
}

/// Whether a task can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    Runnable,
    /// Runnable, but behind all others.
    Paused,
    /// Runnable if its condition holds, or from this time on.
    Blocked(Option<Time>),
    /// Killed, and not unwound yet.
    Doomed,
    Finished,
}

impl State {
    pub fn new(choices: Choices, settings: Settings) -> Self {
        let deviations = settings.deviations;
        Self {
            choices,
            settings,
            tasks: Vec::new(),
            current: 0,
            end: None,
            deviations,
            skews: Vec::new(),
            hash: None,
        }
    }

    pub fn add(&mut self, process: Process, name: Cow<'static, str>, code: Job) {
        let position = self.tasks.get(self.current).map_or(0, |parent| parent.position);
        let (status, code) = (Status::Runnable, Code::New(code));
        self.tasks.push(Task { process, name, what: "start", status, code, position });
    }

    pub fn current(&self) -> &Task {
        &self.tasks[self.current]
    }

    pub fn current_mut(&mut self) -> &mut Task {
        &mut self.tasks[self.current]
    }

    /// Returns the first task that is killed and not unwound.
    pub fn next_doomed(&self) -> Option<usize> {
        self.tasks.iter().position(|task| task.status == Status::Doomed)
    }

    /// Kills the tasks of a process. They are unwound later.
    pub fn doom(&mut self, process: Process) {
        self.doom_if(|task| task.process == process);
    }

    /// Kills all tasks.
    pub fn doom_all(&mut self) {
        self.doom_if(|_| true);
    }

    fn doom_if(&mut self, is_hit: impl Fn(&Task) -> bool) {
        let hit = self.tasks.iter_mut().filter(|task| task.status != Status::Finished && is_hit(task));
        hit.for_each(|task| task.status = Status::Doomed);
    }

    /// Ends the run without a failure.
    pub fn stop(&mut self) {
        self.end.get_or_insert(End::Done);
    }

    /// Whether the task that goes on is chosen at each step.
    pub fn is_branching(&self) -> bool {
        self.settings.preemption == Preemption::Each && self.deviations > 0
    }

    /// Returns the earliest time at which a blocked task goes on by itself.
    pub fn next_deadline(&self) -> Option<Time> {
        let deadline = |task: &Task| match task.status {
            Status::Blocked(until) => until,
            _ => None,
        };
        self.tasks.iter().filter_map(deadline).min()
    }

    /// Returns the end of a run in which no task can go on.
    pub fn final_end(&self) -> End {
        let waiting = self.tasks.iter().filter(|task| task.status != Status::Finished);
        let waiting: Vec<_> =
            waiting.map(|task| format!("p{} {}: {}", task.process, task.name, task.what)).collect();
        if waiting.is_empty() { End::Done } else { End::Stuck(waiting) }
    }

    /// Returns the lead of the clock of the current task's process. It is chosen once.
    pub fn skew(&mut self) -> Duration {
        if self.settings.clock.skew.is_zero() {
            return Duration::ZERO;
        }
        let process = self.current().process;
        if let Some((_, skew)) = self.skews.iter().find(|(other, _)| *other == process) {
            return *skew;
        }
        let skew = self.settings.clock.skew * self.choices.choose(5) / 4;
        self.skews.push((process, skew));
        skew
    }

    pub fn set_hash(&mut self, hash: Option<Box<dyn Fn() -> u64>>) {
        self.hash = hash;
    }

    pub fn take_hash(&mut self) -> Option<Box<dyn Fn() -> u64>> {
        self.hash.take()
    }

    /// Returns the hash of the whole state, from that of what the tasks share.
    pub fn hash(&self, shared: u64, time: Time) -> u64 {
        let mut hasher = DefaultHasher::new();
        (shared, time).hash(&mut hasher);
        for task in &self.tasks {
            (task.status, task.what).hash(&mut hasher);
            if task.status != Status::Finished {
                task.position.hash(&mut hasher);
            }
        }
        // With all deviations allowed, it does not matter which task ran last.
        if self.deviations != u32::MAX {
            (self.deviations, self.current).hash(&mut hasher);
        }
        hasher.finish()
    }
}

impl Task {
    /// Adds a value to the position.
    pub fn mix(&mut self, value: u64) {
        self.position = mix(self.position.rotate_left(5) ^ value).wrapping_add(0x9e37_79b9_7f4a_7c15);
    }

    /// Whether the task ran last and could go on.
    pub fn is_preempted(&self) -> bool {
        self.status == Status::Runnable && matches!(self.code, Code::Begun(_))
    }

    /// Sets the preemption point.
    pub fn arrive(&mut self, what: &'static str, is_hashed: bool) {
        self.what = what;
        if is_hashed {
            let mut hasher = DefaultHasher::new();
            what.hash(&mut hasher);
            self.mix(hasher.finish());
        }
    }
}

/// Returns the nanoseconds that a step takes.
pub fn tick(settings: &Settings) -> u64 {
    nanos(settings.clock.tick)
}
