// SPDX-License-Identifier: MIT OR Apache-2.0

//! The threads that run the turns of tasks, and their baton.

use super::{
    schedule::{Schedule, Turn},
    task::{Next, Run},
};
use crate::{
    foreign::{self, report},
    sys::{Epoll, Interest, Interrupt, Timeout, Timer, process_number, wait},
};
use rustix::event::{PollFd, PollFlags};
use std::{
    cell::{Cell, RefCell},
    io, mem,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Time after which the baton is taken from a thread that blocks. Most operations that may block
/// take less, and a change of threads costs two wake-ups.
const LOAN: Duration = Duration::from_millis(1);
/// Time after which a thread that waits for the baton ends; for a spare one, without loans.
const IDLE: Duration = Duration::from_millis(500);
/// The shortest setting of a timer.
const AT_ONCE: Duration = Duration::from_nanos(1);
/// Maximum time that the end of the last task waits for the threads.
const ENDING: Duration = Duration::from_millis(100);
/// Pause after a failed wait: the kernel lacks memory.
const PAUSE: Duration = Duration::from_millis(10);
/// The number of events of `wake`.
const WAKE: u64 = u64::MAX;

thread_local! {
    /// The threads that the calling one belongs to.
    static OWN: RefCell<Option<Arc<Threads>>> = const { RefCell::new(None) };
    /// The hold of the calling thread on the baton.
    static HOLD: Cell<Hold> = const { Cell::new(Hold::None) };
    /// The task whose turn it runs.
    static RUNS: Cell<Option<u32>> = const { Cell::new(None) };
}

/// The hold of a thread on the baton.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    None,
    Whole,
    /// It has lent it: another thread may have taken it.
    Lent,
}

/// Where the baton is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Baton {
    Free,
    Held,
    /// Its holder may block in a turn of this task: from that time on, a thread that waits may take
    /// it, for the other tasks. One that ends its own turn takes it at once.
    Lent {
        task: Option<u32>,
        until: Instant,
    },
}

/// The threads of one service in this process.
pub(super) struct Threads {
    name: &'static str,
    process: u64,
    epoll: Epoll,
    /// Ends the wait of the thread that holds the baton.
    wake: Interrupt,
    state: Mutex<State>,
    /// When it goes off, threads that wait for the baton look again.
    timer: Timer,
    /// Signaled when a thread ends.
    ended: Condvar,
}

pub(super) struct State {
    pub schedule: Schedule,
    baton: Baton,
    /// Time of the last loan.
    lent_at: Instant,
    /// The time until which the thread that holds the baton sleeps.
    sleeps_until: Option<Timeout>,
    /// Number of threads, and of those that wait for the baton.
    count: usize,
    waiting: usize,
    handles: Vec<JoinHandle<()>>,
}

/// Lends the baton of the service until the end of the turn, if the calling thread holds it: if
/// that takes longer than a millisecond, another thread takes it and serves all other tasks. Call
/// it before an operation that may block.
pub(crate) fn before_blocking() {
    if HOLD.get() == Hold::Whole {
        let lent = OWN.with_borrow(|threads| threads.as_ref().map(Threads::lend_baton));
        if let Some(Err(error)) = lent {
            report!(warn, "streams of this process may delay each other: cannot start a thread: {error}");
        }
    }
}

/// Returns whether nothing else is served while the calling thread blocks: it holds the baton of
/// its service. After [`before_blocking`] that means that the system grants no thread.
pub(crate) fn holds_baton() -> bool {
    HOLD.get() == Hold::Whole
}

impl State {
    /// Returns whether the thread that holds the baton must stop sleeping, after a change of the
    /// schedule.
    fn after_change(&mut self) -> bool {
        let Some(until) = self.sleeps_until else { return false };
        let next = self.schedule.next_turn();
        let is_due = next != until && next.min(until) == next;
        if is_due || self.schedule.is_empty() {
            self.sleeps_until = None;
            return true;
        }
        false
    }
}

impl Threads {
    pub fn new(name: &'static str) -> io::Result<Arc<Self>> {
        let (epoll, wake) = (Epoll::new()?, Interrupt::new()?);
        epoll.add(&wake, WAKE, Interest::InputUntilRead)?;
        let state = State {
            schedule: Schedule::default(),
            baton: Baton::Free,
            lent_at: Instant::now(),
            sleeps_until: None,
            count: 0,
            waiting: 0,
            handles: Vec::new(),
        };
        let process = process_number();
        let (timer, ended) = (Timer::new()?, Condvar::new());
        Ok(Arc::new(Self { name, process, epoll, wake, state: Mutex::new(state), timer, ended }))
    }

    /// Returns whether they are threads of the process that forked this one.
    pub fn is_of_parent(&self) -> bool {
        self.process != process_number()
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a task, and a thread if none would serve it.
    pub fn start(self: &Arc<Self>, id: u32, run: Box<dyn Run>) -> io::Result<()> {
        let mut state = self.lock();
        match state.baton {
            Baton::Free | Baton::Lent { .. } if state.waiting == 0 => self.spawn(&mut state)?,
            // A thread that sleeps notices the loan.
            Baton::Lent { .. } => self.timer.set(AT_ONCE),
            Baton::Free | Baton::Held => {}
        }
        state.schedule.start(id, run);
        let ends_sleep = state.after_change();
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
        let ends_sleep = state.after_change();
        drop(state);
        self.end_sleep(ends_sleep);
    }

    fn end_sleep(&self, yes: bool) {
        if yes {
            self.wake.set();
        }
    }

    /// Starts a thread, which waits for the baton.
    fn spawn(self: &Arc<Self>, state: &mut State) -> io::Result<()> {
        #[cfg(test)]
        if self.name == super::tests::ONE_THREAD && state.count > 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let threads = self.clone();
        let handle = thread::Builder::new().name(self.name.into()).spawn(move || threads.run())?;
        // Those of threads that have ended are dropped, which has no effect on others.
        state.handles.retain(|handle| !handle.is_finished());
        state.handles.push(handle);
        state.count += 1;
        state.waiting += 1;
        Ok(())
    }

    /// Lends the baton, unless the system grants no thread that could take it.
    fn lend_baton(self: &Arc<Self>) -> io::Result<()> {
        if self.is_of_parent() {
            return Ok(());
        }
        let mut state = self.lock();
        let task = RUNS.get();
        // Another thread is needed for other tasks only: the start of the first one starts it.
        let has_others = state.schedule.has_other_than(task);
        if has_others && state.waiting == 0 {
            self.spawn(&mut state)?;
        }
        state.lent_at = Instant::now();
        state.baton = Baton::Lent { task, until: state.lent_at + LOAN };
        HOLD.set(Hold::Lent);
        if has_others {
            self.timer.set(LOAN);
        }
        Ok(())
    }

    /// Ends the calling thread's turn. Returns the locked state if it has the baton: because it
    /// kept it, or because it is lent, by whichever thread. Else the thread waits from now on.
    fn regain_baton(&self) -> Option<MutexGuard<'_, State>> {
        let mut state = self.lock();
        if HOLD.get() == Hold::Lent {
            if !matches!(state.baton, Baton::Lent { .. }) {
                HOLD.set(Hold::None);
                state.waiting += 1;
                return None;
            }
            state.baton = Baton::Held;
            HOLD.set(Hold::Whole);
            if state.waiting > 0 {
                self.timer.set(Duration::ZERO);
            }
        }
        Some(state)
    }

    /// Main loop of a thread, which waits for the baton first.
    fn run(self: Arc<Self>) {
        OWN.set(Some(self.clone()));
        while self.wait_for_baton() {
            self.serve();
        }
        self.ended.notify_all();
    }

    /// Waits for the baton, and takes it. Returns false if the thread is not needed any more: it
    /// does not count from then on.
    fn wait_for_baton(&self) -> bool {
        let begun = Instant::now();
        let mut state = self.lock();
        let takes = loop {
            let now = Instant::now();
            let until = match state.baton {
                _ if state.schedule.is_empty() => break false,
                Baton::Free => break true,
                Baton::Lent { task, until, .. } if state.schedule.has_other_than(task) => {
                    if until <= now {
                        break true;
                    }
                    until
                }
                Baton::Lent { .. } | Baton::Held => {
                    // One is enough for the next loan, and none for the loans of an only task.
                    let is_spare = state.waiting == 1 && state.schedule.has_several();
                    let until = if is_spare { begun.max(state.lent_at) } else { begun } + IDLE;
                    if until <= now {
                        break false;
                    }
                    until
                }
            };
            drop(state);
            if wait(&mut [PollFd::new(&self.timer, PollFlags::IN)], Timeout::At(until)).is_err() {
                thread::sleep(PAUSE);
            }
            state = self.lock();
            self.timer.clear();
        };
        state.waiting -= 1;
        if takes {
            state.baton = Baton::Held;
            HOLD.set(Hold::Whole);
        } else {
            state.count -= 1;
            if state.waiting > 0 {
                // They slept on if this thread cleared the timer, and may have to end too.
                self.timer.set(AT_ONCE);
            }
        }
        takes
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
                let Some(regained) = self.regain_baton() else { return };
                state = regained;
            }
            if state.schedule.is_empty() {
                state.baton = Baton::Free;
                state.waiting += 1;
                HOLD.set(Hold::None);
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
            } else {
                state.schedule.add_event((number >> 32) as u32, number as u32);
            }
        }
    }

    fn run_turn(self: &Arc<Self>, Turn { id, mut run, ready }: Turn) {
        let outer = RUNS.replace(Some(id));
        let next = foreign::run(|| run.run(&self.epoll, &ready));
        RUNS.set(outer);
        match next {
            Some(Next::At(next)) => {
                let mut run = Some(run);
                return self.change(|schedule| {
                    run.take().into_iter().for_each(|run| schedule.end(id, run, next));
                });
            }
            Some(Next::End) => {}
            None => {
                report!(
                    error,
                    "a turn of the thread {} panicked: its stream is not served any more",
                    self.name
                );
                foreign::run(|| run.fail());
            }
        }
        self.change(|schedule| schedule.remove(id));
        // A task may own foreign data, and memory that takes long to free.
        before_blocking();
        let ended = foreign::run(|| {
            run.end(&self.epoll);
            drop(run);
        });
        if ended.is_none() {
            report!(error, "the end of a stream panicked");
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
