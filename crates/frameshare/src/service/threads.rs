// SPDX-License-Identifier: MIT OR Apache-2.0

//! The threads that run the turns of tasks, and their baton.

use super::{Next, Run, schedule::Schedule, schedule::Turn};
use crate::sys::{Epoll, Interest, Interrupt, Timeout, process_id};
use std::{
    cell::{Cell, RefCell},
    io, mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Time that a thread without the baton waits for it before it ends.
const IDLE: Duration = Duration::from_millis(500);
/// Maximum time that the end of the last task waits for the threads.
const ENDING: Duration = Duration::from_millis(100);
/// Pause after a failed wait: the kernel lacks memory.
const PAUSE: Duration = Duration::from_millis(10);
/// The number of events of `wake`.
const WAKE: u64 = u64::MAX;

thread_local! {
    /// The threads that the calling one belongs to.
    static OWN: RefCell<Option<Arc<Threads>>> = const { RefCell::new(None) };
    /// Whether the calling thread holds the baton.
    static HOLDS_BATON: Cell<bool> = const { Cell::new(false) };
    /// The task whose turn it runs.
    static RUNS: Cell<Option<u32>> = const { Cell::new(None) };
}

/// The threads of one service in this process.
pub(super) struct Threads {
    name: &'static str,
    process: u32,
    epoll: Epoll,
    /// Ends the wait of the thread that holds the baton.
    wake: Interrupt,
    state: Mutex<State>,
    /// Signaled when the baton is free, or no task is left.
    passed: Condvar,
    /// Signaled when a thread ends.
    ended: Condvar,
}

pub(super) struct State {
    pub schedule: Schedule,
    /// No thread holds the baton, or is about to.
    baton_is_free: bool,
    /// The time until which the thread that holds the baton sleeps.
    sleeps_until: Option<Timeout>,
    /// Number of threads, and of those that wait for the baton.
    count: usize,
    waiting: usize,
    handles: Vec<JoinHandle<()>>,
}

/// Passes the baton of the service on, if the calling thread holds it: another thread serves all
/// other tasks from now on. To be called before an operation that may block.
pub(crate) fn before_blocking() {
    if HOLDS_BATON.get() {
        OWN.with_borrow(|threads| threads.as_ref().map(Threads::pass_baton));
    }
}

/// Returns whether the calling thread holds the baton of its service: nothing else is served while
/// it blocks. After [`before_blocking`] that means that the system grants no thread.
pub(crate) fn holds_baton() -> bool {
    HOLDS_BATON.get()
}

impl Threads {
    pub fn new(name: &'static str) -> io::Result<Arc<Self>> {
        let (epoll, wake) = (Epoll::new()?, Interrupt::new()?);
        epoll.add(&wake, WAKE, Interest::Input)?;
        let state = State {
            schedule: Schedule::default(),
            baton_is_free: true,
            sleeps_until: None,
            count: 0,
            waiting: 0,
            handles: Vec::new(),
        };
        let process = process_id();
        let (passed, ended) = (Condvar::new(), Condvar::new());
        Ok(Arc::new(Self { name, process, epoll, wake, state: Mutex::new(state), passed, ended }))
    }

    /// Returns whether they are threads of the process that forked this one.
    pub fn is_of_parent(&self) -> bool {
        self.process != process_id()
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a task, and a thread if none runs.
    pub fn start(self: &Arc<Self>, id: u32, run: Box<dyn Run>) -> io::Result<()> {
        let mut state = self.lock();
        if state.baton_is_free && state.waiting == 0 {
            self.spawn(&mut state)?;
        }
        state.schedule.start(id, run);
        let ends_sleep = self.after_change(&mut state);
        drop(state);
        self.end_sleep(ends_sleep);
        Ok(())
    }

    /// Changes the schedule.
    pub fn change(&self, change: impl FnOnce(&mut Schedule)) {
        // The parent may have forked with the state locked.
        if self.is_of_parent() {
            return;
        }
        let mut state = self.lock();
        change(&mut state.schedule);
        let ends_sleep = self.after_change(&mut state);
        drop(state);
        self.end_sleep(ends_sleep);
    }

    /// Returns whether the thread that holds the baton must stop sleeping, after a change of the
    /// schedule.
    fn after_change(&self, state: &mut State) -> bool {
        if state.baton_is_free {
            // A waiting thread takes it if there is a task, or ends.
            self.passed.notify_one();
        }
        let Some(until) = state.sleeps_until else { return false };
        let next = state.schedule.next_turn();
        let is_due = next != until && next.min(until) == next;
        if is_due || state.schedule.is_empty() {
            state.sleeps_until = None;
            return true;
        }
        false
    }

    fn end_sleep(&self, yes: bool) {
        if yes {
            self.wake.set();
        }
    }

    /// Starts a thread, which holds the baton.
    fn spawn(self: &Arc<Self>, state: &mut State) -> io::Result<()> {
        let threads = self.clone();
        let handle = thread::Builder::new().name(self.name.into()).spawn(move || threads.run())?;
        // Those of threads that have ended are dropped, which has no effect on others.
        state.handles.retain(|handle| !handle.is_finished());
        state.handles.push(handle);
        state.count += 1;
        state.baton_is_free = false;
        Ok(())
    }

    fn pass_baton(self: &Arc<Self>) {
        if self.is_of_parent() {
            return;
        }
        let mut state = self.lock();
        if state.waiting > 0 {
            state.baton_is_free = true;
            self.passed.notify_one();
        } else if let Err(error) = self.spawn(&mut state) {
            log::warn!("streams of this process may delay each other: cannot start a thread: {error}");
            return;
        }
        HOLDS_BATON.set(false);
    }

    /// Main loop of a thread, which begins with the baton.
    fn run(self: Arc<Self>) {
        OWN.set(Some(self.clone()));
        HOLDS_BATON.set(true);
        loop {
            self.serve();
            if !self.wait_for_baton() {
                break;
            }
        }
        self.ended.notify_all();
    }

    /// Waits for the baton. Returns false if the thread is not needed any more: it does not count
    /// from then on.
    fn wait_for_baton(&self) -> bool {
        let deadline = Instant::now() + IDLE;
        let mut state = self.lock();
        loop {
            if state.schedule.is_empty() {
                break;
            }
            if state.baton_is_free {
                state.baton_is_free = false;
                HOLDS_BATON.set(true);
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state.waiting += 1;
            state = self.passed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            state.waiting -= 1;
        }
        state.count -= 1;
        false
    }

    /// Runs the turns of all tasks for as long as this thread holds the baton and there are any.
    fn serve(self: &Arc<Self>) {
        let mut found = Vec::new();
        loop {
            let mut state = self.lock();
            let due = state.schedule.expire(Instant::now());
            for _ in 0..due {
                let Some(turn) = state.schedule.begin() else { break };
                drop(state);
                self.run_turn(turn);
                if !HOLDS_BATON.get() {
                    return;
                }
                state = self.lock();
            }
            if state.schedule.is_empty() {
                state.baton_is_free = true;
                HOLDS_BATON.set(false);
                self.passed.notify_all();
                return;
            }
            let until = state.schedule.next_turn();
            state.sleeps_until = Some(until);
            drop(state);
            let waited = self.epoll.wait(&mut found, until);
            if waited.is_err() {
                thread::sleep(PAUSE);
            }
            self.record(&mut found);
        }
    }

    /// Records the events of a wait in the schedule.
    fn record(&self, found: &mut Vec<u64>) {
        let mut state = self.lock();
        state.sleeps_until = None;
        for number in found.drain(..) {
            if number == WAKE {
                self.wake.clear();
                // It fails only for lack of memory; then the next timer ends the sleep.
                let _ = self.epoll.arm(&self.wake, WAKE, Interest::Input);
            } else {
                state.schedule.add_event((number >> 32) as u32, number as u32);
            }
        }
    }

    fn run_turn(self: &Arc<Self>, Turn { id, mut run, ready }: Turn) {
        let outer = RUNS.replace(Some(id));
        let next = catch_unwind(AssertUnwindSafe(|| run.run(&self.epoll, &ready)));
        RUNS.set(outer);
        match next {
            Ok(Next::At(next)) => {
                let mut run = Some(run);
                return self.change(|schedule| {
                    run.take().into_iter().for_each(|run| schedule.end(id, run, next));
                });
            }
            Ok(Next::End) => {}
            Err(_) => {
                log::error!("a turn of the thread {} panicked: its stream is not served any more", self.name)
            }
        }
        // A task may own foreign data, and memory that takes long to free.
        before_blocking();
        self.change(|schedule| schedule.remove(id));
        let ended = AssertUnwindSafe(|| {
            run.end(&self.epoll);
            drop(run);
        });
        if catch_unwind(ended).is_err() {
            log::error!("the end of a stream panicked");
        }
    }

    /// Returns whether the calling thread runs a turn of this task.
    pub fn runs_here(self: &Arc<Self>, id: u32) -> bool {
        self.is_own_thread() && RUNS.get() == Some(id)
    }

    fn is_own_thread(self: &Arc<Self>) -> bool {
        OWN.with_borrow(|own| own.as_ref().is_some_and(|own| Arc::ptr_eq(own, self)))
    }

    /// If no task is left, waits until the threads have ended, or for a moment if one blocks.
    pub fn wait_for_end(self: &Arc<Self>) {
        if self.is_of_parent() || self.is_own_thread() {
            return;
        }
        let deadline = Instant::now() + ENDING;
        let mut state = self.lock();
        while state.schedule.is_empty() && state.count > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.ended.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        if state.count == 0 {
            // They only have to return.
            let handles = mem::take(&mut state.handles);
            drop(state);
            handles.into_iter().for_each(|handle| drop(handle.join()));
        }
    }
}
