// SPDX-License-Identifier: MIT OR Apache-2.0

//! Scheduler: decides which task of a run goes on, and when time passes.
//!
//! One run at a time and thread. The scheduler is the code between two tasks; `task` is what tasks
//! call. A task is granted `fuel`, a number of steps, and only the last of them enters the
//! scheduler: a step that does not switch costs a decrement.

use crate::{
    choices::Choices,
    coroutine::{self, Coroutine},
    end::End,
    failure::{Failure, Unwound, catch, unwind},
    settings::{Preemption, Settings},
    state::{Code, State, Status, tick},
    time::{Time, nanos},
    trace,
};
use std::{
    cell::{Cell, RefCell},
    mem,
    time::Duration,
};

/// The kind of code that runs now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// No part of a run.
    Outside,
    /// The world before its first task, or the scheduler.
    Setup,
    /// A task.
    Running,
    /// The condition of a blocked task.
    Polling,
    /// A task that is being unwound.
    Dying,
}

/// The run of this thread.
pub struct Scheduler {
    pub mode: Cell<Mode>,
    /// Steps that the task may make until it enters the scheduler, this one included; 0 unless a
    /// task is running.
    pub fuel: Cell<u64>,
    /// Fuel when `steps` and `time` were last brought up to date.
    granted: Cell<u64>,
    /// Steps that the task may make until it is preempted.
    quantum: Cell<u64>,
    steps: Cell<u64>,
    /// Nanoseconds.
    time: Cell<u64>,
    /// Nanoseconds of a step, until the next switch.
    tick: Cell<u64>,
    /// Lead of the clock of the task's process over the run's clock.
    pub skew: Cell<Duration>,
    /// Whether the condition of a polled task holds.
    pub answer: Cell<bool>,
    /// Whether positions of tasks are kept.
    pub is_hashing: Cell<bool>,
    /// Memory for the tasks that can run.
    candidates: Cell<Vec<usize>>,
    state: RefCell<Option<State>>,
}

thread_local! {
    pub static SCHEDULER: Scheduler = const { Scheduler {
        mode: Cell::new(Mode::Outside),
        fuel: Cell::new(0),
        granted: Cell::new(0),
        quantum: Cell::new(0),
        steps: Cell::new(0),
        time: Cell::new(0),
        tick: Cell::new(0),
        skew: Cell::new(Duration::ZERO),
        answer: Cell::new(false),
        is_hashing: Cell::new(false),
        candidates: Cell::new(Vec::new()),
        state: RefCell::new(None),
    } };
}

/// Begins a run.
pub fn begin(choices: Choices, settings: &Settings) {
    SCHEDULER.with(|scheduler| {
        assert!(scheduler.mode.get() == Mode::Outside, "a run begins inside another");
        scheduler.mode.set(Mode::Setup);
        scheduler.quantum.set(0);
        scheduler.steps.set(0);
        scheduler.time.set(0);
        scheduler.skew.set(Duration::ZERO);
        scheduler.is_hashing.set(false);
        *scheduler.state.borrow_mut() = Some(State::new(choices, settings.clone()));
    });
}

/// Runs tasks until the run ends.
pub fn drive() -> End {
    SCHEDULER.with(|scheduler| {
        loop {
            scheduler.bury();
            match scheduler.pick() {
                Ok(task) => scheduler.run(task),
                Err(end) => return end,
            }
        }
    })
}

/// Ends the run and unwinds all unfinished tasks. Returns its choices, steps and time.
pub fn finish() -> (Choices, u64, Time) {
    SCHEDULER.with(|scheduler| {
        scheduler.with(State::doom_all);
        scheduler.bury();
        let hash = scheduler.with(State::take_hash);
        drop(hash);
        let state = scheduler.state.take().expect("the run has begun");
        scheduler.mode.set(Mode::Outside);
        (state.choices, scheduler.steps.get(), scheduler.time())
    })
}

impl Scheduler {
    /// Calls `f` with the state. `f` must not run code of tasks or of the world.
    pub fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        f(self.state.borrow_mut().as_mut().expect("a simulated run is under way on this thread"))
    }

    /// Returns the time on the run's clock.
    pub fn time(&self) -> Time {
        let steps = self.granted.get() - self.fuel.get();
        Time::from_nanos(self.time.get().saturating_add(steps.saturating_mul(self.tick.get())))
    }

    /// Adds a line to the trace.
    pub fn trace(&self, line: &str) {
        let who = if self.mode.get() == Mode::Setup {
            "scheduler".into()
        } else {
            self.with(|state| format!("p{} {}", state.current().process, state.current().name))
        };
        trace::push(format!("[{:>16}] {who}: {line}", self.time().to_string()));
    }

    /// Adds a value to the position of the running task.
    pub fn mix(&self, value: u64) {
        if self.is_hashing.get() && self.mode.get() == Mode::Running {
            self.with(|state| state.current_mut().mix(value));
        }
    }

    /// Has tasks be preempted at each step from now on. The caller returns to the scheduler next.
    pub fn begin_branching(&self) {
        self.with(|state| state.settings.preemption = Preemption::Each);
    }

    /// Brings steps and time up to date.
    pub fn settle(&self) {
        let time = self.time();
        let steps = self.granted.replace(self.fuel.get()) - self.fuel.get();
        self.steps.set(self.steps.get() + steps);
        self.quantum.set(self.quantum.get() - steps);
        self.time.set(time.as_nanos());
    }

    /// Leaves a task, or its regular code.
    pub fn leave(&self, mode: Mode) {
        self.settle();
        self.fuel.set(0);
        self.granted.set(0);
        self.mode.set(mode);
    }

    /// Uses up fuel at a preemption point. Returns whether the task may go on without a switch.
    pub fn spend(&self, steps: u64, what: &'static str) -> bool {
        self.fuel.set(self.fuel.get() - steps);
        self.settle();
        if trace::is_on() {
            self.trace(what);
        }
        let is_hashed = self.is_hashing.get();
        let limit = self.with(|state| {
            state.current_mut().arrive(what, is_hashed);
            state.settings.steps
        });
        if self.steps.get() >= limit {
            self.with(|state| state.end = Some(End::TooLong));
            return false;
        }
        self.refuel(limit);
        self.quantum.get() > 0
    }

    fn refuel(&self, limit: u64) {
        // Each step has a line in the trace, and belongs to the position of its task.
        let most = if trace::is_on() || self.is_hashing.get() { 1 } else { u64::MAX };
        let fuel = self.quantum.get().min(limit - self.steps.get()).min(most);
        self.granted.set(fuel);
        self.fuel.set(fuel);
    }

    /// Returns to the scheduler until this task is resumed.
    pub fn suspend(&self, status: Status) {
        self.settle();
        self.with(|state| state.current_mut().status = status);
        coroutine::suspend();
    }

    /// Runs a task until it is suspended or returns.
    fn run(&self, task: usize) {
        let (limit, skew, tick, quantum) = self.with(|state| {
            state.current = task;
            state.current_mut().status = Status::Runnable;
            let settings = &state.settings;
            let (limit, tick) = (settings.steps, tick(settings));
            let mut quantum = match settings.preemption {
                Preemption::Never => 0,
                Preemption::Each => state.is_branching().into(),
                Preemption::Sparse { mean } => state.choices.length(mean).into(),
            };
            if quantum == 0 {
                quantum = u64::MAX;
            }
            (limit, state.skew(), tick, quantum)
        });
        let tick = if self.clock_stands() { 0 } else { tick };
        self.tick.set(tick);
        self.quantum.set(quantum);
        self.skew.set(skew);
        self.refuel(limit);
        self.resume(task, Mode::Running);
    }

    /// Evaluates the condition of a blocked task.
    fn poll(&self, task: usize) -> bool {
        let current = self.with(|state| mem::replace(&mut state.current, task));
        self.resume(task, Mode::Polling);
        self.with(|state| state.current = current);
        self.answer.get()
    }

    /// Enters the code of a task. Leaves it with no fuel.
    fn resume(&self, task: usize, mode: Mode) {
        self.mode.set(mode);
        let code = self.with(|state| mem::replace(&mut state.tasks[task].code, Code::Absent));
        let mut coroutine = match code {
            Code::New(job) => Coroutine::start(Box::new(move || {
                let failure = match catch(job) {
                    Err(Unwound::Failed(failure)) => Some(failure),
                    Ok(()) | Err(Unwound::Killed) => None,
                };
                SCHEDULER.with(|scheduler| scheduler.ended(failure));
            })),
            Code::Begun(mut coroutine) => {
                coroutine.resume();
                coroutine
            }
            Code::Absent => unreachable!("a task that has ended is not resumed"),
        };
        if coroutine.has_overflowed() {
            self.ended(Some(Failure::here("stack overflow of a task")));
            self.leave(Mode::Setup);
            return coroutine.leak();
        }
        self.leave(Mode::Setup);
        let rest = self.with(|state| {
            let task = &mut state.tasks[task];
            if task.status == Status::Finished {
                return Some(coroutine);
            }
            task.code = Code::Begun(coroutine);
            None
        });
        if let Some(coroutine) = rest {
            coroutine.recycle();
        }
    }

    /// Notes that the current task has returned or panicked.
    fn ended(&self, failure: Option<Failure>) {
        if trace::is_on() {
            self.trace(if failure.is_some() {
                "fails"
            } else if self.mode.get() == Mode::Dying {
                "is dead"
            } else {
                "returns"
            });
        }
        self.with(|state| {
            state.current_mut().status = Status::Finished;
            if let Some(failure) = failure {
                state.end.get_or_insert(End::Failed(failure));
            }
        });
    }

    /// Unwinds killed tasks.
    fn bury(&self) {
        while let Some(task) = self.with(|state| state.next_doomed()) {
            let current = self.with(|state| mem::replace(&mut state.current, task));
            let code = self.with(|state| match &mut state.tasks[task].code {
                code @ Code::New(_) => mem::replace(code, Code::Absent),
                _ => Code::Absent,
            });
            if let Code::New(job) = code {
                // The code was not called: drop its captured values by unwinding, as `resume` does.
                self.mode.set(Mode::Dying);
                let unwound = catch(|| {
                    let _captured = job;
                    unwind()
                });
                let failure = match unwound {
                    Err(Unwound::Failed(failure)) => Some(failure),
                    Ok(()) | Err(Unwound::Killed) => None,
                };
                self.ended(failure);
                self.mode.set(Mode::Setup);
            } else {
                self.resume(task, Mode::Dying);
            }
            self.with(|state| state.current = current);
        }
    }

    /// Chooses whether the clock fails. Returns whether it stands.
    fn clock_stands(&self) -> bool {
        let (fault, deadline, jump) = self.with(|state| {
            let clock = &state.settings.clock;
            let (one_in, jump) = (clock.fault_one_in, nanos(clock.jump));
            let fault = if state.choices.chance(one_in) { 1 + state.choices.choose(3) } else { 0 };
            let jump = if fault == 3 { jump >> state.choices.choose(24) } else { 0 };
            (fault, state.next_deadline(), jump)
        });
        match fault {
            2 => self.jump(deadline.unwrap_or_default(), "the clock jumps to a deadline"),
            3 => self.jump(self.time() + Duration::from_nanos(jump), "the clock jumps"),
            _ => {}
        }
        fault == 1
    }

    fn jump(&self, to: Time, what: &str) {
        if to > self.time() {
            self.time.set(to.as_nanos());
            if trace::is_on() {
                self.trace(what);
            }
        }
    }

    /// Chooses the next task, or returns the end of the run.
    fn pick(&self) -> Result<usize, End> {
        loop {
            let mut candidates = self.candidates.take();
            self.find_candidates(&mut candidates);
            let picked = self.with(|state| state.end.take().map_or(Ok(()), Err)).and_then(|()| {
                if candidates.is_empty() { Ok(None) } else { self.choose(&candidates).map(Some) }
            });
            self.candidates.set(candidates);
            if let Some(task) = picked? {
                return Ok(task);
            }
            let deadline = self.with(|state| state.next_deadline().ok_or_else(|| state.final_end()))?;
            self.jump(deadline, "time passes");
        }
    }

    /// Finds the tasks that can run, in cyclic order from the current one on. Those that have
    /// paused can run if there are no others, or as deviations.
    fn find_candidates(&self, candidates: &mut Vec<usize>) {
        let (current, count) = self.with(|state| (state.current, state.tasks.len()));
        candidates.clear();
        for task in (current..count).chain(0..current) {
            let can_run = match self.with(|state| state.tasks[task].status) {
                Status::Runnable => true,
                Status::Blocked(until) => until.is_some_and(|until| until <= self.time()) || self.poll(task),
                Status::Paused | Status::Doomed | Status::Finished => false,
            };
            if can_run {
                candidates.push(task);
            }
        }
        if candidates.is_empty() || self.with(|state| state.is_branching()) {
            let is_paused = |state: &State, task: usize| state.tasks[task].status == Status::Paused;
            self.with(|state| candidates.extend((0..count).filter(|&task| is_paused(state, task))));
        }
    }

    /// Chooses one of the tasks that can run.
    fn choose(&self, candidates: &[usize]) -> Result<usize, End> {
        if self.is_hashing.get() && !self.is_new_state() {
            return Err(End::Cut);
        }
        Ok(self.with(|state| {
            let default = candidates[0];
            let candidates = match state.settings.preemption {
                // A task whose steps are used up goes on only if it is alone.
                Preemption::Sparse { .. } if default == state.current && state.current().is_preempted() => {
                    &candidates[usize::from(candidates.len() > 1)..]
                }
                Preemption::Sparse { .. } => candidates,
                Preemption::Never | Preemption::Each if !state.is_branching() => return default,
                Preemption::Never | Preemption::Each => candidates,
            };
            let chosen = candidates[state.choices.choose(candidates.len() as u32) as usize];
            if state.is_branching() && chosen != default && state.deviations != u32::MAX {
                state.deviations -= 1;
            }
            chosen
        }))
    }

    /// Whether no run of the enumeration has been in this state.
    fn is_new_state(&self) -> bool {
        if !self.with(|state| state.choices.wants_states()) {
            return true;
        }
        let Some(shared) = self.with(State::take_hash) else { return true };
        let hash = shared();
        self.with(|state| {
            state.set_hash(Some(shared));
            let whole = state.hash(hash, self.time());
            state.choices.is_new_state(whole)
        })
    }
}
